// quantize, blocks of 128 over a matrix: 1 x 128 along the rows (row copy) and along the columns (column copy, stored
// transposed), or with SQUARE 128 x 128, where both copies hold the same numbers. Elements of one byte per code.
//
// Parallelisation: one block of threads per tile of 128 x 128, so that every quantization block lies in one tile and x
// is read once. A thread holds 4 rows x 16 columns in registers: a row of them is stored as 16 bytes of codes, and the
// 4 codes of a column are one word of the transposed tile, which goes through shared memory as codes, 16 KiB. Row
// maxima meet in the 8 lanes that share a row, column maxima in the warp and then in shared memory. Each scale is
// made by one thread, since its two divisions are dear.
// Bytes moved per element: sizeof(T_IN) in; per copy 1 out, and one scale per 128 (128 * 128) elements.
//
// Macros: those of quantize_tile.cuh, SQUARE.
#define TILE_COLUMNS 128
#define HELD 4
#include "quantize_tile.cuh"

constexpr int BLOCK = 128, WARPS = THREADS / 32;
static_assert(ROWS == BLOCK && COLUMNS == BLOCK && !Element::PACKED, "a tile is a block");
// Blocks per multiprocessor that registers must allow; conversions without an instruction for them take more.
constexpr int AT_ONCE = sizeof(T_IN) < 4 && NVFP_HARDWARE_FP8 ? 3 : 2;

template <class T> constexpr bool HALF = false;
template <> constexpr bool HALF<__half> = true;

// 16 neighbours as they lie in memory, PER of them in a word.
constexpr int PER = 4 / sizeof(T_IN), WORDS_HELD = PIECE / PER;
struct Values {
  unsigned word[WORDS_HELD];
};

// Element k of a word.
__device__ __forceinline__ float element(unsigned word, int k) {
  if constexpr (PER == 1) {
    return __uint_as_float(word);
  } else {
    union { unsigned short bits; T_IN value; } of = {(unsigned short)(word >> k * 16)};
    return load_float(of.value);
  }
}
__device__ __forceinline__ float value(const Values& v, int c) { return element(v.word[c / PER], c % PER); }

// Maxima are taken of words: 16-bit magnitudes two at a time, in the order of their bits. A magnitude that does not
// count (see block_magnitude) is 0.
__device__ __forceinline__ unsigned counted_word(unsigned word) {
  if constexpr (PER == 1) {
    return block_magnitude(__uint_as_float(word));
  } else {
    const unsigned magnitudes = word & 0x7fff7fffu;
    if constexpr (NAN_BLOCK) return magnitudes;
    constexpr unsigned INF = HALF<T_IN> ? 0x7c00u : 0x7f80u;
    const unsigned beyond = magnitudes + (0x7fffu - INF) * 0x10001u & 0x80008000u;  // the top bit of every NaN
    return magnitudes & ~(beyond - (beyond >> 15));
  }
}
__device__ __forceinline__ unsigned max_words(unsigned a, unsigned b) {
  if constexpr (PER == 1) return max(a, b);
  else return __vmaxu2(a, b);
}
// The bits, as float32, of the largest element of a word.
__device__ __forceinline__ unsigned widened(unsigned magnitude) { return __float_as_uint(element(magnitude, 0)); }

template <bool Whole>
__device__ __forceinline__ Values load_values(const Source& s, long long r, long long c) {
  Values v;
  const T_IN* from = s.data + r * s.stride + c;
  if (Whole || (r < s.rows && c + PIECE <= s.columns && s.aligned)) {
    const auto words = load_vec<unsigned, WORDS_HELD>(reinterpret_cast<const unsigned*>(from));
#pragma unroll
    for (int i = 0; i < WORDS_HELD; ++i) v.word[i] = words.at[i];
  } else {
#pragma unroll
    for (int i = 0; i < WORDS_HELD; ++i) v.word[i] = 0;
#pragma unroll
    for (int i = 0; i < PIECE; ++i) {
      if (r >= s.rows || c + i >= s.columns) continue;
      if constexpr (sizeof(T_IN) == 4) v.word[i] = reinterpret_cast<const unsigned*>(from)[i];
      else v.word[i / 2] |= (unsigned)reinterpret_cast<const unsigned short*>(from)[i] << i % 2 * 16;
    }
  }
  return v;
}

// One copy: its codes, its scales, its words.
struct Side {
  Target target;
  void* scale;
  const float *amax, *given;
  float* stored;
};

struct Tile {
  uint4 codes[COL ? COLUMNS : 1][BLOCK / 16];  // a row for each column of the matrix; the order within is `place`'s
  unsigned maxima[WARPS][SQUARE ? 4 : COLUMNS];
  float multiplier[COLUMNS];  // of the columns
};

// A new start for the compiler, between two passes over the values: what it would keep of the first, values widened to
// float32 and codes, is more than registers hold.
__device__ __forceinline__ void renew(Values& v) {
#ifdef __CUDA_ARCH__
#pragma unroll
  for (int i = 0; i < WORDS_HELD; ++i) asm volatile("" : "+r"(v.word[i]));
#endif
}

// A NaN multiplier marks a NaN block.
__device__ __forceinline__ float marked(const Block& b) { return b.bad ? __uint_as_float(0x7fc00000u) : b.multiplier; }
__device__ __forceinline__ Block unmarked(float multiplier) {
  return {multiplier, 0u, NAN_BLOCK && multiplier != multiplier};
}

// Four codes of one block as a word.
__device__ __forceinline__ unsigned encode4(float x0, float x1, float x2, float x3, const Block& b) {
  if (b.bad) return BAD_CODE * 0x01010101u;
  const unsigned low = encode2<Element, SATURATE>(__fmul_rn(x0, b.multiplier), __fmul_rn(x1, b.multiplier));
  return low | encode2<Element, SATURATE>(__fmul_rn(x2, b.multiplier), __fmul_rn(x3, b.multiplier)) << 16;
}

// One of two maxima, together with that of the lane `apart`, which takes the other.
__device__ __forceinline__ unsigned halved(unsigned low, unsigned high, bool upper, int apart) {
  const unsigned given = __shfl_xor_sync(0xffffffffu, upper ? low : high, apart);
  return max_words(upper ? high : low, given);
}

// Maxima of the tile's columns: over the thread's rows, over the lanes 16 and 8 apart, which share their columns out,
// then (`column_scales`) over the warps.
__device__ __forceinline__ void column_maxima(Tile& tile, const Values (&words)[HELD], int piece) {
  constexpr int N = WORDS_HELD;
  unsigned m[N];
  const bool far = threadIdx.x & 16, near = threadIdx.x & 8;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const unsigned pair = max_words(words[0].word[i], words[1].word[i]);
    m[i] = max_words(pair, max_words(words[2].word[i], words[3].word[i]));
  }
#pragma unroll
  for (int i = 0; i < N / 2; ++i) m[i] = halved(m[i], m[i + N / 2], far, 16);
#pragma unroll
  for (int i = 0; i < N / 4; ++i) m[i] = halved(m[i], m[i + N / 4], near, 8);
  const int first = piece + (far ? 8 : 0) + (near ? 4 : 0);
  unsigned* to = &tile.maxima[threadIdx.x / 32][first];
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
#pragma unroll
    for (int k = 0; k < PER; ++k) to[i * PER + k] = widened(m[i] >> 16 * k);
  }
}

// The maximum of a piece, as the bits of a float32.
__device__ __forceinline__ unsigned row_maximum(const Values& words) {
  unsigned m = words.word[0];
#pragma unroll
  for (int i = 1; i < WORDS_HELD; ++i) m = max_words(m, words.word[i]);
  return PER == 1 ? m : widened(max(m & 0xffffu, m >> 16));
}

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
  float f[PIECE];
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
#pragma unroll
  for (int k = 0; k < HELD; ++k) {
    renew(v[k]);
#pragma unroll
    for (int c = 0; c < PIECE; ++c) f[c] = value(v[k], c);
    const float shared = __shfl_sync(0xffffffffu, multiplier, threadIdx.x % 32 / 8 * 8 + k);
    store_piece<Whole>(row.target, o.r + first + k, o.c + piece, encode_piece(f, unmarked(shared)));
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

// Where the word of the thread's rows in column c of its piece lies in shared memory. Word `group` of a column goes to
// the place group ^ 4 * lane, so that the 32 lanes of a warp write to 32 banks.
__device__ __forceinline__ unsigned& transposed_word(Tile& tile, int c) {
  const int lane = threadIdx.x % 8, group = threadIdx.x / 8;
  return reinterpret_cast<unsigned*>(tile.codes)[(lane * PIECE + c) * 32 + (group ^ 4 * lane)];
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
  Codes codes[HELD];
  if constexpr (ROW) store_tile_scale(row.target, row.scale, o.r, o.c, b.stored);
  if constexpr (COL) store_tile_scale(col.target, col.scale, o.c, o.r, b.stored);
#pragma unroll
  for (int k = 0; k < HELD; ++k) {
    float f[PIECE];
#pragma unroll
    for (int c = 0; c < PIECE; ++c) f[c] = value(v[k], c);
    codes[k] = encode_piece(f, b);
    if constexpr (ROW) store_piece<Whole>(row.target, o.r + first + k, o.c + piece, codes[k]);
  }
  if constexpr (COL) {
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {  // 4 x 4 bytes, transposed in two steps
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned pick = half ? 0x7362 : 0x5140;
        const unsigned upper = __byte_perm(codes[0].word[w], codes[1].word[w], pick);
        const unsigned lower = __byte_perm(codes[2].word[w], codes[3].word[w], pick);
        transposed_word(tile, 4 * w + 2 * half) = __byte_perm(upper, lower, 0x5410);
        transposed_word(tile, 4 * w + 2 * half + 1) = __byte_perm(upper, lower, 0x7632);
      }
    }
  }
}

template <bool Whole>
__device__ __forceinline__ void quantize_tile(Tile& tile, const Source& source, const Origin& o, const Side& row,
                                              const Side& col, float epsilon, float overflow) {
  const int first = threadIdx.x / 8 * HELD, piece = threadIdx.x % 8 * PIECE;
  Values v[HELD];
#pragma unroll
  for (int k = 0; k < HELD; ++k) v[k] = load_values<Whole>(source, o.r + first + k, o.c + piece);
  unsigned maxima[HELD];
  {
    Values words[HELD];
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
#pragma unroll
      for (int i = 0; i < WORDS_HELD; ++i) words[k].word[i] = counted_word(v[k].word[i]);
      maxima[k] = row_maximum(words[k]);
    }
    if constexpr (COL && !SQUARE) column_maxima(tile, words, piece);
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
      for (int c = 0; c < PIECE; ++c) {
        const Block b = unmarked(tile.multiplier[piece + c]);
        transposed_word(tile, c) = encode4(value(v[0], c), value(v[1], c), value(v[2], c), value(v[3], c), b);
      }
    }
  }
  if constexpr (COL) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      const int c = threadIdx.x / 8 + k * 32, at = threadIdx.x % 8;
      const uint4 w = tile.codes[c][at ^ c / PIECE];
      store_piece<Whole>(col.target, o.c + c, o.r + at * PIECE, Codes{{w.x, w.y, w.z, w.w}});
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE)
quantize_block128(const T_IN* __restrict__ x, long long rows, long long columns, long long stride, int aligned,
                  unsigned char* row_codes, long long row_pitch, long long row_allocated, int row_aligned, void* row_scale,
                  const float* row_amax, const float* row_given, float* row_stored,
                  unsigned char* col_codes, long long col_pitch, long long col_allocated, int col_aligned, void* col_scale,
                  const float* col_amax, const float* col_given, float* col_stored, float epsilon, float overflow) {
  __shared__ Tile tile;
  const Source source{x, rows, columns, stride, aligned != 0};
  const Side row{{row_codes, rows, columns, row_pitch, row_allocated, row_aligned != 0}, row_scale, row_amax, row_given, row_stored};
  const Side col{{col_codes, columns, rows, col_pitch, col_allocated, col_aligned != 0}, col_scale, col_amax, col_given, col_stored};
  const Origin o = tile_origin(columns);
  if (tile_is_whole(source, o, row_aligned != 0, col_aligned != 0)) {
    quantize_tile<true>(tile, source, o, row, col, epsilon, overflow);
  } else {
    quantize_tile<false>(tile, source, o, row, col, epsilon, overflow);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (ROW) store_tensor_scale(row_amax, row_given, row_stored);
    if (COL) store_tensor_scale(col_amax, col_given, col_stored);
  }
}
