// quantize, 1 x BLOCK blocks along the rows of a matrix (row copy) and along its columns (column copy, stored
// transposed): MX, NVFP4 and their kin. BLOCK is 16 .. 256 (with the column copy 64: quantize_pair.cu makes 16 and 32).
//
// Parallelisation: one block of threads per tile, see quantize_tile.cuh. A quantization block is one piece, or
// pieces of neighbouring lanes that share their maximum by shuffles, in the rows as in the columns.
// Bytes moved per element: sizeof(T_IN) in; per copy 1 or 1/2 out, and one scale per BLOCK elements.
#define TILE_COLUMNS (COL ? 64 : 256)
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

// One copy: its codes, its scales, its words.
struct Side {
  Target target;
  void* scale;
  const float *amax, *given;
  float* stored;
};

// The codes and scale of one piece of a copy; `m` is the maximum over the piece's whole block.
template <bool Whole>
__device__ __forceinline__ void write(const Side& s, const Tensor& t, const float (&x)[PIECE], unsigned m, long long r, long long c,
                                      const Numbers& numbers) {
  const Block b = block_scale(m, t);
  if (c % BLOCK == 0 && (Whole || (r < s.target.rows && c < s.target.columns))) {
    store_scale(s.scale, scale_at(r, c / BLOCK, s.target.rows, (s.target.columns + BLOCK - 1) / BLOCK), b.stored);
  }
  store_piece<Whole>(s.target, r, c, encode_piece(x, b, numbers));
}

template <bool Whole>
__device__ __forceinline__ void quantize_tile(Shared<T_IN>& tile, NumberTile& numbers, const Source& source, const Origin& o,
                                              const Side& row, const Side& col, const Streams& random, float epsilon,
                                              float overflow) {
  const int i = threadIdx.x / PIECES, j = threadIdx.x % PIECES * PIECE;
  const Vec<T_IN, PIECE> v = load_piece<Whole>(source, o.r + i, o.c + j);
  Tensor tensor;
  float f[PIECE];
  const long long e = (o.r + i) * source.columns + o.c + j;
  if constexpr (COL) {
    tile.write(i, j, v);
    numbers.write(i, j, col_numbers(random, e));
  }
  if constexpr (ROW) {
    tensor = tensor_level(row.amax, row.given, epsilon, overflow);
#pragma unroll
    for (int k = 0; k < PIECE; ++k) f[k] = load_float(v.at[k]);
    write<Whole>(row, tensor, f, lanes_max<LANES>(piece_max(f)), o.r + i, o.c + j, row_numbers(random, e));
  }
  if constexpr (COL) {
    __syncthreads();
    if (!ROW || col.amax != row.amax || col.given != row.given) tensor = tensor_level(col.amax, col.given, epsilon, overflow);
    constexpr int ACROSS = COLUMNS / SPREAD;  // warps side by side
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int tc = warp % ACROSS * SPREAD + lane % SPREAD;
    const int tr = warp / ACROSS * BLOCK + lane / SPREAD * PIECE;
    T_IN raw[PIECE];
    tile.column(tr, tc, raw);
#pragma unroll
    for (int k = 0; k < PIECE; ++k) f[k] = load_float(raw[k]);
    write<Whole>(col, tensor, f, column_max(piece_max(f)), o.c + tc, o.r + tr, numbers.column(tr, tc));
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
quantize_block1d(const T_IN* __restrict__ x, long long rows, long long columns, long long stride, int aligned,
                 unsigned char* row_codes, long long row_pitch, long long row_allocated, int row_aligned, void* row_scale,
                 const float* row_amax, const float* row_given, float* row_stored,
                 unsigned char* col_codes, long long col_pitch, long long col_allocated, int col_aligned, void* col_scale,
                 const float* col_amax, const float* col_given, float* col_stored, float epsilon, float overflow
                 RANDOM_PARAMETERS) {
  __shared__ Shared<T_IN> tile;
  __shared__ NumberTile numbers;
  const Streams random RANDOM_STREAMS;
  const Source source{x, rows, columns, stride, aligned != 0};
  const Side row{{row_codes, rows, columns, row_pitch, row_allocated, row_aligned != 0}, row_scale, row_amax, row_given, row_stored};
  const Side col{{col_codes, columns, rows, col_pitch, col_allocated, col_aligned != 0}, col_scale, col_amax, col_given, col_stored};
  const Origin o = tile_origin(columns);
  if (tile_is_whole(source, o, row_aligned != 0, col_aligned != 0)) {
    quantize_tile<true>(tile, numbers, source, o, row, col, random, epsilon, overflow);
  } else {
    quantize_tile<false>(tile, numbers, source, o, row, col, random, epsilon, overflow);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (ROW) store_tensor_scale(row_amax, row_given, row_stored);
    if (COL) store_tensor_scale(col_amax, col_given, col_stored);
  }
}
