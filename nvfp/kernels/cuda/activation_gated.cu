// activation_gated: y = act(a) b with a and b the first and the second half of each row of x [rows, 2 * half];
// activation_gated_vjp: dx = (act'(a) (dy b), act(a) dy). Float32 inside, one rounding.
//
// Parallelisation: a grid-stride loop over the elements of y, 16 bytes of each half at a time where rows allow it.
// dx may be x: each thread reads a pair before it writes it, and no other thread touches it.
// Bytes moved: 3 * sizeof(T_IN) per element of y forward, 5 * sizeof(T_IN) backward.
//
// Macros: T_IN, ACT (the number of the function). `vectors` is n / PER_VECTOR where half is a multiple of PER_VECTOR
// and all addresses are multiples of 16, else 0 (then elements go one by one).
#include "activation.cuh"
#include "convert.cuh"
#include "own.cuh"

constexpr int THREADS = 256;
constexpr int PER_VECTOR = 16 / sizeof(T_IN);

// Where element i of y has its first half in x: row * 2 * half + column = i + row * half.
__device__ __forceinline__ long long first_half(long long i, long long half) {
  // a 32-bit division where it does: it is several times as fast
  const long long row = (i | half) >> 32 == 0 ? (long long)((unsigned)i / (unsigned)half) : i / half;
  return i + row * half;
}

extern "C" __global__ void __launch_bounds__(THREADS)
activation_gated(const T_IN* x, T_IN* y, long long n, long long vectors, long long half) {
  const long long first = (long long)blockIdx.x * THREADS + threadIdx.x, stride = (long long)gridDim.x * THREADS;
  for (long long i = first; i < vectors; i += stride) {
    const T_IN* at = x + first_half(i * PER_VECTOR, half);
    Vec<T_IN, PER_VECTOR> a = load_own<T_IN, PER_VECTOR>(at);
    const Vec<T_IN, PER_VECTOR> b = load_own<T_IN, PER_VECTOR>(at + half);
#pragma unroll
    for (int j = 0; j < PER_VECTOR; ++j) a.at[j] = store<T_IN>(act<ACT>(load_float(a.at[j])) * load_float(b.at[j]));
    store_vec(y + i * PER_VECTOR, a);
  }
  for (long long i = vectors * PER_VECTOR + first; i < n; i += stride) {
    const T_IN* at = x + first_half(i, half);
    y[i] = store<T_IN>(act<ACT>(load_float(at[0])) * load_float(at[half]));
  }
}

// Gradients of one pair, in place of a and b.
__device__ __forceinline__ void pair_vjp(T_IN& a, T_IN& b, T_IN dy) {
  const float u = load_float(a), d = load_float(dy);
  a = store<T_IN>(act_vjp<ACT>(u, d * load_float(b)));
  b = store<T_IN>(act<ACT>(u) * d);
}

extern "C" __global__ void __launch_bounds__(THREADS)
activation_gated_vjp(const T_IN* x, const T_IN* dy, T_IN* dx, long long n, long long vectors, long long half) {
  const long long first = (long long)blockIdx.x * THREADS + threadIdx.x, stride = (long long)gridDim.x * THREADS;
  for (long long i = first; i < vectors; i += stride) {
    const long long at = first_half(i * PER_VECTOR, half);
    Vec<T_IN, PER_VECTOR> a = load_own<T_IN, PER_VECTOR>(x + at), b = load_own<T_IN, PER_VECTOR>(x + at + half);
    const Vec<T_IN, PER_VECTOR> d = load_own<T_IN, PER_VECTOR>(dy + i * PER_VECTOR);
#pragma unroll
    for (int j = 0; j < PER_VECTOR; ++j) pair_vjp(a.at[j], b.at[j], d.at[j]);
    store_vec(dx + at, a);
    store_vec(dx + at + half, b);
  }
  for (long long i = vectors * PER_VECTOR + first; i < n; i += stride) {
    const long long at = first_half(i, half);
    T_IN a = x[at], b = x[at + half];
    pair_vjp(a, b, dy[i]);
    dx[at] = a;
    dx[at + half] = b;
  }
}
