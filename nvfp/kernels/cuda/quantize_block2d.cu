// quantize, BLOCK x BLOCK blocks (16, 32 or 64) over a matrix: both copies hold the same numbers, the column copy
// transposed.
//
// Parallelisation: one block of threads per tile of 64 x 64, see quantize_tile.cuh. Maxima of the tile's blocks
// meet in shared memory (integer maxima: exact in any order); the codes are made once and transposed as bytes.
// Bytes moved per element: sizeof(T_IN) in; per copy 1 or 1/2 out, and one scale per BLOCK * BLOCK elements.
#define WIDE 0
#include "quantize_tile.cuh"

constexpr int SIDE = COLUMNS / BLOCK;  // blocks along a side of the tile
static_assert(BLOCK % PIECE == 0 && COLUMNS % BLOCK == 0 && ROWS == COLUMNS, "whole blocks");

extern "C" __global__ void __launch_bounds__(THREADS)
quantize_block2d(const T_IN* __restrict__ x, long long rows, long long columns, long long stride, int aligned,
                 unsigned char* row_codes, long long row_pitch, long long row_allocated, int row_aligned, void* row_scale,
                 float* row_stored, unsigned char* col_codes, long long col_pitch, long long col_allocated,
                 int col_aligned, void* col_scale, float* col_stored, const float* amax, const float* given,
                 float epsilon, float overflow) {
  __shared__ Shared<unsigned char> tile;
  __shared__ unsigned maxima[SIDE * SIDE];
  const Source source{x, rows, columns, stride, aligned != 0};
  const auto [r0, c0] = tile_origin(columns);
  const int i = threadIdx.x / PIECES, j = threadIdx.x % PIECES * PIECE;
  const Tensor tensor = tensor_level(amax, given, epsilon, overflow);

  if (threadIdx.x < SIDE * SIDE) maxima[threadIdx.x] = 0;
  const Vec<T_IN, PIECE> v = load_piece(source, r0 + i, c0 + j);
  float f[PIECE];
#pragma unroll
  for (int k = 0; k < PIECE; ++k) f[k] = load_float(v.at[k]);
  __syncthreads();
  atomicMax(&maxima[i / BLOCK * SIDE + j / BLOCK], piece_max(f));
  __syncthreads();
  const Block b = block_scale(maxima[i / BLOCK * SIDE + j / BLOCK], tensor);
  const Codes codes = encode_piece(f, b);

  const long long r = r0 + i, c = c0 + j;
  const bool inside = r < rows && c < columns && j % BLOCK == 0;
  if constexpr (ROW) {
    const Target target{row_codes, rows, columns, row_pitch, row_allocated, row_aligned != 0};
    store_piece(target, r, c, codes);
    const long long blocks = (columns + BLOCK - 1) / BLOCK;
    if (inside && TILES) store_scale(row_scale, tile_offset(r, c / BLOCK, blocks), b.stored);  // once per row
    if (inside && !TILES && i % BLOCK == 0) store_scale(row_scale, r / BLOCK * blocks + c / BLOCK, b.stored);
    if (blockIdx.x == 0 && threadIdx.x == 0) store_tensor_scale(amax, given, row_stored);
  }
  if constexpr (COL) {
    Vec<unsigned char, PIECE> bytes;
#pragma unroll
    for (int k = 0; k < PIECE; ++k) bytes.at[k] = (unsigned char)code_at(codes, k);
    tile.write(i, j, bytes);
    __syncthreads();
    const int tc = threadIdx.x % COLUMNS, tr = threadIdx.x / COLUMNS * PIECE;
    unsigned char column[PIECE];
    tile.column(tr, tc, column);
    const Target target{col_codes, columns, rows, col_pitch, col_allocated, col_aligned != 0};
    store_piece(target, c0 + tc, r0 + tr, gather_piece(column));
    const long long blocks = (rows + BLOCK - 1) / BLOCK;
    if constexpr (TILES) {  // once per stored row: the thread of column tc and block row tr
      const Block at = block_scale(maxima[tr / BLOCK * SIDE + tc / BLOCK], tensor);
      if (tr % BLOCK == 0 && c0 + tc < columns && r0 + tr < rows)
        store_scale(col_scale, tile_offset(c0 + tc, (r0 + tr) / BLOCK, blocks), at.stored);
    } else if (inside && i % BLOCK == 0) {
      store_scale(col_scale, c / BLOCK * blocks + r / BLOCK, b.stored);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) store_tensor_scale(amax, given, col_stored);
  }
}
