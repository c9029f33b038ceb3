// The column copy with whole columns in a thread, where a warp's tile is 16 rows x 128 columns: E2M1 in blocks of 16,
// 16-bit elements. The rows that threads hold go through shared memory, and each takes 4 neighbouring columns of 16
// rows: rotation (ROTATE), maxima, scales and codes of a block then ask no other thread. Random numbers, which
// neighbours in a row draw together, go the same way.
//
// Columns are handled in pairs, 0 with 2 and 1 with 3, as the bytes of a word of random numbers are.
//
// Macros: those of quantize_tile128.cuh; SIGNS if ROTATE.
#pragma once
#define TURNS 1
#include "quantize_tile128.cuh"
#if ROTATE
#include "hadamard.cuh"
#endif

constexpr int DEEP = 16;  // rows of a warp

// Rows of a warp, 256 bytes each: pieces of 16 bytes at the place that spreads a thread's two over the banks.
struct alignas(16) Exchange {
  uint4 line[DEEP][DEEP];
};
__device__ __forceinline__ int place_of(int q) { return q ^ q >> 3; }

__device__ __forceinline__ void put_rows(Exchange& to, const Values (&v)[HELD]) {
  const int row = threadIdx.x % 32 / ACROSS * HELD, piece = threadIdx.x % ACROSS;
#pragma unroll
  for (int k = 0; k < HELD; ++k) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const unsigned* w = v[k].word + 4 * h;
      to.line[row + k][place_of(2 * piece + h)] = make_uint4(w[0], w[1], w[2], w[3]);
    }
  }
}

// The thread's columns of pair p, in the halves of words.
__device__ __forceinline__ void take_pair(const Exchange& from, int p, unsigned (&word)[DEEP]) {
  const int lane = threadIdx.x % 32, at = 2 * place_of(lane / 2) + lane % 2;
#if ROTATE
  float low[DEEP], high[DEEP];
#pragma unroll
  for (int k = 0; k < DEEP; ++k) {
    const uint2 w = reinterpret_cast<const uint2*>(from.line[k])[at];
    low[k] = element(w.x, p), high[k] = element(w.y, p);
  }
  rotate(low);
  rotate(high);
#pragma unroll
  for (int k = 0; k < DEEP; ++k) word[k] = rounded2(low[k], high[k]);
#else
#pragma unroll
  for (int k = 0; k < DEEP; ++k) {
    const uint2 w = reinterpret_cast<const uint2*>(from.line[k])[at];
    word[k] = __byte_perm(w.x, w.y, p ? 0x7632 : 0x5410);
  }
#endif
}

// Their maxima, as bits of float32.
__device__ __forceinline__ void pair_maxima(const unsigned (&word)[DEEP], unsigned (&own)[2]) {
  unsigned m = 0;
#pragma unroll
  for (int k = 0; k < DEEP; ++k) m = max_words(m, counted_word(word[k]));
  own[0] = widened(m);
  own[1] = widened(m >> 16);
}

// Random numbers of the thread's rows to those of its columns: a word for each row.
#if ROUNDING == 1
template <bool Whole>
__device__ __forceinline__ void turn_numbers(Exchange& by, unsigned (&numbers)[DEEP], const Random& random, long long r, long long c,
                                             long long columns) {
  const int row = threadIdx.x % 32 / ACROSS * HELD, piece = threadIdx.x % ACROSS;
  uint4* lines = by.line[0];
  constexpr int AT_A_TIME = Whole ? HELD : 1;  // the registers of two groups
#pragma unroll AT_A_TIME
  for (int k = 0; k < HELD; ++k) {
    const Numbers n = sixteen_numbers<Whole>(random, (unsigned long long)((r + k) * columns + c));
    lines[(row + k) * PIECES + piece] = make_uint4(n.word[0], n.word[1], n.word[2], n.word[3]);
  }
  __syncwarp();
#pragma unroll
  for (int k = 0; k < DEEP; ++k) numbers[k] = reinterpret_cast<const unsigned*>(lines)[32 * k + threadIdx.x % 32];
  __syncwarp();
}
#endif

// Codes of 4 rows of a pair of columns, in the halves of a word.
#if ROUNDING
__device__ __forceinline__ unsigned encode_four(const unsigned* word, const float (&m)[2], const unsigned* numbers, int p) {
  unsigned codes = 0;
#pragma unroll
  for (int k = 0; k < HELD; ++k) {
    const unsigned random = p ? odd_bytes(numbers[k]) : even_bytes(numbers[k]), magnitude = magnitudes(word[k]);
    const float low = __fmul_rn(element(magnitude, 0), m[0]), high = __fmul_rn(element(magnitude, 1), m[1]);
    const unsigned code = e2m1_random2(low, high, random) << 3 | (word[k] & 0x80008000u);
    codes = select_bits(0xf000f000u, code, codes >> 4);
  }
  return codes;
}
#else
__device__ __forceinline__ unsigned four_signs(const unsigned* word) {
  unsigned signs = word[0] & 0x80008000u;
#pragma unroll
  for (int k = 1; k < HELD; ++k) signs = signs >> 4 | (word[k] & 0x80008000u);
  return signs;
}
#endif

// Codes of both columns of pair p, 8 rows in a word.
__device__ __forceinline__ void encode_pair(const unsigned (&word)[DEEP], const float (&m)[2], const unsigned (&numbers)[DEEP], int p,
                                            unsigned (&codes)[2][2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const unsigned* eight = word + 8 * h;
#if ROUNDING
    const unsigned upper = encode_four(eight, m, numbers + 8 * h, p), lower = encode_four(eight + 4, m, numbers + 8 * h + 4, p);
    codes[0][h] = __byte_perm(upper, lower, 0x5410);
    codes[1][h] = __byte_perm(upper, lower, 0x7632);
#else
    const unsigned upper = four_signs(eight), lower = four_signs(eight + 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float y[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) y[k] = __fmul_rn(element(eight[k], i), m[i]);
      codes[i][h] = encode_word(y, __byte_perm(upper, lower, i ? 0x7632 : 0x5410));
    }
#endif
  }
}

// Codes of pair p into the transposed tile.
__device__ __forceinline__ void put_pair(Transposed& to, const unsigned (&word)[DEEP], const float (&m)[2], bool filled,
                                         const unsigned (&numbers)[DEEP], int p) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned codes[2][2];
  encode_pair(word, m, numbers, p, codes);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (FILLS && filled && m[i] != m[i]) codes[i][0] = codes[i][1] = filling(m[i]);
    reinterpret_cast<uint2*>(to.line[line_of(4 * lane + p + 2 * i)])[warp ^ lane % 8] = make_uint2(codes[i][0], codes[i][1]);
  }
}
