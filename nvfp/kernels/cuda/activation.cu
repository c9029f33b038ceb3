// activation: y = act(x); activation_vjp: dx = act'(x) dy. Float32 inside, one rounding.
//
// Parallelisation: a grid-stride loop over 16-byte vectors, then over what is left; y may be x, dx may be x or dy
// (each thread reads an element before it writes it, and no other thread touches it).
// Bytes moved: 2 * sizeof(T_IN) per element forward, 3 * sizeof(T_IN) backward.
//
// Macros: T_IN, ACT (the kind's number). `vectors` is n / PER_VECTOR where all addresses are multiples of 16, else 0.
#include "activation.cuh"
#include "convert.cuh"
#include "own.cuh"

constexpr int THREADS = 256;
constexpr int PER_VECTOR = 16 / sizeof(T_IN);

extern "C" __global__ void __launch_bounds__(THREADS)
activation(const T_IN* x, T_IN* y, long long n, long long vectors) {
  const long long first = (long long)blockIdx.x * THREADS + threadIdx.x, stride = (long long)gridDim.x * THREADS;
  for (long long i = first; i < vectors; i += stride) {
    Vec<T_IN, PER_VECTOR> v = load_own<T_IN, PER_VECTOR>(x + i * PER_VECTOR);
#pragma unroll
    for (int j = 0; j < PER_VECTOR; ++j) v.at[j] = store<T_IN>(act<ACT>(load_float(v.at[j])));
    store_vec(y + i * PER_VECTOR, v);
  }
  for (long long i = vectors * PER_VECTOR + first; i < n; i += stride) y[i] = store<T_IN>(act<ACT>(load_float(x[i])));
}

extern "C" __global__ void __launch_bounds__(THREADS)
activation_vjp(const T_IN* x, const T_IN* dy, T_IN* dx, long long n, long long vectors) {
  const long long first = (long long)blockIdx.x * THREADS + threadIdx.x, stride = (long long)gridDim.x * THREADS;
  for (long long i = first; i < vectors; i += stride) {
    Vec<T_IN, PER_VECTOR> v = load_own<T_IN, PER_VECTOR>(x + i * PER_VECTOR);
    const Vec<T_IN, PER_VECTOR> d = load_own<T_IN, PER_VECTOR>(dy + i * PER_VECTOR);
#pragma unroll
    for (int j = 0; j < PER_VECTOR; ++j) v.at[j] = store<T_IN>(act_vjp<ACT>(load_float(v.at[j]), load_float(d.at[j])));
    store_vec(dx + i * PER_VECTOR, v);
  }
  for (long long i = vectors * PER_VECTOR + first; i < n; i += stride)
    dx[i] = store<T_IN>(act_vjp<ACT>(load_float(x[i]), load_float(dy[i])));
}
