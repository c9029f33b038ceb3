// activation_gated: y = act(a) b with a and b the first and the second half of each row of x [rows, 2 * half];
// activation_gated_vjp: dx = (act'(a) (dy b), act(a) dy). Float32 inside, one rounding. CLAMPED cuts b first.
//
// Parallelisation: a grid-stride loop over the elements of y, 16 bytes of each half at a time where rows allow it.
// dx may be x: each thread reads a pair before it writes it, and no other thread touches it.
// Bytes moved: 3 * sizeof(T_IN) per element of y forward, 5 * sizeof(T_IN) backward.
//
// Macros: T_IN, ACT (the number of the function, with its own), RECORD (set: `word` is raised to the largest magnitude of the rounded
// result, NaN aside). `vectors` is n / PER_VECTOR where half is a multiple of PER_VECTOR
// and all addresses are multiples of 16, else 0 (then elements go one by one).
#include "activation.cuh"
#include "pack.cuh"
#include "recorded.cuh"

constexpr int THREADS = 256;
constexpr int PER_VECTOR = 16 / sizeof(T_IN);

// Where element i of y has its first half in x: row * 2 * half + column = i + row * half.
__device__ __forceinline__ long long first_half(long long i, long long half) {
  // a 32-bit division where it does: it is several times as fast
  const long long row = (i | half) >> 32 == 0 ? (long long)((unsigned)i / (unsigned)half) : i / half;
  return i + row * half;
}

extern "C" __global__ void __launch_bounds__(THREADS)
activation_gated(const T_IN* x, T_IN* y, long long n, long long vectors, long long half RECORD_PARAMETER) {
  Recorded most;
  const long long first = (long long)blockIdx.x * THREADS + threadIdx.x, stride = (long long)gridDim.x * THREADS;
  for (long long i = first; i < vectors; i += stride) {
    const T_IN* at = x + first_half(i * PER_VECTOR, half);
    const Words<T_IN, PER_VECTOR> v = load_words<T_IN, PER_VECTOR>(at), w = load_words<T_IN, PER_VECTOR>(at + half);
    float a[PER_VECTOR], b[PER_VECTOR];
    unpack(v, a);
    unpack(w, b);
#pragma unroll
    for (int j = 0; j < PER_VECTOR; ++j) a[j] = act<ACT>(a[j]) * factor<ACT>(b[j]);
    const Words<T_IN, PER_VECTOR> rounded = pack<T_IN, PER_VECTOR>(a);
    most.see(rounded);
    keep_words(y + i * PER_VECTOR, rounded);
  }
  for (long long i = vectors * PER_VECTOR + first; i < n; i += stride) {
    const T_IN* at = x + first_half(i, half);
    y[i] = most.seen(store<T_IN>(act<ACT>(load_float(at[0])) * factor<ACT>(load_float(at[half]))));
  }
  most.finish<THREADS>(RECORD_ARGUMENT);
}

// Gradients of one pair, in place of a and b.
__device__ __forceinline__ void pair_vjp(float& a, float& b, float dy) {
  const float u = a;
  a = act_vjp<ACT>(u, dy * factor<ACT>(b));
  b = factor_vjp<ACT>(b, act<ACT>(u) * dy);
}

extern "C" __global__ void __launch_bounds__(THREADS)
activation_gated_vjp(const T_IN* x, const T_IN* dy, T_IN* dx, long long n, long long vectors, long long half RECORD_PARAMETER) {
  Recorded most;
  const long long first = (long long)blockIdx.x * THREADS + threadIdx.x, stride = (long long)gridDim.x * THREADS;
  for (long long i = first; i < vectors; i += stride) {
    const long long at = first_half(i * PER_VECTOR, half);
    const Words<T_IN, PER_VECTOR> v = load_words<T_IN, PER_VECTOR>(x + at);
    const Words<T_IN, PER_VECTOR> w = load_words<T_IN, PER_VECTOR>(x + at + half);
    float a[PER_VECTOR], b[PER_VECTOR], d[PER_VECTOR];
    unpack(load_words<T_IN, PER_VECTOR>(dy + i * PER_VECTOR), d);
    unpack(v, a);
    unpack(w, b);
#pragma unroll
    for (int j = 0; j < PER_VECTOR; ++j) pair_vjp(a[j], b[j], d[j]);
    const Words<T_IN, PER_VECTOR> da = pack<T_IN, PER_VECTOR>(a), db = pack<T_IN, PER_VECTOR>(b);
    most.see(da);
    most.see(db);
    keep_words(dx + at, da);
    keep_words(dx + at + half, db);
  }
  for (long long i = vectors * PER_VECTOR + first; i < n; i += stride) {
    const long long at = first_half(i, half);
    float a = load_float(x[at]), b = load_float(x[at + half]);
    pair_vjp(a, b, load_float(dy[i]));
    dx[at] = most.seen(store<T_IN>(a));
    dx[at + half] = most.seen(store<T_IN>(b));
  }
  most.finish<THREADS>(RECORD_ARGUMENT);
}
