// Casts by random numbers (ROUNDING 1) or toward zero (2): the device twin of nvfp/dtypes/stochastic.py, and where the
// random numbers of an element come from. Includes nothing if ROUNDING is 0 (to nearest even).
#pragma once
#include "format.cuh"
#include "philox.cuh"

// Random bits of an element: 8 for 4-bit elements, else 16.
constexpr int RANDOM_BITS = Element::PACKED ? 8 : 16;

// The code of x, whose magnitude moves up by r units of 2^-RANDOM_BITS steps and is then cut down to the grid.
template <class F, bool Clamp>
__device__ __forceinline__ unsigned encode_random(float x, unsigned r) {
  constexpr float PART = 1.0f / (float)(1 << RANDOM_BITS);
  const unsigned bits = __float_as_uint(x), a = bits & 0x7fffffffu;
  if (a > 0x7f800000u) return F::NAN_CODE;
  if constexpr (F::INT) {
    constexpr float STEPS = (float)(1 << F::MANTISSA), MOST = (float)(F::MAX_CODE + 1u);
    const float y = __fadd_rn(__fmul_rn(__uint_as_float(a), STEPS), __fmul_rn((float)r, PART));
    const unsigned k = min((unsigned)fminf(y, MOST), F::MAX_CODE + (bits >> 31));
    return (bits >> 31 ? 0u - k : k) & F::MASK;
  } else {
    constexpr unsigned LEAST = (unsigned)F::LEAST << 23, UNIT = (unsigned)(F::MANTISSA + RANDOM_BITS) << 23;
    const unsigned e = max(a & 0x7f800000u, LEAST);
    const float moved = __fadd_rn(__uint_as_float(a), __fmul_rn((float)r, __uint_as_float(e - UNIT)));  // the product is exact
    const unsigned m = __float_as_uint(moved);
    constexpr float SUBNORMALS = (float)(1u << (F::MANTISSA + F::BIAS - 1));  // 1 / the smallest one
    unsigned code = m >= LEAST ? (m >> (23 - F::MANTISSA)) - ((unsigned)(F::LEAST - 1) << F::MANTISSA)
                               : (unsigned)__fmul_rn(moved, SUBNORMALS);
    if (code > F::MAX_CODE) code = Clamp ? F::MAX_CODE : F::OVERFLOW_CODE;
    return code | ((bits >> (32 - F::BITS)) & F::SIGN_CODE);
  }
}

// encode_random of E2M1 by a byte of a word, as e2m1_magnitude has it: lines rounded down. NaN gives some code.
__device__ __forceinline__ unsigned e2m1_random_magnitude(float x, unsigned word, int byte) {
  const float a = fabsf(x), r = __fadd_rn(__uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 | byte)), -8388608.0f);
  const unsigned e = max(__float_as_uint(a) & 0x7f800000u, 127u << 23);
  const float moved = __fmaf_rn(r, __uint_as_float(e - (9u << 23)), a);  // the product is exact
  const float d = __saturatef(__fmaf_rn(moved, 0.25f, -0.5f));           // exact within [2, 6]
  const unsigned below = __float_as_uint(__fmaf_rd(moved, 2.0f, __uint_as_float(E2M1_BASE)));
  const unsigned middle = __float_as_uint(__fmaf_rd(d, 4.0f, __uint_as_float(E2M1_BASE + 4u)));
  const unsigned above = __float_as_uint(__fmaf_rd(d, 2.0f, __uint_as_float(E2M1_BASE + 5u)));
  return min(min(below, middle), above);
}

__device__ __forceinline__ unsigned random_code(float x, const Block& b, unsigned r) {
  const float y = __fmul_rn(x, b.multiplier);
  if constexpr (ROUNDING == 2) return b.bad ? BAD_CODE : encode_toward_zero<Element, SATURATE>(y);
  else return b.bad ? BAD_CODE : encode_random<Element, SATURATE>(y, r);
}

// A stream of random numbers: `stream` is 4 * ordinal + lane.
struct Random {
  unsigned long long key;
  unsigned stream, step;

  // The four words that hold the numbers of elements group * (128 / RANDOM_BITS) and the following ones.
  __device__ __forceinline__ uint4 words(unsigned long long group) const { return philox_group(group, stream, step, key); }

  // The number of one element.
  __device__ __forceinline__ unsigned number(unsigned long long e) const {
    constexpr int PER_WORD = 32 / RANDOM_BITS, PER_GROUP = 4 * PER_WORD;
    const uint4 w = words(e / PER_GROUP);
    const unsigned i = (unsigned)(e % PER_GROUP) / PER_WORD, shift = (unsigned)(e % PER_WORD) * RANDOM_BITS;
    const unsigned word = i == 0 ? w.x : i == 1 ? w.y : i == 2 ? w.z : w.w;
    return word >> shift & ((1u << RANDOM_BITS) - 1u);
  }
};

__device__ __forceinline__ Random random_stream(unsigned long long key, unsigned stream, const long long* step) {
  return {key, stream, step == nullptr ? 0u : (unsigned)*step};
}

// The numbers of 16 neighbouring elements, packed as `Random::number` has them.
struct Numbers {
  static constexpr int WORDS = RANDOM_BITS / 2;
  unsigned word[WORDS];

  __device__ __forceinline__ unsigned at(int i) const {
    constexpr int PER_WORD = 32 / RANDOM_BITS;
    return word[i / PER_WORD] >> i % PER_WORD * RANDOM_BITS & ((1u << RANDOM_BITS) - 1u);
  }
};

// Elements e to e + 15. An e that starts no group takes one group more and shifts it into place.
__device__ __forceinline__ Numbers sixteen_numbers(const Random& random, unsigned long long e) {
  constexpr int GROUPS = RANDOM_BITS / 8;
  Numbers numbers;
  unsigned w[4 * GROUPS + 4];
  const unsigned long long first = e * RANDOM_BITS / 128;
  const unsigned off = (unsigned)(e * RANDOM_BITS % 128);  // bits
#pragma unroll
  for (int g = 0; g <= GROUPS; ++g) {
    const uint4 v = g < GROUPS || off ? random.words(first + g) : uint4{0, 0, 0, 0};
    w[4 * g] = v.x;
    w[4 * g + 1] = v.y;
    w[4 * g + 2] = v.z;
    w[4 * g + 3] = v.w;
  }
#pragma unroll
  for (int step = 2; step > 0; step /= 2) {
    if (off & 32u * step) {
#pragma unroll
      for (int i = 0; i + step < 4 * GROUPS + 4; ++i) w[i] = w[i + step];
    }
  }
  const unsigned shift = off % 32;
#pragma unroll
  for (int i = 0; i < Numbers::WORDS; ++i) {
    const unsigned long long both = (unsigned long long)w[i + 1] << 32 | w[i];
    numbers.word[i] = (unsigned)(both >> shift);
  }
  return numbers;
}
