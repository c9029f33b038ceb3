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

// Four codes of 8 bits at a time: a number, moved to the bits of a float32 below a step, is added to those of the magnitude
// as an integer. That is what encode_random gives from the least normal number on (a sum that reaches the next power of
// two has zeros where the code is cut off). Others and NaN set `slow`: the caller takes encode_random for them.
constexpr bool RANDOM_QUICK = ROUNDING == 1 && !Element::INT && Element::SIGN && Element::BITS == 8 && SATURATE;

// The code's magnitude in the highest byte, whatever below.
template <class F>
__device__ __forceinline__ unsigned random_magnitude(float a, unsigned r, bool& slow) {
  constexpr unsigned LEAST = (unsigned)F::LEAST << 23, STEP = 23 - F::MANTISSA;
  constexpr unsigned MOST = ((F::MAX_CODE + ((unsigned)(F::LEAST - 1) << F::MANTISSA)) << STEP) | ((1u << STEP) - 1u);
  slow |= !(a >= __uint_as_float(LEAST));
  const unsigned moved = __float_as_uint(a) + (r << (STEP - RANDOM_BITS));
  return (min(moved, MOST) << (1 + F::MANTISSA)) - ((unsigned)(F::LEAST - 1) << (24 + F::MANTISSA) % 32);
}

// The highest bytes of four words in one.
__device__ __forceinline__ unsigned high_bytes(unsigned a, unsigned b, unsigned c, unsigned d) {
  return __byte_perm(__byte_perm(a, b, 0x0073), __byte_perm(c, d, 0x0073), 0x5410);
}

// Magnitudes of two products as float16 of a 2^14th, cut off: the E2M1 code is in bits 9 to 11 (numbers below 1 have one
// step there, as subnormals do), its fraction below. What is added first is the rounding of the float32 sum in the rule:
// sums from 1/2 - 2^-26 on become 1/2, if they are not exact; all others are exact or cannot reach the grid.
__device__ __forceinline__ unsigned e2m1_fraction2(float a0, float a1) {
  constexpr float UNIT = 1.0f / (float)(1 << 14);
  const float bit = __uint_as_float((127u - 40u) << 23);
  const float y0 = __fmaf_rz(a0, UNIT, bit), y1 = __fmaf_rz(a1, UNIT, bit);
#ifdef __CUDA_ARCH__
  unsigned both;
  asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y1), "f"(y0));
  return both;
#else
  using Half = Format<16, 5, 10, 15, 0x7bff, 0x7fff, 0x7c00, 7>;
  return encode_toward_zero<Half, false>(y0) | encode_toward_zero<Half, false>(y1) << 16;
#endif
}

// encode_random of E2M1 for the magnitudes of two products; the numbers are the lower bytes of the halves of `random`.
// The codes are in bits 9 to 11 of the halves, zeros above; NaN gives some code.
__device__ __forceinline__ unsigned e2m1_random2(float a0, float a1, unsigned random) {
  return __vminu2(e2m1_fraction2(a0, a1) + 2u * random, 0x0fff0fffu);
}
__device__ __forceinline__ unsigned even_bytes(unsigned word) { return word & 0x00ff00ffu; }
__device__ __forceinline__ unsigned odd_bytes(unsigned word) { return __byte_perm(word, 0u, 0x4341); }

// The bits of `a` under a mask, those of `b` beside it: one instruction, which the compiler does not always find.
__device__ __forceinline__ unsigned select_bits(unsigned mask, unsigned a, unsigned b) {
#ifdef __CUDA_ARCH__
  unsigned both;
  asm("lop3.b32 %0, %1, %2, %3, 0xd8;" : "=r"(both) : "r"(b), "r"(a), "r"(mask));
  return both;
#else
  return (a & mask) | (b & ~mask);
#endif
}

// Four of them by the bytes of a word: as nibbles in byte 1 (the first and second one) and byte 3.
__device__ __forceinline__ unsigned e2m1_random4(const float* a, unsigned random) {
  const unsigned even = e2m1_random2(a[0], a[2], even_bytes(random)), odd = e2m1_random2(a[1], a[3], odd_bytes(random));
  return select_bits(0xf000f000u, odd << 3, even >> 1);
}
// Eight of them in a word.
__device__ __forceinline__ unsigned e2m1_random8(const float* a, unsigned random0, unsigned random1) {
  return __byte_perm(e2m1_random4(a, random0), e2m1_random4(a + 4, random1), 0x7531);
}

// The same for one product by a byte of a word, as e2m1_magnitude has it: lines rounded down.
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

// Elements e to e + 15. An e that starts no group (never so if Aligned) takes one group more and shifts it into place.
template <bool Aligned = false>
__device__ __forceinline__ Numbers sixteen_numbers(const Random& random, unsigned long long e) {
  constexpr int GROUPS = RANDOM_BITS / 8;
  Numbers numbers;
  unsigned w[4 * GROUPS + 4];
  const unsigned long long first = e * RANDOM_BITS / 128;
  const unsigned off = Aligned ? 0u : (unsigned)(e * RANDOM_BITS % 128);  // bits
#pragma unroll
  for (int g = 0; g <= GROUPS; ++g) {
    const uint4 v = g < GROUPS || off ? random.words(first + g) : uint4{0, 0, 0, 0};
    w[4 * g] = v.x;
    w[4 * g + 1] = v.y;
    w[4 * g + 2] = v.z;
    w[4 * g + 3] = v.w;
  }
  if (off == 0) {
#pragma unroll
    for (int i = 0; i < Numbers::WORDS; ++i) numbers.word[i] = w[i];
    return numbers;
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
