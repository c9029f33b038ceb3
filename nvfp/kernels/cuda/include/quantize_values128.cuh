// What a thread holds of a tile of 128 x 128 (see quantize_tile128.cuh): its place, its values as they lie in memory,
// their maxima, and how scales leave.
//
// Macros: those of quantize_tile.cuh but TILE_COLUMNS and HELD; ACROSS (8 unless set, or 4), ROTATE (the column copy is that
// of the rotated matrix; 0 unless set).
#pragma once
#define TILE_COLUMNS 128
#define HELD 4
#include "quantize_tile.cuh"
#ifndef ACROSS
#define ACROSS 8
#endif
#ifndef ROTATE
#define ROTATE 0
#endif
#ifndef TURNS  // 1 with quantize_turned.cuh
#define TURNS 0
#endif

constexpr int WARPS = THREADS / 32, DOWN = 32 / ACROSS, ABREAST = PIECES / ACROSS;  // ABREAST: warps side by side
static_assert(ROWS == 128 && COLUMNS == 128 && PIECES % ACROSS == 0, "a tile");
constexpr unsigned ALL = 0xffffffffu;
template <class T> constexpr bool HALF = false;
template <> constexpr bool HALF<__half> = true;

// Blocks per multiprocessor that registers must allow: as many as go without local memory.
#ifndef INPUT
#define INPUT 0
#endif
#ifdef INPUT_BLOCKS
constexpr int AT_ONCE = INPUT_BLOCKS;
#elif INPUT == 1 && !defined(BIAS_GRAD) && !ROUNDING && !ROTATE && defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 1000
constexpr int AT_ONCE = sizeof(T_IN) < 4 ? 3 : 2;
#elif INPUT && INPUT < 5
constexpr int AT_ONCE = sizeof(T_IN) < 4 || (INPUT < 3 && !ROUNDING && !ROTATE) ? 2 : 1;
#elif ROUNDING || ROTATE
#if ROUNDING && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && __CUDA_ARCH__ < 1200
constexpr int TURNED_AT_ONCE = 1;  // NVRTC 13.5 leaves registers in local memory at 2 and 3, whatever it has of them
#else
constexpr int TURNED_AT_ONCE = 3;
#endif
constexpr int AT_ONCE = sizeof(T_IN) == 4 ? 1 : TURNS && ACROSS == 8 ? TURNED_AT_ONCE : 2;
#else
constexpr bool NVFP4 = IS_E2M1<Element> && FAMILY == TWO_LEVEL && NAN_BLOCK && ACROSS == 8;  // blocks of 16
constexpr int AT_ONCE = sizeof(T_IN) == 4 || !NVFP_HARDWARE_FP8 || (Element::PACKED && HALF<T_IN>) ? 2 : NVFP4 ? 4 : 3;
#endif

// Place of the thread in the tile: its first row over HELD, its first column over PIECE.
__device__ __forceinline__ int group_of_thread() { return threadIdx.x / 32 / ABREAST * DOWN + threadIdx.x % 32 / ACROSS; }
__device__ __forceinline__ int piece_of_thread() { return threadIdx.x / 32 % ABREAST * ACROSS + threadIdx.x % ACROSS; }

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
// The same for a second pass over the values, by another instruction: what the first one widened would be kept otherwise,
// in more registers than there are.
__device__ __forceinline__ float value_again(const Values& v, int c) {
  if constexpr (PER == 2 && !HALF<T_IN>) return __uint_as_float(__byte_perm(v.word[c / 2], 0, c % 2 ? 0x3244 : 0x1044));
  else return value(v, c);
}

// The piece at row r, column c, which is at `from`.
template <bool Whole>
__device__ __forceinline__ Values load_values(const Source& s, const T_IN* from, long long r, long long c) {
  Values v;
  if (Whole || (r < s.rows && c + PIECE <= s.columns && s.aligned)) {
    const auto words = load_vec<unsigned, WORDS_HELD>(reinterpret_cast<const unsigned*>(from));
#pragma unroll
    for (int i = 0; i < WORDS_HELD; ++i) v.word[i] = words.at[i];
  } else {
    const int there = r < s.rows ? (int)min(max(s.columns - c, 0LL), (long long)PIECE) : 0;
#pragma unroll
    for (int i = 0; i < WORDS_HELD; ++i) v.word[i] = 0;
#pragma unroll
    for (int i = 0; i < PIECE; ++i) {
      if (i >= there) break;
      if constexpr (sizeof(T_IN) == 4) v.word[i] = reinterpret_cast<const unsigned*>(from)[i];
      else v.word[i / 2] |= (unsigned)reinterpret_cast<const unsigned short*>(from)[i] << i % 2 * 16;
    }
  }
  return v;
}

// The thread's rows.
template <bool Whole>
__device__ __forceinline__ void load_rows(Values (&v)[HELD], const Source& s, long long r, long long c) {
  const T_IN* from = s.data + r * s.stride + c;
#pragma unroll
  for (int k = 0; k < HELD; ++k, from += s.stride) v[k] = load_values<Whole>(s, from, r + k, c);
}

// A new start for the compiler, between two passes over the values: what it would keep of the first, values widened to
// float32 and codes, is more than registers hold.
__device__ __forceinline__ void renew(Values& v) {
#ifdef __CUDA_ARCH__
#pragma unroll
  for (int i = 0; i < WORDS_HELD; ++i) asm volatile("" : "+r"(v.word[i]));
#endif
}

// Maxima are taken of words: 16-bit magnitudes two at a time, in the order of their bits. A magnitude that does not
// count (see block_magnitude) is 0.
__device__ __forceinline__ unsigned magnitudes(unsigned word) { return word & (PER == 1 ? 0x7fffffffu : 0x7fff7fffu); }
constexpr unsigned INFINITE = PER == 1 ? 0x7f800000u : HALF<T_IN> ? 0x7c00u : 0x7f80u;

__device__ __forceinline__ unsigned counted_word(unsigned word) {
  if constexpr (PER == 1) {
    return block_magnitude(__uint_as_float(word));
  } else {
    const unsigned m = magnitudes(word);
    if constexpr (NAN_BLOCK) return m;
    const unsigned beyond = m + (0x7fffu - INFINITE) * 0x10001u & 0x80008000u;  // the top bit of every NaN
    return m & ~(beyond - (beyond >> 15));
  }
}
__device__ __forceinline__ unsigned max_words(unsigned a, unsigned b) {
  if constexpr (PER == 1) return max(a, b);
  else return __vmaxu2(a, b);
}
// The bits, as float32, of the largest element of a word.
__device__ __forceinline__ unsigned widened(unsigned magnitude) { return __float_as_uint(element(magnitude, 0)); }

// Maxima of the thread's rows and of its columns, in words.
__device__ __forceinline__ void thread_maxima(const Values (&v)[HELD], unsigned (&rows)[HELD], unsigned (&columns)[WORDS_HELD]) {
#pragma unroll
  for (int i = 0; i < WORDS_HELD; ++i) {
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      const unsigned m = counted_word(v[k].word[i]);
      rows[k] = i == 0 ? m : max_words(rows[k], m);
      columns[i] = k == 0 ? m : max_words(columns[i], m);
    }
  }
}
// Both elements of a word into one, still as they lie in memory.
__device__ __forceinline__ unsigned folded(unsigned m) { return PER == 1 ? m : max(m & 0xffffu, m >> 16); }

// The maximum over the thread's elements, as the bits of a float32. Where NaN does not count, that is looked at only if
// there is one.
__device__ __forceinline__ unsigned thread_maximum(const Values (&v)[HELD]) {
  unsigned m = 0, seen = 0;
#pragma unroll
  for (int k = 0; k < HELD; ++k) {
#pragma unroll
    for (int i = 0; i < WORDS_HELD; ++i) m = max_words(m, PER == 1 ? counted_word(v[k].word[i]) : magnitudes(v[k].word[i]));
  }
  m = folded(m);
  if (!NAN_BLOCK && PER == 2 && m > INFINITE) {
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
#pragma unroll
      for (int i = 0; i < WORDS_HELD; ++i) seen = max_words(seen, counted_word(v[k].word[i]));
    }
    m = folded(seen);
  }
  return widened(m);
}

// One of two maxima, together with that of the lane `apart`, which takes the other.
__device__ __forceinline__ unsigned halved(unsigned low, unsigned high, bool upper, int apart) {
  const unsigned given = __shfl_xor_sync(ALL, upper ? low : high, apart);
  return max_words(upper ? high : low, given);
}

// From the maxima of the thread's columns those of the warp's: the lanes that share columns share them out. The thread keeps OWN
// neighbouring columns, `own_columns` on from its first.
constexpr int OWN = PIECE / DOWN;
__device__ __forceinline__ int own_columns() { return threadIdx.x % 32 / ACROSS * OWN; }

__device__ __forceinline__ void column_maxima(unsigned (&m)[WORDS_HELD], unsigned (&own)[OWN]) {
  int n = WORDS_HELD;
#pragma unroll
  for (int apart = 16; apart >= ACROSS; apart /= 2) {
    n /= 2;
#pragma unroll
    for (int i = 0; i < WORDS_HELD / 2; ++i)
      if (i < n) m[i] = halved(m[i], m[i + n], threadIdx.x & apart, apart);
  }
#pragma unroll
  for (int j = 0; j < OWN; ++j) own[j] = widened(m[j / PER] >> j % PER * 16);
}

// One copy: its codes, its scales, its words.
struct Side {
  Target target;
  void* scale;
  const float *amax, *given;
  float* stored;
};

// A scale as it is stored.
template <bool WORD> struct ScaleType { using type = StoredCode<Scale>; };
template <> struct ScaleType<true> { using type = unsigned; };
using StoredScale = typename ScaleType<FAMILY == FLOAT_SCALE>::type;

// Stores N scales of stored row r, blocks of SIZE from column c on, in words where they are neighbours in memory.
template <int SIZE, int N>
__device__ __forceinline__ void store_scales(const Side& s, long long r, long long c, const StoredScale (&x)[N]) {
  constexpr int RUN = LAYOUT == TILES ? (N < 4 ? N : 4) : LAYOUT == PLAIN ? N : 1, BYTES = RUN * sizeof(StoredScale);
  const long long rows = s.target.rows, blocks = (s.target.columns + SIZE - 1) / SIZE, b = c / SIZE;
  StoredScale* to = static_cast<StoredScale*>(s.scale);
  if (r >= rows) return;
#pragma unroll
  for (int k = 0; k < N; k += RUN) {
    StoredScale* first = to + scale_at(r, b + k, rows, blocks);
    if (RUN > 1 && b + k + RUN <= blocks && reinterpret_cast<unsigned long long>(first) % (BYTES < 16 ? BYTES : 16) == 0) {
      Vec<StoredScale, RUN> v;
#pragma unroll
      for (int i = 0; i < RUN; ++i) v.at[i] = x[k + i];
      store_vec<StoredScale, RUN>(first, v);
    } else {
#pragma unroll
      for (int i = 0; i < RUN; ++i)
        if (b + k + i < blocks) first[i] = x[k + i];
    }
  }
}
