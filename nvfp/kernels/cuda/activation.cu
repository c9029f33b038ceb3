// activation: y = act(x); activation_vjp: dx = act'(x) dy. Float32 inside, one rounding.
//
// Parallelisation: a grid-stride loop over 16-byte vectors, then over what is left; y may be x, dx may be x or dy
// (each thread reads an element before it writes it, and no other thread touches it).
// Bytes moved: 2 * sizeof(T_IN) per element forward, 3 * sizeof(T_IN) backward.
//
// Macros: T_IN, ACT (the kind's number), RECORD (set: `word` is raised to the largest magnitude of the rounded result, NaN
// aside). `vectors` is n / PER_VECTOR where all addresses are multiples of 16, else 0.
#include "activation.cuh"
#include "pack.cuh"
#include "recorded.cuh"

constexpr int THREADS = 256;
constexpr int PER_VECTOR = 16 / sizeof(T_IN);

extern "C" __global__ void __launch_bounds__(THREADS)
activation(const T_IN* x, T_IN* y, long long n, long long vectors RECORD_PARAMETER) {
  Recorded most;
  const long long first = (long long)blockIdx.x * THREADS + threadIdx.x, stride = (long long)gridDim.x * THREADS;
  for (long long i = first; i < vectors; i += stride) {
    float u[PER_VECTOR];
    unpack(load_words<T_IN, PER_VECTOR>(x + i * PER_VECTOR), u);
#pragma unroll
    for (int j = 0; j < PER_VECTOR; ++j) u[j] = act<ACT, true>(u[j]);
    const Words<T_IN, PER_VECTOR> rounded = pack<T_IN, PER_VECTOR>(u);
    keep_words(y + i * PER_VECTOR, rounded);
    most.see(rounded);
  }
  for (long long i = vectors * PER_VECTOR + first; i < n; i += stride)
    y[i] = most.seen(store<T_IN>(act<ACT, true>(load_float(x[i]))));
  most.finish<THREADS>(RECORD_ARGUMENT);
}

// All threads that a multiprocessor holds: Ada and the smaller Blackwells hold fewer.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
constexpr int RESIDENT = 1536;
#else
constexpr int RESIDENT = 2048;
#endif

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
activation_vjp(const T_IN* x, const T_IN* dy, T_IN* dx, long long n, long long vectors RECORD_PARAMETER) {
  Recorded most;
  const long long first = (long long)blockIdx.x * THREADS + threadIdx.x, stride = (long long)gridDim.x * THREADS;
  for (long long i = first; i < vectors; i += stride) {
    float u[PER_VECTOR], d[PER_VECTOR];
    const Words<T_IN, PER_VECTOR> v = load_words<T_IN, PER_VECTOR>(x + i * PER_VECTOR);
    unpack(load_words<T_IN, PER_VECTOR>(dy + i * PER_VECTOR), d);
    unpack(v, u);
#pragma unroll
    for (int j = 0; j < PER_VECTOR; ++j) u[j] = act_vjp<ACT>(u[j], d[j]);
    const Words<T_IN, PER_VECTOR> rounded = pack<T_IN, PER_VECTOR>(u);
    keep_words(dx + i * PER_VECTOR, rounded);
    most.see(rounded);
  }
  for (long long i = vectors * PER_VECTOR + first; i < n; i += stride)
    dx[i] = most.seen(store<T_IN>(act_vjp<ACT>(load_float(x[i]), load_float(dy[i]))));
  most.finish<THREADS>(RECORD_ARGUMENT);
}
