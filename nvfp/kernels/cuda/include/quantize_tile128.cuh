// The tile of 128 x 128 elements that the variants with a column copy share. A block of 256 threads reads it once: a
// thread holds 4 rows x 16 columns as they lie in memory, a row of them is stored as one piece of codes, and the 4
// codes of a column are a word (4-bit codes: half a word) of the transposed tile, which goes through shared memory.
// A warp holds DOWN groups of 4 rows x ACROSS pieces, so that blocks of 16 or 32 lie within one warp.
//
// Macros: those of quantize_values128.cuh.
#pragma once
#include "quantize_values128.cuh"

// A multiplier also says whether its block is a NaN block: then it is a NaN with its sign set.
constexpr bool MARKS = NAN_BLOCK;
__device__ __forceinline__ float marked(const Block& b) {
  if (MARKS && b.bad) return __uint_as_float(0xffc00000u);
  return b.multiplier == b.multiplier ? b.multiplier : __uint_as_float(0x7fc00000u);
}

// Codes in words: 4 of 8 bits or 8 of 4 bits. E2M1 goes eight codes at a time, with signs taken from memory's words,
// where products can only be NaN if their multiplier is: those blocks are filled afterwards.
constexpr int PER_WORD = Element::PACKED ? 8 : 4;
constexpr bool EIGHT = IS_E2M1<Element> && NAN_BLOCK && (ROUNDING || !NVFP_HARDWARE_FP4);
constexpr bool FILLS = NAN_BLOCK && (EIGHT || Element::NAN_CODE != BAD_CODE);  // else a NaN product has the block's code
constexpr unsigned EVERY = Element::PACKED ? 0x11111111u : 0x01010101u;

__device__ __forceinline__ unsigned filling(float multiplier) {
  return (__float_as_uint(multiplier) >> 31 ? BAD_CODE : Element::NAN_CODE) * EVERY;
}

// `signs`: 8 at bit 3 of their nibbles (with EIGHT and 16-bit elements).
__device__ __forceinline__ unsigned encode_word(const float* y, unsigned signs) {
  if constexpr (EIGHT && PER == 2) {
    return magnitudes8_e2m1(y) | signs;
  } else if constexpr (EIGHT) {
    return encode8_e2m1(y);
  } else {
    unsigned word = 0;
#pragma unroll
    for (int i = 0; i < PER_WORD; i += 2) {
      if constexpr (Element::PACKED) word |= encode_packed2<Element, SATURATE>(y[i], y[i + 1]) << 4 * i;
      else word |= encode2<Element, SATURATE>(y[i], y[i + 1]) << 8 * i;
    }
    return word;
  }
}

// Signs of 8 neighbours in a row, and of 4 rows x 2 neighbours, the first column in the lower half.
__device__ __forceinline__ unsigned row_signs(const unsigned* word) {
  const unsigned low = __byte_perm(word[0], word[1], 0x7351), high = __byte_perm(word[2], word[3], 0x7351);
  const unsigned even = __byte_perm(low, high, 0x5410), odd = __byte_perm(low, high, 0x7632);
  return (even >> 4 & 0x08080808u) | (odd & 0x80808080u);
}
__device__ __forceinline__ unsigned column_signs(const Values (&v)[HELD], int i) {
  unsigned signs = v[0].word[i] & 0x80008000u;
#pragma unroll
  for (int k = 1; k < HELD; ++k) signs = signs >> 4 | (v[k].word[i] & 0x80008000u);
  return signs;
}

// Rounding by random numbers does the same code by code; a word of E2M1 again in one go.
#if ROUNDING
__device__ __forceinline__ Block unmarked(float multiplier) {
  return {multiplier, 0u, MARKS && __float_as_uint(multiplier) == 0xffc00000u};
}
__device__ __forceinline__ unsigned encode_random_one(float x, float multiplier, const Numbers& numbers, int i) {
  if constexpr (EIGHT) return e2m1_random_magnitude(__fmul_rn(x, multiplier), numbers.word[i / 4], i % 4) - E2M1_BASE;
  else return random_code(x, unmarked(multiplier), numbers.at(i));
}
__device__ __forceinline__ unsigned encode_random8(float (&y)[PER_WORD], const Numbers& numbers, int w) {
#pragma unroll
  for (int i = 0; i < PER_WORD; ++i) y[i] = fabsf(y[i]);
  return e2m1_random8(y, numbers.word[2 * w], numbers.word[2 * w + 1]);
}

// The number of element i in a word of its own.
__device__ __forceinline__ unsigned number_of(const Numbers& numbers, int i) {
  if constexpr (RANDOM_BITS == 16) return __byte_perm(numbers.word[i / 2], 0, i % 2 ? 0x4432 : 0x4410);
  else return numbers.at(i);
}
// The sign bits of four words, of the elements of 16 bits that `half` says, under that of a multiplier.
__device__ __forceinline__ unsigned sign_bytes(unsigned a, unsigned b, unsigned c, unsigned d, int half, float multiplier) {
  const unsigned pick = PER == 1 || half ? 0x0073u : 0x0051u, turned = __float_as_uint(multiplier) >> 31 ? 0x80808080u : 0u;
  return (__byte_perm(__byte_perm(a, b, pick), __byte_perm(c, d, pick), 0x5410) ^ turned) & 0x80808080u;
}
// Four neighbours of a row (`at` is a multiple of 4), and the rows' elements of column c. False: `codes` are not good.
__device__ __forceinline__ bool quick_row(const Values& v, int at, float multiplier, const Numbers& numbers, unsigned& codes) {
  bool slow = false;
  unsigned m[4], signs;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    m[i] = random_magnitude<Element>(__fmul_rn(fabsf(value(v, at + i)), fabsf(multiplier)), number_of(numbers, at + i), slow);
  const unsigned* word = v.word + at / PER;
  if constexpr (PER == 1) signs = sign_bytes(word[0], word[1], word[2], word[3], 0, multiplier);
  else signs = sign_bytes(word[0] << 16, word[0], word[1] << 16, word[1], 1, multiplier);
  codes = (high_bytes(m[0], m[1], m[2], m[3]) & 0x7f7f7f7fu) | signs;
  return !slow;
}
__device__ __forceinline__ bool quick_column(const Values (&v)[HELD], int c, float multiplier, const Numbers (&numbers)[HELD], unsigned& codes) {
  bool slow = false;
  unsigned m[4];
#pragma unroll
  for (int k = 0; k < 4; ++k)
    m[k] = random_magnitude<Element>(__fmul_rn(fabsf(value_again(v[k], c)), fabsf(multiplier)), number_of(numbers[k], c), slow);
  const int i = c / PER;
  const unsigned signs = sign_bytes(v[0].word[i], v[1].word[i], v[2].word[i], v[3].word[i], c % PER, multiplier);
  codes = (high_bytes(m[0], m[1], m[2], m[3]) & 0x7f7f7f7fu) | signs;
  return !slow;
}
// float16 beside block scales would need more registers than there are.
constexpr bool QUICK = RANDOM_QUICK && !(HALF<T_IN> && MARKS);
#else
constexpr bool QUICK = false;
__device__ __forceinline__ bool quick_row(const Values&, int, float, const Numbers&, unsigned&) { return false; }
__device__ __forceinline__ bool quick_column(const Values (&)[HELD], int, float, const Numbers (&)[HELD], unsigned&) { return false; }
__device__ __forceinline__ unsigned encode_random_one(float, float, const Numbers&, int) { return 0; }
__device__ __forceinline__ unsigned encode_random8(float (&)[PER_WORD], const Numbers&, int) { return 0; }
#endif
constexpr int CODE_BITS = Element::PACKED ? 4 : 8;

// The codes of a piece of a row. `filled`: whether a NaN multiplier must be looked for.
__device__ __forceinline__ Codes encode_values(const Values& v, float multiplier, bool filled, const Numbers& numbers = {}) {
  Codes codes;
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    float y[PER_WORD];
    unsigned signs = 0, word = 0;
#pragma unroll
    for (int i = 0; i < PER_WORD; ++i) y[i] = __fmul_rn(value(v, PER_WORD * w + i), multiplier);
    if constexpr (EIGHT && PER == 2) signs = row_signs(v.word + 4 * w);
    else if constexpr (EIGHT && ROUNDING) signs = signs8(y);
    if constexpr (ROUNDING && EIGHT) {
      codes.word[w] = encode_random8(y, numbers, w) | signs;
    } else if constexpr (ROUNDING) {
      if (QUICK && __builtin_expect(quick_row(v, PER_WORD * w, multiplier, numbers, codes.word[w]), 1)) continue;
#pragma unroll
      for (int i = 0; i < PER_WORD; ++i) word |= encode_random_one(value(v, PER_WORD * w + i), multiplier, numbers, PER_WORD * w + i) << CODE_BITS * i;
      codes.word[w] = word;
    } else {
      codes.word[w] = encode_word(y, signs);
    }
    if (FILLS && filled && multiplier != multiplier) codes.word[w] = filling(multiplier);
  }
  return codes;
}

// The transposed tile: a line for each column, as 16-byte pieces. Word `i` of a line goes to the place i ^ turn, so that
// the lanes of a warp write to different banks.
struct Transposed {
  uint4 line[COL ? COLUMNS : 1][ROWS / (Element::PACKED ? 32 : 16)];
};
constexpr int TURN = DOWN / (Element::PACKED ? 2 : 1);  // words of a line that a warp writes
__device__ __forceinline__ int turn_of(int piece) { return TURN * (piece % ACROSS); }

// Columns in a thread (quantize_turned.cuh) write 8 bytes of 4 neighbouring lines: other turns, and every other 32 lines
// in pairs that have changed places.
constexpr bool TURNED = TURNS && COL && ACROSS == 8 && IS_E2M1<Element> && FAMILY == TWO_LEVEL && NAN_BLOCK && PER == 2 && (ROUNDING || ROTATE);
__device__ __forceinline__ int line_of(int c) { return TURNED ? c ^ (c / 32 & 1) : c; }
__device__ __forceinline__ int turn_of_line(int c) { return TURNED ? 2 * (c / 4 % 8) : turn_of(c / PIECE); }

// The thread's codes of column c of its piece, 4 of them.
__device__ __forceinline__ void put_column(Transposed& to, int c, unsigned codes) {
  const int piece = piece_of_thread(), group = group_of_thread();
  uint4* line = to.line[piece * PIECE + c];
  if constexpr (Element::PACKED) {
    reinterpret_cast<unsigned short*>(line)[2 * (group / 2 ^ turn_of(piece)) + group % 2] = (unsigned short)codes;
  } else {
    reinterpret_cast<unsigned*>(line)[group ^ turn_of(piece)] = codes;
  }
}

// The same of two neighbouring columns and their multipliers. `filled`: whether NaN multipliers must be looked for.
__device__ __forceinline__ void encode_columns(Transposed& to, const Values (&v)[HELD], int c, float m0, float m1, bool filled,
                                               const Numbers (&numbers)[HELD]) {
  float y[8];
#pragma unroll
  for (int k = 0; k < HELD; ++k) {
    y[k] = __fmul_rn(value_again(v[k], c), m0);
    y[k + HELD] = __fmul_rn(value_again(v[k], c + 1), m1);
  }
  unsigned drawn[2] = {0, 0};  // 4 codes of each column
  if (QUICK && __builtin_expect(quick_column(v, c, m0, numbers, drawn[0]) & quick_column(v, c + 1, m1, numbers, drawn[1]), 1)) {
  } else if constexpr (ROUNDING) {
    drawn[0] = drawn[1] = 0;
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      drawn[0] += encode_random_one(value_again(v[k], c), m0, numbers[k], c) << CODE_BITS * k;
      drawn[1] += encode_random_one(value_again(v[k], c + 1), m1, numbers[k], c + 1) << CODE_BITS * k;
    }
  }
  if constexpr (Element::PACKED) {
    unsigned signs = 0;
    if constexpr (EIGHT && PER == 2) signs = column_signs(v, c / 2);
    else if constexpr (EIGHT && ROUNDING) signs = signs8(y);
    unsigned word = ROUNDING ? (drawn[0] | drawn[1] << 16) | signs : encode_word(y, signs);
    if (FILLS && filled) {
      if (m0 != m0) word = (word & 0xffff0000u) | (filling(m0) & 0xffffu);
      if (m1 != m1) word = (word & 0xffffu) | (filling(m1) & 0xffff0000u);
    }
    put_column(to, c, word);
    put_column(to, c + 1, word >> 16);
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float m = i ? m1 : m0;
      unsigned word = ROUNDING ? drawn[i] : encode_word(y + HELD * i, 0);
      if (FILLS && filled && m != m) word = filling(m);
      put_column(to, c + i, word);
    }
  }
}

// The thread's codes, transposed: where both copies hold the same ones.
__device__ __forceinline__ void put_transposed(Transposed& to, const Codes (&codes)[HELD]) {
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    const unsigned a = codes[0].word[w], b = codes[1].word[w], c = codes[2].word[w], d = codes[3].word[w];
    if constexpr (Element::PACKED) {
      constexpr unsigned LOW = 0x0f0f0f0fu;
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {  // byte j: column 2 * j + odd
        const unsigned upper = odd ? (a >> 4 & LOW) | (b & ~LOW) : (a & LOW) | (b << 4 & ~LOW);
        const unsigned lower = odd ? (c >> 4 & LOW) | (d & ~LOW) : (c & LOW) | (d << 4 & ~LOW);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const unsigned both = __byte_perm(upper, lower, half ? 0x7362 : 0x5140);
          put_column(to, 8 * w + 4 * half + odd, both);
          put_column(to, 8 * w + 4 * half + 2 + odd, both >> 16);
        }
      }
    } else {  // 4 x 4 bytes in two steps
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned pick = half ? 0x7362 : 0x5140;
        const unsigned upper = __byte_perm(a, b, pick), lower = __byte_perm(c, d, pick);
        put_column(to, 4 * w + 2 * half, __byte_perm(upper, lower, 0x5410));
        put_column(to, 4 * w + 2 * half + 1, __byte_perm(upper, lower, 0x7632));
      }
    }
  }
}

// Stores the transposed tile; barriers are the caller's.
template <bool Whole>
__device__ __forceinline__ void store_columns(const Transposed& from, const Target& t, const Origin& o) {
  constexpr int PER_LINE = ROWS / (Element::PACKED ? 32 : 16), LINES = THREADS / PER_LINE;
  const long long column = o.r + threadIdx.x % PER_LINE * (ROWS / PER_LINE);
  long long r = o.c + threadIdx.x / PER_LINE;
  unsigned char* to = code_address(t, r, column);
#pragma unroll
  for (int k = 0; k < COLUMNS / LINES; ++k, r += LINES, to += LINES * t.pitch) {
    const int c = threadIdx.x / PER_LINE + k * LINES, at = threadIdx.x % PER_LINE, turn = turn_of_line(c);
    uint4 w = from.line[line_of(c)][at ^ turn / 4];
    if constexpr (TURN % 4 != 0) {
      if (turn & 2) w = {w.z, w.w, w.x, w.y};
    }
    if constexpr (Element::PACKED && Whole) {
      store_words(to, w);
    } else {
      const unsigned words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int p = 0; p < 4 / WORDS; ++p) {
        Codes codes;
#pragma unroll
        for (int i = 0; i < WORDS; ++i) codes.word[i] = words[p * WORDS + i];
        store_piece<Whole>(t, to + p * PIECE / 2, r, column + p * PIECE, codes);
      }
    }
  }
}

// Packed column codes are stored 32 at a time; pieces of a whole tile draw their random numbers together.
__device__ __forceinline__ bool tile128_is_whole(const Source& s, const Origin& o, const Target& row, const Target& col) {
  return tile_is_whole(s, o, row.aligned, col.aligned) && (!COL || !Element::PACKED || col.pitch % 16 == 0) &&
         (ROUNDING != 1 || s.columns % PIECE == 0);
}
