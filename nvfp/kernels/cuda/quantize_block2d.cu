// quantize, BLOCK x BLOCK blocks (16, 32 or 64) over a matrix: both copies hold the same numbers, the column copy
// transposed.
//
// Parallelisation: one block of threads per tile of 64 x 64, see quantize_tile.cuh. Maxima of the tile's blocks
// meet in shared memory (integer maxima: exact in any order); the codes are made once and transposed as bytes.
// Bytes moved per element: sizeof(T_IN) in; per copy 1 or 1/2 out, and one scale per BLOCK * BLOCK elements.
#define TILE_COLUMNS 64
#include "quantize_tile.cuh"

constexpr int SIDE = COLUMNS / BLOCK;  // blocks along a side of the tile
static_assert(BLOCK % PIECE == 0 && COLUMNS % BLOCK == 0 && ROWS == COLUMNS, "whole blocks");

struct Side {
  Target target;
  void* scale;
  float* stored;
};

struct Tiles {
  Shared<unsigned char> codes;
  unsigned maxima[SIDE * SIDE];
};

template <bool Whole>
__device__ __forceinline__ void quantize_tile(Tiles& tile, const Source& source, const Origin& o, const Side& row,
                                              const Side& col, const Tensor& tensor, const Streams& random) {
  const int i = threadIdx.x / PIECES, j = threadIdx.x % PIECES * PIECE;
  const Vec<T_IN, PIECE> v = load_piece<Whole>(source, o.r + i, o.c + j);
  float f[PIECE];
#pragma unroll
  for (int k = 0; k < PIECE; ++k) f[k] = load_float(v.at[k]);
  __syncthreads();  // the maxima are zero
  atomicMax(&tile.maxima[i / BLOCK * SIDE + j / BLOCK], piece_max(f));
  __syncthreads();
  const Block b = block_scale(tile.maxima[i / BLOCK * SIDE + j / BLOCK], tensor);
  const Codes codes = encode_piece(f, b, row_numbers(random, (o.r + i) * source.columns + o.c + j));

  const long long r = o.r + i, c = o.c + j;
  const bool inside = j % BLOCK == 0 && (Whole || (r < source.rows && c < source.columns));
  if constexpr (ROW) {
    store_piece<Whole>(row.target, r, c, codes);
    const long long blocks = (source.columns + BLOCK - 1) / BLOCK;
    if constexpr (LAYOUT == TILES) {  // once per row
      if (inside) store_scale(row.scale, tile_offset(r, c / BLOCK, blocks), b.stored);
    } else if (inside && i % BLOCK == 0) {
      store_scale(row.scale, square_scale_at(r / BLOCK, c / BLOCK, blocks), b.stored);
    }
  }
  if constexpr (COL) {
    Vec<unsigned char, PIECE> bytes;
#pragma unroll
    for (int k = 0; k < PIECE; ++k) bytes.at[k] = (unsigned char)code_at(codes, k);
    tile.codes.write(i, j, bytes);
    __syncthreads();
    const int tc = threadIdx.x % COLUMNS, tr = threadIdx.x / COLUMNS * PIECE;
    unsigned char column[PIECE];
    tile.codes.column(tr, tc, column);
    store_piece<Whole>(col.target, o.c + tc, o.r + tr, gather_piece(column));
    const long long blocks = (source.rows + BLOCK - 1) / BLOCK;
    if constexpr (LAYOUT == TILES) {  // once per stored row: the thread of column tc and block row tr
      const Block at = block_scale(tile.maxima[tr / BLOCK * SIDE + tc / BLOCK], tensor);
      if (tr % BLOCK == 0 && (Whole || (o.c + tc < source.columns && o.r + tr < source.rows)))
        store_scale(col.scale, tile_offset(o.c + tc, (o.r + tr) / BLOCK, blocks), at.stored);
    } else if (inside && i % BLOCK == 0) {
      store_scale(col.scale, square_scale_at(c / BLOCK, r / BLOCK, blocks), b.stored);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
quantize_block2d(const T_IN* __restrict__ x, long long rows, long long columns, long long stride, int aligned,
                 unsigned char* row_codes, long long row_pitch, long long row_allocated, int row_aligned, void* row_scale,
                 float* row_stored, unsigned char* col_codes, long long col_pitch, long long col_allocated,
                 int col_aligned, void* col_scale, float* col_stored, const float* amax, const float* given,
                 float epsilon, float overflow RANDOM_PARAMETERS) {
  __shared__ Tiles tile;
  const Source source{x, rows, columns, stride, aligned != 0};
  const Side row{{row_codes, rows, columns, row_pitch, row_allocated, row_aligned != 0}, row_scale, row_stored};
  const Side col{{col_codes, columns, rows, col_pitch, col_allocated, col_aligned != 0}, col_scale, col_stored};
  const Streams random RANDOM_STREAMS;
  const Origin o = tile_origin(columns);
  const Tensor tensor = tensor_level(amax, given, epsilon, overflow);
  if (threadIdx.x < SIDE * SIDE) tile.maxima[threadIdx.x] = 0;
  if (tile_is_whole(source, o, row_aligned != 0, col_aligned != 0)) {
    quantize_tile<true>(tile, source, o, row, col, tensor, random);
  } else {
    quantize_tile<false>(tile, source, o, row, col, tensor, random);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (ROW) store_tensor_scale(amax, given, row_stored);
    if (COL) store_tensor_scale(amax, given, col_stored);
  }
}
