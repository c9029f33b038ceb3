// bias_grad: column sums of dy [rows, columns] in the fixed order that `kernels/bias_grad.py` states.
//
// Stage 1: a thread owns W neighbouring columns and adds one chunk of rows from top to bottom; a block covers
// THREADS * W columns of one chunk. Stage 2: 32 columns per block; thread row y adds the chunk sums y, y + 8, ...;
// then the 8 lanes are added in order. Bytes moved: sizeof(T_IN) per element, read once.
//
// Macros: T_IN; T_OUT (stage 2); W: columns per thread, 16 / sizeof(T_IN) where rows start at multiples of 16, else 1.
#include "pack.cuh"

#ifdef T_IN
constexpr int THREADS = 128;
constexpr int UNROLL = 8;  // rows in flight per thread

__device__ __forceinline__ void add(const Words<T_IN, W>& v, float (&total)[W]) {
  float x[W];
  unpack(v, x);
#pragma unroll
  for (int j = 0; j < W; ++j) total[j] += x[j];
}

extern "C" __global__ void __launch_bounds__(THREADS, 8)
bias_grad_partial(const T_IN* __restrict__ dy, float* __restrict__ partial, long long rows, long long columns,
                  long long chunk) {
  const long long n = ((long long)blockIdx.x * THREADS + threadIdx.x) * W;
  if (n >= columns) return;
  const long long first = blockIdx.y * chunk, last = first + chunk < rows ? first + chunk : rows;
  float total[W] = {};
  long long m = first;
  for (; m + UNROLL <= last; m += UNROLL) {
    Words<T_IN, W> v[UNROLL];
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) v[k] = load_words<T_IN, W>(dy + (m + k) * columns + n);
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) add(v[k], total);
  }
  for (; m < last; ++m) add(load_words<T_IN, W>(dy + m * columns + n), total);
#pragma unroll
  for (int j = 0; j < W; ++j) partial[blockIdx.y * columns + n + j] = total[j];
}
#endif

#ifdef T_OUT
constexpr int LANES = 8, COLUMNS = 32;

extern "C" __global__ void __launch_bounds__(LANES * COLUMNS)
bias_grad_finish(const float* __restrict__ partial, T_OUT* __restrict__ db, long long chunks, long long columns) {
  __shared__ float lane[LANES][COLUMNS];
  const long long n = (long long)blockIdx.x * COLUMNS + threadIdx.x;
  float total = 0.0f;
  if (n < columns)
#pragma unroll 8
    for (long long k = threadIdx.y; k < chunks; k += LANES) total += partial[k * columns + n];
  lane[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || n >= columns) return;
#pragma unroll
  for (int k = 1; k < LANES; ++k) total += lane[k][threadIdx.x];
  db[n] = store<T_OUT>(total);
}
#endif
