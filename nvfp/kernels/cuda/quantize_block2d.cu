// quantize, BLOCK x BLOCK blocks (16, 32 or 64) over a matrix: both copies hold the same numbers, the column copy
// transposed.
//
// Parallelisation: one block of threads per tile of 128 x 128, see quantize_tile128.cuh. A quantization block lies in
// one warp, whose lanes share its maximum by shuffles, or (64) in two. The codes are made once and transposed.
// Bytes moved per element: sizeof(T_IN) in; per copy 1 or 1/2 out, and one scale per BLOCK * BLOCK elements.
//
// Macros: those of quantize_tile128.cuh but ACROSS, BLOCK.
#if BLOCK == 16
#define ACROSS 8
#else
#define ACROSS 4
#endif
#include "quantize_tile128.cuh"

constexpr int SIDE = COLUMNS / BLOCK;      // blocks along a side of the tile
constexpr int LANES = BLOCK / PIECE;        // pieces of a row that share a block
static_assert(BLOCK % PIECE == 0 && COLUMNS % BLOCK == 0 && (BLOCK == 64 || BLOCK == DOWN * HELD), "whole blocks");

struct Tile {
  Transposed codes;
  unsigned maxima[WARPS];
  StoredScale scale[SIDE][SIDE];
};

// The maximum over the thread's block.
__device__ __forceinline__ unsigned block_maximum(Tile& tile, unsigned m) {
#pragma unroll
  for (int apart = 1; apart < LANES; apart *= 2) m = max(m, __shfl_xor_sync(ALL, m, apart));
#pragma unroll
  for (int apart = ACROSS; apart < 32; apart *= 2) m = max(m, __shfl_xor_sync(ALL, m, apart));
  if constexpr (BLOCK == 64) {  // the other half is below or above
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) tile.maxima[warp] = m;
    __syncthreads();
    m = max(m, tile.maxima[warp ^ ABREAST]);
  }
  return m;
}

// Stores the tile's scales of the copy whose tile starts at stored row r, column c, by 128 threads; tiles of scales have
// one for each row.
template <bool Turned>
__device__ __forceinline__ void write_scales(const Tile& tile, const Side& s, long long r, long long c) {
  const int k = threadIdx.x % 128;
  if constexpr (LAYOUT == TILES) {
    StoredScale x[SIDE];
#pragma unroll
    for (int i = 0; i < SIDE; ++i) x[i] = Turned ? tile.scale[i][k / BLOCK] : tile.scale[k / BLOCK][i];
    store_scales<BLOCK>(s, r + k, c, x);
  } else if (k < SIDE * SIDE) {
    const int i = k / SIDE, j = k % SIDE;
    const long long blocks = (s.target.columns + BLOCK - 1) / BLOCK;
    if (r + i * BLOCK < s.target.rows && c + j * BLOCK < s.target.columns)
      static_cast<StoredScale*>(s.scale)[square_scale_at(r / BLOCK + i, c / BLOCK + j, blocks)] = Turned ? tile.scale[j][i] : tile.scale[i][j];
  }
}

template <bool Whole>
__device__ __forceinline__ void quantize_tile(Tile& tile, const Source& source, const Origin& o, const Side& row,
                                              const Side& col, const Tensor& tensor, const Streams& random) {
  const int group = group_of_thread(), piece = piece_of_thread();
  const long long r = o.r + group * HELD, c = o.c + piece * PIECE;
  Values v[HELD];
  Codes codes[HELD];
  load_rows<Whole>(v, source, r, c);
  const Block b = block_scale(block_maximum(tile, thread_maximum(v)), tensor);
  if (group * HELD % BLOCK == 0 && piece * PIECE % BLOCK == 0)
    tile.scale[group * HELD / BLOCK][piece * PIECE / BLOCK] = (StoredScale)b.stored;
  unsigned char* to = code_address(row.target, r, c);
#pragma unroll
  for (int k = 0; k < HELD; ++k, to += row.target.pitch) {
    codes[k] = encode_values(v[k], marked(b), true, row_numbers<Whole>(random, (r + k) * source.columns + c));
    if constexpr (ROW) store_piece<Whole>(row.target, to, r + k, c, codes[k]);
  }
  if constexpr (COL) put_transposed(tile.codes, codes);
  __syncthreads();
  if constexpr (COL) store_columns<Whole>(tile.codes, col.target, o);
  if (ROW && threadIdx.x < 128) write_scales<false>(tile, row, o.r, o.c);
  if (COL && threadIdx.x >= 128) write_scales<true>(tile, col, o.c, o.r);
}

extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE)
quantize_block2d(const T_IN* __restrict__ x, long long rows, long long columns, long long stride, int aligned,
                 unsigned char* row_codes, long long row_pitch, long long row_allocated, int row_aligned, void* row_scale,
                 float* row_stored, unsigned char* col_codes, long long col_pitch, long long col_allocated,
                 int col_aligned, void* col_scale, float* col_stored, const float* amax, const float* given,
                 float epsilon, float overflow RANDOM_PARAMETERS) {
  __shared__ Tile tile;
  const Source source{x, rows, columns, stride, aligned != 0};
  const Side row{{row_codes, rows, columns, row_pitch, row_allocated, row_aligned != 0}, row_scale, amax, given, row_stored};
  const Side col{{col_codes, columns, rows, col_pitch, col_allocated, col_aligned != 0}, col_scale, amax, given, col_stored};
  const Streams random RANDOM_STREAMS;
  const Origin o = tile_origin(columns);
  const Tensor tensor = tensor_level(amax, given, epsilon, overflow);
  if (tile128_is_whole(source, o, row.target, col.target)) {
    quantize_tile<true>(tile, source, o, row, col, tensor, random);
  } else {
    quantize_tile<false>(tile, source, o, row, col, tensor, random);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (ROW) store_tensor_scale(amax, given, row_stored);
    if (COL) store_tensor_scale(amax, given, col_stored);
  }
}
