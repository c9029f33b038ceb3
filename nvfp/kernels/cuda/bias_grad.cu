// bias_grad: column sums of dy [rows, columns] in the fixed order that `kernels/bias_grad.py` states (column_sums.cuh).
//
// Stage 1: a block takes 128 rows x 32 * W columns; a warp 16 of the rows, a thread W neighbouring columns of them, 4
// groups of 4 rows; the warps' sums meet in shared memory. Stage 2: 32 columns per block; thread row y adds the sums of
// tiles y, y + 32, ...; then the 32 lanes are added by a tree. Bytes moved: sizeof(T_IN) per element, read once.
//
// Macros: T_IN; T_OUT (stage 2); W: columns per thread, 16 / sizeof(T_IN) where rows start at multiples of 16, else 1.
#include "column_sums.cuh"
#include "pack.cuh"

#ifdef T_IN
constexpr int WARPS = 8, THREADS = 32 * WARPS;
constexpr int GROUPS = SUM_ROWS / SUM_GROUP / WARPS;  // of a thread
static_assert(GROUPS == 4, "a tree of four");

// Adds a group of rows from top to bottom; those beyond the last are zeros.
template <bool Whole>
__device__ __forceinline__ void add_group(const T_IN* dy, long long m, long long rows, long long columns, float (&total)[W]) {
  Words<T_IN, W> v[SUM_GROUP] = {};
#pragma unroll
  for (int k = 0; k < SUM_GROUP; ++k)
    if (Whole || m + k < rows) v[k] = load_words<T_IN, W>(dy + k * columns);
  unpack(v[0], total);
#pragma unroll
  for (int k = 1; k < SUM_GROUP; ++k) {
    float x[W];
    unpack(v[k], x);
#pragma unroll
    for (int j = 0; j < W; ++j) total[j] += x[j];
  }
}

template <bool Whole>
__device__ __forceinline__ void add_warp(const T_IN* dy, long long m, long long rows, long long columns, float (&total)[W]) {
  float x[GROUPS][W];
#pragma unroll
  for (int g = 0; g < GROUPS; ++g) add_group<Whole>(dy + g * SUM_GROUP * columns, m + g * SUM_GROUP, rows, columns, x[g]);
#pragma unroll
  for (int j = 0; j < W; ++j) total[j] = (x[0][j] + x[1][j]) + (x[2][j] + x[3][j]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
bias_grad_partial(const T_IN* __restrict__ dy, float* __restrict__ partial, long long rows, long long columns) {
  __shared__ float sums[WARPS][32 * W];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const long long across = (columns + 32 * W - 1) / (32 * W), tile = blockIdx.x / across;
  const long long first = blockIdx.x % across * (32 * W), n = first + lane * W;
  const long long m = tile * SUM_ROWS + warp * GROUPS * SUM_GROUP;
  float total[W] = {};
  if (n < columns && m + GROUPS * SUM_GROUP <= rows) add_warp<true>(dy + m * columns + n, m, rows, columns, total);
  else if (n < columns && m < rows) add_warp<false>(dy + m * columns + n, m, rows, columns, total);
#pragma unroll
  for (int j = 0; j < W; ++j) sums[warp][lane * W + j] = total[j];
  __syncthreads();
  if (threadIdx.x < 32 * W && first + threadIdx.x < columns)
    partial[tile * columns + first + threadIdx.x] = tree<WARPS>(&sums[0][threadIdx.x], 32 * W);
}
#endif

#ifdef T_OUT
constexpr int LANES = 32, COLUMNS = 32;

extern "C" __global__ void __launch_bounds__(LANES * COLUMNS)
bias_grad_finish(const float* __restrict__ partial, T_OUT* __restrict__ db, long long tiles, long long columns) {
  __shared__ float lane[LANES][COLUMNS + 1];
  const long long n = (long long)blockIdx.x * COLUMNS + threadIdx.x;
  float total = 0.0f;
  if (n < columns)
#pragma unroll 8
    for (long long k = threadIdx.y; k < tiles; k += LANES) total += partial[k * columns + n];
  lane[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y == 0 && n < columns) db[n] = store<T_OUT>(tree<LANES>(&lane[0][threadIdx.x], COLUMNS + 1));
}
#endif
