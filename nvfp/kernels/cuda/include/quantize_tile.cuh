// Pieces of the tile variants of quantize. A tile of ROWS x COLUMNS elements belongs to one block of 256 threads;
// each thread owns a piece of 16 neighbours in a row (or HELD of them): two 16-byte loads of 16-bit elements, one 16-byte
// store of 8-bit codes. For a column copy the tile also goes through shared memory, and each thread then owns 16
// neighbours in a column, which are neighbours in the transposed codes.
//
// Macros: T_IN, those of format.cuh, ROW, COL (which copies are written), LAYOUT (of the scales: PLAIN, TILES or
// K_MAJOR, see nvfp/dtypes/scale_layout.py), TILE_COLUMNS, HELD (pieces of a thread, 1 unless set), ROUNDING (0 nearest
// even, 1 by random numbers, 2 toward zero; 0 unless set).
#pragma once
#include "format.cuh"
#include "tiles.cuh"
#include "vec.cuh"
#ifndef ROUNDING
#define ROUNDING 0
#endif
#if ROUNDING
#include "stochastic.cuh"
#define RANDOM_PARAMETERS , unsigned long long key, unsigned row_stream, unsigned col_stream, const long long* step
#define RANDOM_STREAMS {random_stream(key, row_stream, step), random_stream(key, col_stream, step)}
#else
#define RANDOM_PARAMETERS
#define RANDOM_STREAMS {}
#endif

constexpr int THREADS = 256;
// Blocks per multiprocessor that registers must allow: their loads in flight hide the latency of memory. As many as
// go without local memory, which NVRTC 13.5 uses for two-level scales at 6.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int RESIDENT = ROUNDING ? 4 : sizeof(T_IN) < 4 ? 5 : 4;
#else
constexpr int RESIDENT = ROUNDING ? 4 : sizeof(T_IN) < 4 ? (TENSOR_SCALE ? 5 : 6) : 4;
#endif
#ifndef HELD
#define HELD 1
#endif
constexpr int PIECE = 16;
constexpr int COLUMNS = TILE_COLUMNS;
constexpr int ROWS = THREADS * PIECE * HELD / COLUMNS;
constexpr int PIECES = COLUMNS / PIECE;  // of a tile row

// The source matrix: rows of `columns` neighbours, `stride` elements apart; `aligned` if pieces start at 16 bytes.
struct Source {
  const T_IN* data;
  long long rows, columns, stride;
  bool aligned;
};

// Codes of one copy, in stored order: `rows` x `columns` logical, rows `pitch` bytes apart, `allocated` of them.
// Bytes beyond the logical codes are written as zeros. `aligned` if pieces start at whole stores.
struct Target {
  unsigned char* codes;
  long long rows, columns, pitch, allocated;
  bool aligned;
};

// First row and column of this block's tile. An empty matrix has one block, for the words.
struct Origin { long long r, c; };

__device__ __forceinline__ Origin tile_origin(long long columns, unsigned tile) {
  const unsigned across = max((unsigned)((columns + COLUMNS - 1) / COLUMNS), 1u);  // the launcher keeps tiles below 2^31
  return {(long long)(tile / across) * ROWS, (long long)(tile % across) * COLUMNS};
}
__device__ __forceinline__ Origin tile_origin(long long columns) { return tile_origin(columns, blockIdx.x); }

// Whole: the tile lies inside the matrix and every piece can be moved by vectors.
template <bool Whole>
__device__ __forceinline__ Vec<T_IN, PIECE> load_piece(const Source& s, long long r, long long c) {
  const T_IN* from = s.data + r * s.stride + c;
  if constexpr (Whole) {
    return load_vec<T_IN, PIECE>(from);
  } else {
    if (r < s.rows && c + PIECE <= s.columns && s.aligned) return load_vec<T_IN, PIECE>(from);
    Vec<T_IN, PIECE> v;
#pragma unroll
    for (int i = 0; i < PIECE; ++i) v.at[i] = r < s.rows && c + i < s.columns ? from[i] : store<T_IN>(0.0f);
    return v;
  }
}

__device__ __forceinline__ bool tile_is_whole(const Source& s, const Origin& o, bool row_aligned, bool col_aligned) {
  return o.r + ROWS <= s.rows && o.c + COLUMNS <= s.columns && s.aligned && (!ROW || row_aligned) && (!COL || col_aligned);
}

__device__ __forceinline__ unsigned piece_max(const float (&x)[PIECE]) {
  unsigned m = 0;
#pragma unroll
  for (int i = 0; i < PIECE; ++i) m = max(m, block_magnitude(x[i]));
  return m;
}

// 16 codes: 4 words of 8-bit codes, 2 words of 4-bit codes.
constexpr int WORDS = Element::PACKED ? 2 : 4;
struct Codes { unsigned word[WORDS]; };

template <class E = Element>
__device__ __forceinline__ Codes encode_piece(const float (&x)[PIECE], const Block& b) {
  Codes codes;
  // Where non-finite input makes a NaN block, a product is NaN only if the multiplier is. Else E2M1 goes code by code.
  constexpr bool EIGHT = IS_E2M1<E> && NAN_BLOCK && !NVFP_HARDWARE_FP4;
  constexpr int PER = E::PACKED ? 8 : 4;
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    unsigned word = 0;
    float y[PER];
#pragma unroll
    for (int i = 0; i < PER; ++i) y[i] = __fmul_rn(x[PER * w + i], b.multiplier);
    if constexpr (EIGHT) {
      word = b.multiplier == b.multiplier ? encode8_e2m1(y) : E::NAN_CODE * 0x11111111u;
    } else if constexpr (E::PACKED) {
#pragma unroll
      for (int i = 0; i < PER; i += 2) word |= encode_packed2<E, SATURATE>(y[i], y[i + 1]) << 4 * i;
    } else {
#pragma unroll
      for (int i = 0; i < PER; i += 2) word |= encode2<E, SATURATE>(y[i], y[i + 1]) << 8 * i;
    }
    codes.word[w] = b.bad ? BAD_CODE * (E::PACKED ? 0x11111111u : 0x01010101u) : word;
  }
  return codes;
}

// Rounding by random numbers: the numbers of a piece, the streams of both copies. Without it all of this is empty.
#if ROUNDING
struct Streams { Random row, col; };

// Aligned: e starts a group of them.
template <bool Aligned>
__device__ __forceinline__ Numbers piece_numbers(const Random& random, long long e) {
  if constexpr (ROUNDING == 1) return sixteen_numbers<Aligned>(random, (unsigned long long)e);
  else return Numbers{};  // zeros
}
template <bool Aligned = false>
__device__ __forceinline__ Numbers row_numbers(const Streams& s, long long e) { return piece_numbers<Aligned>(s.row, e); }
template <bool Aligned = false>
__device__ __forceinline__ Numbers col_numbers(const Streams& s, long long e) { return piece_numbers<Aligned>(s.col, e); }

__device__ __forceinline__ Codes encode_piece(const float (&x)[PIECE], const Block& b, const Numbers& numbers) {
  constexpr int PER = Element::PACKED ? 8 : 4, BITS = Element::PACKED ? 4 : 8;
  Codes codes;
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    codes.word[w] = 0;
#pragma unroll
    for (int i = 0; i < PER; ++i) codes.word[w] |= random_code(x[PER * w + i], b, numbers.at(PER * w + i)) << BITS * i;
  }
  return codes;
}
#else
struct Streams {};
struct Numbers {};
template <bool Aligned = false>
__device__ __forceinline__ Numbers row_numbers(const Streams&, long long) { return {}; }
template <bool Aligned = false>
__device__ __forceinline__ Numbers col_numbers(const Streams&, long long) { return {}; }
__device__ __forceinline__ Codes encode_piece(const float (&x)[PIECE], const Block& b, const Numbers&) { return encode_piece(x, b); }
#endif

// The same words from 16 unpacked codes.
__device__ __forceinline__ Codes gather_piece(const unsigned char (&x)[PIECE]) {
  constexpr int BITS = Element::PACKED ? 4 : 8, PER = 32 / BITS;
  Codes codes;
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    codes.word[w] = 0;
#pragma unroll
    for (int i = 0; i < PER; ++i) codes.word[w] |= (unsigned)x[PER * w + i] << BITS * i;
  }
  return codes;
}

__device__ __forceinline__ unsigned code_at(const Codes& codes, int i) {
  return Element::PACKED ? codes.word[i / 8] >> 4 * (i % 8) & 15u : codes.word[i / 4] >> 8 * (i % 4) & 255u;
}

__device__ __forceinline__ unsigned char* code_address(const Target& t, long long r, long long c) {
  return t.codes + r * t.pitch + c / (Element::PACKED ? 2 : 1);
}

// Writes the codes of (r, c .. c + 15), which are at `to`, zeros beyond the logical end of the row and below the last row.
template <bool Whole>
__device__ __forceinline__ void store_piece(const Target& t, unsigned char* to, long long r, long long c, const Codes& codes) {
  constexpr int PER_BYTE = Element::PACKED ? 2 : 1;
  Vec<unsigned, WORDS> v;
#pragma unroll
  for (int w = 0; w < WORDS; ++w) v.at[w] = codes.word[w];
  if constexpr (Whole) {
    store_vec<unsigned, WORDS>(reinterpret_cast<unsigned*>(to), v);
  } else if (r < t.rows && c + PIECE <= t.columns && t.aligned) {
    store_vec<unsigned, WORDS>(reinterpret_cast<unsigned*>(to), v);
  } else if (r < t.allocated) {
    const long long there = r < t.rows ? t.columns - c : 0, bytes = t.pitch - c / PER_BYTE;
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
      unsigned left = codes.word[w];
#pragma unroll 1
      for (int i = 4 * w; i < 4 * w + 4 && i < bytes; ++i, left >>= 8) {
        const long long codes_left = there - i * PER_BYTE;
        to[i] = (unsigned char)(codes_left >= PER_BYTE ? left : codes_left > 0 ? left & 15u : 0u);
      }
    }
  }
}

template <bool Whole>
__device__ __forceinline__ void store_piece(const Target& t, long long r, long long c, const Codes& codes) {
  store_piece<Whole>(t, code_address(t, r, c), r, c, codes);
}

enum : int { PLAIN = 0, TILES = 1, K_MAJOR = 2 };

__device__ __forceinline__ long long pad4(long long n) { return (n + 3) / 4 * 4; }

// Where the scale of block (r, b) lies in a matrix of `rows` x `blocks`: 1 x n blocks.
__device__ __forceinline__ long long scale_at(long long r, long long b, long long rows, long long blocks) {
  if constexpr (LAYOUT == TILES) return tile_offset(r, b, blocks);
  else return LAYOUT == K_MAJOR ? b * pad4(rows) + r : r * blocks + b;
}

// Where the scale of block (r, b) of square blocks lies (tiles hold one for each row, so this does not serve them).
__device__ __forceinline__ long long square_scale_at(long long r, long long b, long long blocks) {
  return r * (LAYOUT == K_MAJOR ? pad4(blocks) : blocks) + b;
}

// A tile of codes or elements in shared memory; the odd row length (in 4-byte words) spreads rows over the banks.
template <class T>
struct alignas(16) Shared {
  static constexpr int PITCH = COLUMNS + 4 / sizeof(T);
  T at[COL ? ROWS : 1][PITCH];

  __device__ __forceinline__ void write(int r, int c, const Vec<T, PIECE>& v) {
    constexpr int PER = 4 / sizeof(T);  // elements per 4-byte store
    const unsigned* words = reinterpret_cast<const unsigned*>(&v);
#pragma unroll
    for (int i = 0; i < PIECE / PER; ++i) reinterpret_cast<unsigned*>(&at[r][c])[i] = words[i];
  }
  __device__ __forceinline__ void column(int r, int c, T (&x)[PIECE]) const {
#pragma unroll
    for (int i = 0; i < PIECE; ++i) x[i] = at[r + i][c];
  }
};

// The random numbers of a column copy: made along the rows, where 16 neighbours share a draw, and read along the columns.
struct NumberTile {
#if ROUNDING == 1
  using T = typename CodeType<(RANDOM_BITS > 8)>::type;
  Shared<T> tile;

  __device__ __forceinline__ void write(int r, int c, const Numbers& numbers) {
    Vec<T, PIECE> v;
#pragma unroll
    for (int i = 0; i < PIECE; ++i) v.at[i] = (T)numbers.at(i);
    tile.write(r, c, v);
  }
  __device__ __forceinline__ Numbers column(int r, int c) const {
    constexpr int PER_WORD = 32 / RANDOM_BITS;
    T x[PIECE];
    tile.column(r, c, x);
    Numbers numbers{};
#pragma unroll
    for (int i = 0; i < PIECE; ++i) numbers.word[i / PER_WORD] |= (unsigned)x[i] << i % PER_WORD * RANDOM_BITS;
    return numbers;
  }
#else
  __device__ __forceinline__ void write(int, int, const Numbers&) {}
  __device__ __forceinline__ Numbers column(int, int) const { return Numbers{}; }
#endif
};
