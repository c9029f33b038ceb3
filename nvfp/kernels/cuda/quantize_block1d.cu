// quantize, 1 x BLOCK blocks along the rows of a matrix (row copy) and along its columns (column copy, stored
// transposed): MX, NVFP4 and their kin. BLOCK is 16 .. 256 (with the column copy 16, 32 or 64).
//
// Parallelisation: one block of threads per tile, see quantize_tile.cuh. A quantization block is one piece, or
// pieces of neighbouring lanes that share their maximum by shuffles, in the rows as in the columns.
// Bytes moved per element: sizeof(T_IN) in; per copy 1 or 1/2 out, and one scale per BLOCK elements.
#define WIDE (!COL)
#include "quantize_tile.cuh"

constexpr int LANES = BLOCK / PIECE;     // that share a block
constexpr int SPREAD = 32 / LANES;       // columns of a warp in the column copy
static_assert(BLOCK % PIECE == 0 && 32 % LANES == 0 && (!COL || ROWS % BLOCK == 0) && COLUMNS % BLOCK == 0, "whole blocks");

// Maximum over the lanes that hold one column block: lanes l, l + SPREAD, l + 2 * SPREAD, ...
__device__ __forceinline__ unsigned column_max(unsigned m) {
#pragma unroll
  for (int k = SPREAD; k < 32; k *= 2) m = max(m, __shfl_xor_sync(0xffffffffu, m, k));
  return m;
}

extern "C" __global__ void __launch_bounds__(THREADS)
quantize_block1d(const T_IN* __restrict__ x, long long rows, long long columns, long long stride, int aligned,
                 unsigned char* row_codes, long long row_pitch, long long row_allocated, int row_aligned, void* row_scale,
                 const float* row_amax, const float* row_given, float* row_stored,
                 unsigned char* col_codes, long long col_pitch, long long col_allocated, int col_aligned, void* col_scale,
                 const float* col_amax, const float* col_given, float* col_stored, float epsilon, float overflow) {
  __shared__ Shared<T_IN> tile;
  const Source source{x, rows, columns, stride, aligned != 0};
  const auto [r0, c0] = tile_origin(columns);
  const int i = threadIdx.x / PIECES, j = threadIdx.x % PIECES * PIECE;

  const Vec<T_IN, PIECE> v = load_piece(source, r0 + i, c0 + j);
  if constexpr (COL) tile.write(i, j, v);
  if constexpr (ROW) {
    const Target target{row_codes, rows, columns, row_pitch, row_allocated, row_aligned != 0};
    const Tensor tensor = tensor_level(row_amax, row_given, epsilon, overflow);
    float f[PIECE];
#pragma unroll
    for (int k = 0; k < PIECE; ++k) f[k] = load_float(v.at[k]);
    const Block b = block_scale(lanes_max<LANES>(piece_max(f)), tensor);
    const long long r = r0 + i, c = c0 + j;
    if (j % BLOCK == 0 && r < rows && c < columns) {
      store_scale(row_scale, scale_at(r, c / BLOCK, (columns + BLOCK - 1) / BLOCK), b.stored);
    }
    store_piece(target, r, c, encode_piece(f, b));
    if (blockIdx.x == 0 && threadIdx.x == 0) store_tensor_scale(row_amax, row_given, row_stored);
  }
  if constexpr (COL) {
    __syncthreads();
    const Target target{col_codes, columns, rows, col_pitch, col_allocated, col_aligned != 0};
    const Tensor tensor = tensor_level(col_amax, col_given, epsilon, overflow);
    constexpr int ACROSS = COLUMNS / SPREAD;  // warps side by side
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int tc = warp % ACROSS * SPREAD + lane % SPREAD;
    const int tr = warp / ACROSS * BLOCK + lane / SPREAD * PIECE;
    T_IN raw[PIECE];
    tile.column(tr, tc, raw);
    float f[PIECE];
#pragma unroll
    for (int k = 0; k < PIECE; ++k) f[k] = load_float(raw[k]);
    const Block b = block_scale(column_max(piece_max(f)), tensor);
    const long long r = c0 + tc, c = r0 + tr;  // in stored order
    if (tr % BLOCK == 0 && r < columns && c < rows) {
      store_scale(col_scale, scale_at(r, c / BLOCK, (rows + BLOCK - 1) / BLOCK), b.stored);
    }
    store_piece(target, r, c, encode_piece(f, b));
    if (blockIdx.x == 0 && threadIdx.x == 0) store_tensor_scale(col_amax, col_given, col_stored);
  }
}
