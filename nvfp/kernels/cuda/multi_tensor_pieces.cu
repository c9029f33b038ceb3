// scale_tensors and l2_norm of `kernels/multi_tensor.py` for up to ENTRIES tensors in one launch.
//
// Parallelisation: a block takes a PIECE of one tensor; it finds its tensor by bisecting `first_block`. The table of
// tensors is a kernel argument, so nothing is copied to the device and a graph can capture the call. A thread has
// TURNS loads of 16 bytes in flight. Bytes moved per element: scale: read x, write y; norm: read x.
//
// Macros: T_IN, T_OUT: dtypes (`l2_finish` needs neither).
#include "convert.cuh"
#include "entries.cuh"
#include "own.cuh"

constexpr int THREADS = 256;

#ifdef T_IN
constexpr int PIECE = 8192;   // = multi_tensor.py's (the contract's)
constexpr int ENTRIES = 124;   // = cuda/multi_tensor.py's
constexpr int WIDE = sizeof(T_IN) > sizeof(T_OUT) ? sizeof(T_IN) : sizeof(T_OUT);
constexpr int W = 16 / WIDE;   // elements that a thread moves at once
constexpr int TURNS = PIECE / (THREADS * W);

struct Entry {
  const T_IN* x;
  T_OUT* y;
  long long n;
  int first_block, unused;
};
struct Batch {
  Entry at[ENTRIES];
  int count, first_partial;
};

__device__ __forceinline__ bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

extern "C" __global__ void __launch_bounds__(THREADS)
    scale_tensors(const __grid_constant__ Batch batch, const float* factor_word, float* nonfinite) {
  const Entry e = batch.at[entry_of(batch, blockIdx.x)];
  const float factor = *factor_word;
  const long long start = (long long)((int)blockIdx.x - e.first_block) * PIECE;
  bool bad = false;
  const bool aligned =
      (unsigned long long)e.x % (W * sizeof(T_IN)) == 0 && (unsigned long long)e.y % (W * sizeof(T_OUT)) == 0;
  if (aligned && start + PIECE <= e.n) {
    Vec<T_IN, W> x[TURNS];
#pragma unroll
    for (int k = 0; k < TURNS; ++k) x[k] = load_own<T_IN, W>(e.x + start + (k * THREADS + threadIdx.x) * W);
#pragma unroll
    for (int k = 0; k < TURNS; ++k) {
      Vec<T_OUT, W> y;
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const float v = load_float(x[k].at[j]);
        bad |= !is_finite(v);
        y.at[j] = store<T_OUT>(v * factor);
      }
      store_vec(e.y + start + (k * THREADS + threadIdx.x) * W, y);
    }
  } else {
    const long long end = start + PIECE < e.n ? start + PIECE : e.n;
    for (long long i = start + threadIdx.x; i < end; i += THREADS) {
      const float v = load_float(e.x[i]);
      bad |= !is_finite(v);
      e.y[i] = store<T_OUT>(v * factor);
    }
  }
  if (bad && nonfinite != nullptr) *nonfinite = 1.0f;  // every writer writes the same
}

// Sum over the block in a fixed order; thread 0 gets it.
template <typename T>
__device__ __forceinline__ T block_sum(T x) {
  __shared__ T part[THREADS / 32];
#pragma unroll
  for (int k = 16; k > 0; k /= 2) x += __shfl_down_sync(0xffffffffu, x, k);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  T sum = part[0];
#pragma unroll
  for (int k = 1; k < THREADS / 32; ++k) sum += part[k];
  return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) l2_partial(const __grid_constant__ Batch batch, float* partial) {
  const Entry e = batch.at[entry_of(batch, blockIdx.x)];
  const long long start = (long long)((int)blockIdx.x - e.first_block) * PIECE;
  float sum = 0.0f;
  if ((unsigned long long)e.x % 16 == 0 && start + PIECE <= e.n) {
    Vec<T_IN, W> x[TURNS];
#pragma unroll
    for (int k = 0; k < TURNS; ++k) x[k] = load_own<T_IN, W>(e.x + start + (k * THREADS + threadIdx.x) * W);
#pragma unroll
    for (int k = 0; k < TURNS; ++k)
#pragma unroll
      for (int j = 0; j < W; ++j) sum = fmaf(load_float(x[k].at[j]), load_float(x[k].at[j]), sum);
  } else {
    const long long end = start + PIECE < e.n ? start + PIECE : e.n;
    for (long long i = start + threadIdx.x; i < end; i += THREADS) sum = fmaf(load_float(e.x[i]), load_float(e.x[i]), sum);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[batch.first_partial + blockIdx.x] = sum;
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) l2_finish(const float* partial, long long n, float* norm) {
  __shared__ double part[THREADS];
  double sum = 0.0;
  for (long long i = threadIdx.x; i < n; i += THREADS) sum += (double)partial[i];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int k = THREADS / 2; k > 0; k /= 2) {
    if (threadIdx.x < k) part[threadIdx.x] += part[threadIdx.x + k];
    __syncthreads();
  }
  if (threadIdx.x == 0) *norm = (float)sqrt(part[0]);
}
#endif
