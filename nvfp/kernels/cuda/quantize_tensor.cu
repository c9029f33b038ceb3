// quantize, one float32 scale per tensor: codes = cast(fl(x * multiplier)), row copy, transposed copy, or both.
//
// GIVEN=1: the multiplier is a word of scaling state (delayed scaling), and the largest magnitude of x is recorded
// in the same pass. GIVEN=0: the multiplier follows from an amax word (current scaling). Either way its inverse,
// the decode factor, is stored beside the codes.
// Parallelisation: one block of threads per tile: of 16 x 256 for row copies alone (quantize_tile.cuh), else of
// 128 x 128 (quantize_tile128.cuh); codes are made once. What follows an amax walks the tiles backwards: the pass that
// took it has left the end of x in L2.
// Bytes moved per element: sizeof(T_IN) in; per copy 1 (or 1/2) out.
//
// AMAX=1 makes the pass that such an amax comes from where there is an input function: `quantize_input_amax` raises words to
// the largest magnitude of the function's result, which is not written. SKIP_INF: infinities do not count. ROW and COL are 0.
// Bytes moved per element: what the function reads.
#define LAYOUT 0
#ifndef AMAX
#define AMAX 0
#endif
#ifndef INPUT
#define INPUT 0
#endif
#ifndef BIAS_GRAD
#define BIAS_GRAD 0
#endif
#define SQUARES (COL || INPUT || BIAS_GRAD)  // tiles of 128 x 128
#if SQUARES
#include "quantize_tile128.cuh"
#include "quantize_input.cuh"
#define BLOCKS_AT_ONCE AT_ONCE
#else
#define TILE_COLUMNS 256
#include "quantize_tile.cuh"
#define BLOCKS_AT_ONCE RESIDENT
#define INPUT_PARAMETERS
#define BIAS_PARAMETERS
#endif

#if !AMAX
// Both write the codes of a tile and return (with GIVEN) the largest magnitude among the thread's elements.
#if SQUARES
struct Tile {
  Transposed codes;
  Sums sums;
};

template <bool Whole>
__device__ __forceinline__ unsigned quantize_tile(Tile& tile, const Source& source, const Origin& o, const Target& row,
                                                  const Target& col, const Block& b, const Streams& random,
                                                  const Input& input, float* partial) {
  const long long r = o.r + group_of_thread() * HELD, c = o.c + piece_of_thread() * PIECE;
  Values v[HELD];
  Codes codes[HELD];
  input.template load<Whole>(v, source, r, c);
  sum_columns(tile.sums, v, source, o, partial);
  const unsigned m = GIVEN ? thread_maximum(v) : 0u;
  unsigned char* to = code_address(row, r, c);
#pragma unroll
  for (int k = 0; k < HELD; ++k, to += row.pitch) {
    codes[k] = encode_values(v[k], b.multiplier, false, row_numbers(random, (r + k) * source.columns + c));
    if constexpr (ROW) store_piece<Whole>(row, to, r + k, c, codes[k]);
  }
  if constexpr (COL) {
    put_transposed(tile.codes, codes);
    __syncthreads();
    store_columns<Whole>(tile.codes, col, o);
  }
  return m;
}
#else
struct Tile {};

template <bool Whole>
__device__ __forceinline__ unsigned quantize_tile(Tile&, const Source& source, const Origin& o, const Target& row,
                                                  const Target&, const Block& b, const Streams& random) {
  const int i = threadIdx.x / PIECES, j = threadIdx.x % PIECES * PIECE;
  const Vec<T_IN, PIECE> v = load_piece<Whole>(source, o.r + i, o.c + j);
  float f[PIECE];
#pragma unroll
  for (int k = 0; k < PIECE; ++k) f[k] = load_float(v.at[k]);
  const unsigned m = GIVEN ? piece_max(f) : 0u;
  store_piece<Whole>(row, o.r + i, o.c + j, encode_piece(f, b, row_numbers(random, (o.r + i) * source.columns + o.c + j)));
  return m;
}
#endif

__device__ __forceinline__ bool is_whole(const Source& s, const Origin& o, const Target& row, const Target& col) {
#if SQUARES
  return tile128_is_whole(s, o, row, col);
#else
  return tile_is_whole(s, o, row.aligned, col.aligned);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
quantize_tensor(const T_IN* __restrict__ x, long long rows, long long columns, long long stride, int aligned,
                unsigned char* row_codes, long long row_pitch, long long row_allocated, int row_aligned,
                unsigned char* col_codes, long long col_pitch, long long col_allocated, int col_aligned,
                const float* word, float epsilon, float* stored, float* row_recorded, float* col_recorded
                RANDOM_PARAMETERS INPUT_PARAMETERS BIAS_PARAMETERS) {
  __shared__ Tile tile;
  const Source source{x, rows, columns, stride, aligned != 0};
  const Target row{row_codes, rows, columns, row_pitch, row_allocated, row_aligned != 0};
  const Target col{col_codes, columns, rows, col_pitch, col_allocated, col_aligned != 0};
  const Streams random RANDOM_STREAMS;
  const unsigned walked = GIVEN ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
#if SQUARES
  const Input input INPUT_ARGUMENTS;
  const long long index = input.tile(source, walked);
#define INPUT_OF_TILE , input, BIAS_ARGUMENT
#else
  const long long index = walked;
#define INPUT_OF_TILE
#endif
  const Origin o = tile_origin(columns, (unsigned)index);
  Block b{*word, 0u, false};
  if constexpr (!GIVEN) b.multiplier = fp32_multiplier<Element, POWER_OF_TWO>(*word, epsilon, __uint_as_float(0x7f7fffffu));
  if (blockIdx.x == 0 && threadIdx.x == 0) *stored = __fdiv_rn(1.0f, b.multiplier);

  unsigned m = 0;
  if (index < 0) {
  } else if (is_whole(source, o, row, col)) {
    m = quantize_tile<true>(tile, source, o, row, col, b, random INPUT_OF_TILE);
  } else {
    m = quantize_tile<false>(tile, source, o, row, col, b, random INPUT_OF_TILE);
  }
  if (GIVEN && (row_recorded != nullptr || col_recorded != nullptr)) {
    m = block_max<THREADS>(m);
    if (threadIdx.x == 0) {
      if (row_recorded != nullptr) record_max(row_recorded, m);
      if (col_recorded != nullptr) record_max(col_recorded, m);
    }
  }
}
#else

// A magnitude that does not count is 0.
__device__ __forceinline__ unsigned counted(unsigned word) {
  const unsigned m = magnitudes(word);
  if constexpr (PER == 1) return m > INFINITE - SKIP_INF ? 0u : m;
  const unsigned beyond = m + (0x7fffu - INFINITE + SKIP_INF) * 0x10001u & 0x80008000u;
  return m & ~(beyond - (beyond >> 15));
}

extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE)
quantize_input_amax(const T_IN* __restrict__ x, long long rows, long long columns, long long stride, int aligned, float* word,
                    float* also, float* and_also INPUT_PARAMETERS) {
  const Source source{x, rows, columns, stride, aligned != 0};
  const Input input INPUT_ARGUMENTS;
  const Origin o = tile_origin(columns, (unsigned)input.tile(source, blockIdx.x));
  const long long r = o.r + group_of_thread() * HELD, c = o.c + piece_of_thread() * PIECE;
  Values v[HELD];
  if (tile_is_whole(source, o, true, true)) input.template load<true>(v, source, r, c);
  else input.template load<false>(v, source, r, c);
  unsigned m = 0;
#pragma unroll
  for (int k = 0; k < HELD; ++k) {
#pragma unroll
    for (int i = 0; i < WORDS_HELD; ++i) m = max_words(m, counted(v[k].word[i]));
  }
  m = block_max<THREADS>(widened(folded(m)));
  if (threadIdx.x != 0) return;
  if (word != nullptr) record_max(word, m);
  if (also != nullptr) record_max(also, m);
  if (and_also != nullptr) record_max(and_also, m);
}
#endif
