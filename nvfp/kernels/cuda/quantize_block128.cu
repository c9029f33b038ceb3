// quantize, blocks of 128 over a matrix: 1 x 128 along the rows (row copy) and along the columns (column copy, stored
// transposed), or with SQUARE 128 x 128, where both copies hold the same numbers. Elements of one byte per code.
//
// Parallelisation: one block of threads per tile, see quantize_tile128.cuh: a quantization block lies in one tile and x
// is read once. Row maxima meet in the 8 lanes that share a row, column maxima in the warp and then in shared memory.
// Each scale is made by one thread, since its two divisions are dear.
// Bytes moved per element: sizeof(T_IN) in; per copy 1 out, and one scale per 128 (128 * 128) elements.
//
// Macros: those of quantize_tile128.cuh, SQUARE.
#include "quantize_tile128.cuh"
#include "quantize_input.cuh"

constexpr int BLOCK = 128;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int BLOCKS_AT_ONCE = AT_ONCE < 2 ? AT_ONCE : 2;  // 3 take local memory there
#else
constexpr int BLOCKS_AT_ONCE = AT_ONCE;
#endif
static_assert(ACROSS == 8 && !Element::PACKED, "a warp holds whole rows");

struct Tile {
  Transposed codes;
  unsigned maxima[WARPS][SQUARE ? 4 : COLUMNS];
  float multiplier[COLUMNS];  // of the columns
  Sums sums;
};

// The scales of the tile's columns, one thread each.
__device__ __forceinline__ void column_scales(Tile& tile, const Side& col, const Origin& o, const Tensor& t) {
  const int c = threadIdx.x;
  if (c >= COLUMNS) return;
  unsigned m = tile.maxima[0][c];
#pragma unroll
  for (int w = 1; w < WARPS; ++w) m = max(m, tile.maxima[w][c]);
  const Block b = block_scale(m, t);
  tile.multiplier[c] = marked(b);
  const long long rows = col.target.rows, length = col.target.columns;
  if (o.c + c < rows && o.r < length)
    store_scale(col.scale, scale_at(o.c + c, o.r / BLOCK, rows, (length + BLOCK - 1) / BLOCK), b.stored);
}

// Scales and codes of the thread's rows, 1 x 128: lane k of the 8 that share rows makes the scale of row k.
template <bool Whole>
__device__ __forceinline__ void write_rows(const Side& row, const Origin& o, const Tensor& t, const unsigned (&maxima)[HELD],
                                           Values (&v)[HELD], int first, int piece) {
  const int lane = threadIdx.x % 8;
  unsigned mine = 0;
#pragma unroll
  for (int k = 0; k < HELD; ++k) {
    const unsigned m = lanes_max<8>(maxima[k]);
    if (lane == k) mine = m;
  }
  const Block b = block_scale(mine, t);
  const float multiplier = marked(b);
  const long long rows = row.target.rows, length = row.target.columns, r = o.r + first + lane;
  if (lane < HELD && r < rows && o.c < length)
    store_scale(row.scale, scale_at(r, o.c / BLOCK, rows, (length + BLOCK - 1) / BLOCK), b.stored);
  unsigned char* to = code_address(row.target, o.r + first, o.c + piece);
#pragma unroll
  for (int k = 0; k < HELD; ++k, to += row.target.pitch) {
    renew(v[k]);
    const float shared = __shfl_sync(ALL, multiplier, threadIdx.x % 32 / 8 * 8 + k);
    store_piece<Whole>(row.target, to, o.r + first + k, o.c + piece, encode_values(v[k], shared, true));
  }
}

// The scale of the tile at stored row r, column c of a copy.
__device__ __forceinline__ void store_tile_scale(const Target& t, void* scale, long long r, long long c, unsigned stored) {
  const long long blocks = (t.columns + BLOCK - 1) / BLOCK;
  if (r >= t.rows || c >= t.columns) return;  // an empty matrix
  if constexpr (LAYOUT == TILES) {            // once per row
    if (threadIdx.x < BLOCK && r + threadIdx.x < t.rows)
      store_scale(scale, tile_offset(r + threadIdx.x, c / BLOCK, blocks), stored);
  } else if (threadIdx.x == 0) {
    store_scale(scale, square_scale_at(r / BLOCK, c / BLOCK, blocks), stored);
  }
}

// The scale of the tile, 128 x 128, the codes of the thread's rows, and their words of the transposed tile.
template <bool Whole>
__device__ __forceinline__ void write_square(Tile& tile, const Side& row, const Side& col, const Origin& o,
                                              const Tensor& t, const unsigned (&maxima)[HELD], Values (&v)[HELD],
                                              int first, int piece) {
  unsigned m = lanes_max<32>(max(max(maxima[0], maxima[1]), max(maxima[2], maxima[3])));
  if (threadIdx.x % 32 == 0) tile.maxima[threadIdx.x / 32][0] = m;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < WARPS; ++w) m = max(m, tile.maxima[w][0]);
  const Block b = block_scale(m, t);
  const float multiplier = marked(b);
  Codes codes[HELD];
  if constexpr (ROW) store_tile_scale(row.target, row.scale, o.r, o.c, b.stored);
  if constexpr (COL) store_tile_scale(col.target, col.scale, o.c, o.r, b.stored);
  unsigned char* to = code_address(row.target, o.r + first, o.c + piece);
#pragma unroll
  for (int k = 0; k < HELD; ++k, to += row.target.pitch) {
    codes[k] = encode_values(v[k], multiplier, true);
    if constexpr (ROW) store_piece<Whole>(row.target, to, o.r + first + k, o.c + piece, codes[k]);
  }
  if constexpr (COL) put_transposed(tile.codes, codes);
}

template <bool Whole>
__device__ __forceinline__ void quantize_tile(Tile& tile, const Source& source, const Origin& o, const Side& row,
                                              const Side& col, float epsilon, float overflow, const Input& input, float* partial) {
  const int first = group_of_thread() * HELD, piece = piece_of_thread() * PIECE;
  Values v[HELD];
  input.template load<Whole>(v, source, o.r + first, o.c + piece);
  sum_columns(tile.sums, v, source, o, partial);
  unsigned maxima[HELD], columns[WORDS_HELD];
  thread_maxima(v, maxima, columns);
#pragma unroll
  for (int k = 0; k < HELD; ++k) maxima[k] = widened(folded(maxima[k]));
  if constexpr (COL && !SQUARE) {
    unsigned own[OWN];
    column_maxima(columns, own);
#pragma unroll
    for (int j = 0; j < OWN; ++j) tile.maxima[threadIdx.x / 32][piece + own_columns() + j] = own[j];
  }
  const Side& any = ROW ? row : col;
  Tensor tensor = tensor_level(any.amax, any.given, epsilon, overflow);
  if constexpr (SQUARE) {
    write_square<Whole>(tile, row, col, o, tensor, maxima, v, first, piece);
  } else {
    if constexpr (ROW) write_rows<Whole>(row, o, tensor, maxima, v, first, piece);
    if constexpr (COL) {
      __syncthreads();
      if (ROW && (col.amax != row.amax || col.given != row.given))
        tensor = tensor_level(col.amax, col.given, epsilon, overflow);
      column_scales(tile, col, o, tensor);
      __syncthreads();
#pragma unroll
      for (int k = 0; k < HELD; ++k) renew(v[k]);
#pragma unroll
      for (int c = 0; c < PIECE; c += 2)
        encode_columns(tile.codes, v, c, tile.multiplier[piece + c], tile.multiplier[piece + c + 1], true, {});
    }
  }
  if constexpr (COL) {
    __syncthreads();
    store_columns<Whole>(tile.codes, col.target, o);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
quantize_block128(const T_IN* __restrict__ x, long long rows, long long columns, long long stride, int aligned,
                  unsigned char* row_codes, long long row_pitch, long long row_allocated, int row_aligned, void* row_scale,
                  const float* row_amax, const float* row_given, float* row_stored,
                  unsigned char* col_codes, long long col_pitch, long long col_allocated, int col_aligned, void* col_scale,
                  const float* col_amax, const float* col_given, float* col_stored, float epsilon, float overflow
                  INPUT_PARAMETERS BIAS_PARAMETERS) {
  __shared__ Tile tile;
  const Source source{x, rows, columns, stride, aligned != 0};
  const Side row{{row_codes, rows, columns, row_pitch, row_allocated, row_aligned != 0}, row_scale, row_amax, row_given, row_stored};
  const Side col{{col_codes, columns, rows, col_pitch, col_allocated, col_aligned != 0}, col_scale, col_amax, col_given, col_stored};
  const Input input INPUT_ARGUMENTS;
  const long long index = input.tile(source, blockIdx.x);
  const Origin o = tile_origin(columns, (unsigned)index);
  if (index < 0) {
  } else if (tile128_is_whole(source, o, row.target, col.target)) {
    quantize_tile<true>(tile, source, o, row, col, epsilon, overflow, input, BIAS_ARGUMENT);
  } else {
    quantize_tile<false>(tile, source, o, row, col, epsilon, overflow, input, BIAS_ARGUMENT);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (ROW) store_tensor_scale(row_amax, row_given, row_stored);
    if (COL) store_tensor_scale(col_amax, col_given, col_stored);
  }
}
