// The element codec: one template over the numbers of an element row (nvfp/dtypes/elements.py), blind to
// names. Bit-equal to nvfp/dtypes/codec.py for every float32 input; codes are right-aligned in a byte.
//
// A row reaches the source as -DELEMENT=bits,exponent,mantissa,bias,max_code,nan_code,overflow_code,flags
// (written by nvfp/kernels/cuda/_constants.py) and is used as Format<ELEMENT>.
#pragma once

enum : int { HAS_NAN = 1, HAS_INF = 2, SIGNED = 4, INTEGER = 8 };

template <int BITS_, int EXPONENT_, int MANTISSA_, int BIAS_, int MAX_CODE_, int NAN_CODE_, int OVERFLOW_CODE_, int FLAGS_>
struct Format {
  static constexpr int BITS = BITS_, EXPONENT = EXPONENT_, MANTISSA = MANTISSA_, BIAS = BIAS_;
  static constexpr unsigned MAX_CODE = MAX_CODE_, NAN_CODE = NAN_CODE_, OVERFLOW_CODE = OVERFLOW_CODE_;
  static constexpr bool NAN_ = FLAGS_ & HAS_NAN, INF = FLAGS_ & HAS_INF, SIGN = FLAGS_ & SIGNED, INT = FLAGS_ & INTEGER;
  static constexpr bool PACKED = BITS == 4;                    // two codes per byte, low nibble first
  static constexpr bool E8M0 = !SIGN && !INT && MANTISSA == 0; // a biased power of two, no zero
  static constexpr unsigned SIGN_CODE = SIGN ? 1u << (BITS - 1) : 0u;
  static constexpr unsigned MASK = ~0u >> (32 - BITS);
  // Float32 exponent field of the smallest normal value, and of the largest finite one.
  static constexpr int LEAST = 127 + 1 - BIAS;
  static constexpr int TOP = INT ? BITS - 2 : MANTISSA;  // mantissa bits of the largest value
  static constexpr int MOST = INT ? 127 + TOP - MANTISSA : (int)(MAX_CODE >> MANTISSA) - BIAS + 127;
  // Bits of the largest finite value as float32 (every element format's largest value is normal there).
  static constexpr unsigned MAX_BITS =
      ((unsigned)MOST << 23) | ((MAX_CODE & ((1u << TOP) - 1u)) << (23 - TOP));
};

// What stores one code: a byte, or the 16 bits of a wider scale format.
template <bool WIDE> struct CodeType { using type = unsigned char; };
template <> struct CodeType<true> { using type = unsigned short; };
template <class F> using StoredCode = typename CodeType<(F::BITS > 8)>::type;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define NVFP_HARDWARE_FP8 1
#else
#define NVFP_HARDWARE_FP8 0
#endif

// Sign-magnitude floats, to nearest even. Works on the magnitude in float32: adding C = 2^(e + 23 - mantissa)
// (e: the exponent of |x|, at least the smallest normal one) rounds |x| to a multiple of 2^(e - mantissa).
template <class F, bool Clamp>
__device__ __forceinline__ unsigned encode_float(float x) {
  unsigned bits = __float_as_uint(x), a = bits & 0x7fffffffu;
  bool nan = a > 0x7f800000u;
  constexpr unsigned LIMIT = Clamp ? F::MAX_BITS : (unsigned)(F::MOST + 1) << 23;  // beyond: the same result
  a = a < LIMIT ? a : LIMIT;
  unsigned e = a & 0x7f800000u;
  constexpr unsigned LEAST = (unsigned)F::LEAST << 23;
  e = e > LEAST ? e : LEAST;
  unsigned c = e + ((unsigned)(23 - F::MANTISSA) << 23);
  unsigned code = __float_as_uint(__fadd_rn(__uint_as_float(a), __uint_as_float(c))) - c;
  code += (e - LEAST) >> (23 - F::MANTISSA);
  if (!Clamp) code = code > F::MAX_CODE ? F::OVERFLOW_CODE : code;
  code |= (bits >> (32 - F::BITS)) & F::SIGN_CODE;
  return nan ? F::NAN_CODE : code;
}

// Float32 cut short: bfloat16, for which the C of encode_float would lie beyond float32.
template <class F, bool Clamp>
__device__ __forceinline__ unsigned encode_short(float x) {
  constexpr int SHIFT = 23 - F::MANTISSA;
  const unsigned bits = __float_as_uint(x), a = bits & 0x7fffffffu;
  unsigned code = (a + (1u << (SHIFT - 1)) - 1u + ((a >> SHIFT) & 1u)) >> SHIFT;
  if (code > F::MAX_CODE) code = Clamp ? F::MAX_CODE : F::OVERFLOW_CODE;
  return a > 0x7f800000u ? F::NAN_CODE : code | ((bits >> (32 - F::BITS)) & F::SIGN_CODE);
}

// Two's complement fixed point: round(x * 2^mantissa) to nearest even, clamped; NaN is 0.
template <class F>
__device__ __forceinline__ unsigned encode_integer(float x) {
  constexpr float STEPS = (float)(1 << F::MANTISSA);
  float y = rintf(__fmul_rn(x, STEPS));
  y = fminf(fmaxf(y, -(float)F::MAX_CODE - 1.0f), (float)F::MAX_CODE);
  return x == x ? (unsigned)(int)y & F::MASK : F::NAN_CODE;
}

// The nearest power of two (ties up); 0 and less than 2^-127 give code 0, negative numbers NaN.
template <class F, bool Clamp>
__device__ __forceinline__ unsigned encode_power_of_two(float x) {
  unsigned bits = __float_as_uint(x), a = bits & 0x7fffffffu;
  unsigned code = (a >> 23) + ((a >> 22) & 1u);
  if (a < 0x00800000u) code = a >= 0x00600000u ? 1u : 0u;  // float32 subnormals: 1.5 * 2^-127 rounds up to 2^-126
  if (code > F::MAX_CODE) code = Clamp ? F::MAX_CODE : F::OVERFLOW_CODE;
  bool negative = bits > 0x80000000u;
  return a > 0x7f800000u || negative ? F::NAN_CODE : code;
}

template <class F, bool Clamp>
__device__ __forceinline__ unsigned encode(float x) {
  if constexpr (F::E8M0) return encode_power_of_two<F, Clamp>(x);
  else if constexpr (F::INT) return encode_integer<F>(x);
  else if constexpr (F::EXPONENT == 8) return encode_short<F, Clamp>(x);
  else return encode_float<F, Clamp>(x);
}

// Cut off toward zero. What is finite and too large becomes the largest value; infinities follow Clamp.
template <class F, bool Clamp>
__device__ __forceinline__ unsigned encode_toward_zero(float x) {
  const unsigned bits = __float_as_uint(x), a = bits & 0x7fffffffu, infinity = Clamp ? F::MAX_CODE : F::OVERFLOW_CODE;
  if (a > 0x7f800000u) return F::NAN_CODE;
  if constexpr (F::E8M0) {
    return bits > 0x80000000u ? F::NAN_CODE : a == 0x7f800000u ? infinity : a >> 23;
  } else if constexpr (F::INT) {
    constexpr float STEPS = (float)(1 << F::MANTISSA), MOST = (float)(F::MAX_CODE + 1u);
    const unsigned k = min((unsigned)fminf(__fmul_rn(__uint_as_float(a), STEPS), MOST), F::MAX_CODE + (bits >> 31));
    return (bits >> 31 ? 0u - k : k) & F::MASK;
  } else {
    constexpr unsigned LEAST = (unsigned)F::LEAST << 23;
    constexpr float SUBNORMALS = (float)(1u << (F::MANTISSA + F::BIAS - 1));  // 1 / the smallest one
    const unsigned code = a >= LEAST ? (a >> (23 - F::MANTISSA)) - ((unsigned)(F::LEAST - 1) << F::MANTISSA)
                                     : (unsigned)__fmul_rn(__uint_as_float(a), SUBNORMALS);
    return (a == 0x7f800000u ? infinity : min(code, F::MAX_CODE)) | ((bits >> (32 - F::BITS)) & F::SIGN_CODE);
  }
}

// Two codes, the first in the low byte. Ada and newer convert pairs to E4M3 and E5M2 in one instruction.
template <class F, bool Clamp>
__device__ __forceinline__ unsigned encode2(float x0, float x1) {
#if NVFP_HARDWARE_FP8
  constexpr bool CANONICAL = Clamp && F::SIGN && F::BITS == 8 && F::NAN_CODE == 0x7f;
  unsigned short both;
  if constexpr (CANONICAL && F::MANTISSA == 3 && F::BIAS == 7 && F::MAX_CODE == 0x7e) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(x1), "f"(x0));
    return both;
  } else if constexpr (CANONICAL && F::MANTISSA == 2 && F::BIAS == 15 && F::MAX_CODE == 0x7b) {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(x1), "f"(x0));
    return both;
  }
#endif
  return encode<F, Clamp>(x0) | encode<F, Clamp>(x1) << 8;
}

// Whether a row is laid out as E2M1: 0, .5, 1, 1.5, 2, 3, 4, 6, whose largest positive code stands for NaN.
template <class F>
constexpr bool IS_E2M1 = F::BITS == 4 && F::SIGN && F::EXPONENT == 2 && F::MANTISSA == 1 && F::BIAS == 1 &&
                         F::MAX_CODE == 7 && F::NAN_CODE == 7 && F::OVERFLOW_CODE == 7;

// The magnitude code of E2M1 as the bits of 1.5 * 2^23 + code, 1.5 * 2^23 being where a float32 sum rounds to an integer.
// The code of |x| is the least of 2 |x|, |x| + 2, |x| / 2 + 4 and 7, each rounded: the lines meet at whole codes, even
// ones where the step changes, so that ties go to even codes as they should. From 2 on they are lines in d, which ends
// at 6, where the code is 7. Sums of one binade order as their bits do. NaN gives some code.
constexpr unsigned E2M1_BASE = 0x4b400000u;

__device__ __forceinline__ unsigned e2m1_magnitude(float x) {
  const float y = fabsf(x);
  const float d = __saturatef(__fmaf_rn(y, 0.25f, -0.5f));  // exact within [2, 6]
  const unsigned below = __float_as_uint(__fmaf_rn(y, 2.0f, __uint_as_float(E2M1_BASE)));
  const unsigned middle = __float_as_uint(__fmaf_rn(d, 4.0f, __uint_as_float(E2M1_BASE + 4u)));
  const unsigned above = __float_as_uint(__fmaf_rn(d, 2.0f, __uint_as_float(E2M1_BASE + 5u)));
  return min(min(below, middle), above);
}

template <class F>
__device__ __forceinline__ unsigned encode_e2m1(float x) {
  const unsigned code = (e2m1_magnitude(x) & 7u) | (__float_as_uint(x) >> 28 & 8u);
  return x == x ? code : F::NAN_CODE;
}

// Eight codes in a word, the first in the lowest nibble; NaN must not occur. The magnitudes are summed at their places
// (their common base falls away at the end), the signs gathered by byte permutations.
__device__ __forceinline__ unsigned magnitudes8_e2m1(const float* x) {
  unsigned word = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) word += (e2m1_magnitude(x[k]) - E2M1_BASE) << 4 * k;
  return word;
}
__device__ __forceinline__ unsigned signs8(const float* x) {
  unsigned bits[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) bits[k] = __float_as_uint(x[k]);
  const unsigned even = __byte_perm(__byte_perm(bits[0], bits[2], 0x73), __byte_perm(bits[4], bits[6], 0x73), 0x5410);
  const unsigned odd = __byte_perm(__byte_perm(bits[1], bits[3], 0x73), __byte_perm(bits[5], bits[7], 0x73), 0x5410);
  return (even & 0x80808080u) >> 4 | (odd & 0x80808080u);
}
__device__ __forceinline__ unsigned encode8_e2m1(const float* x) { return magnitudes8_e2m1(x) | signs8(x); }

#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ >= 1000
#define NVFP_HARDWARE_FP4 1
#else
#define NVFP_HARDWARE_FP4 0
#endif

// Two 4-bit codes in a byte, the first in the low nibble.
template <class F, bool Clamp>
__device__ __forceinline__ unsigned encode_packed2(float x0, float x1) {
  static_assert(F::PACKED, "two codes per byte");
  if constexpr (IS_E2M1<F>) {
#if NVFP_HARDWARE_FP4
    unsigned both;
    asm("{.reg .b8 b; cvt.rn.satfinite.e2m1x2.f32 b, %1, %2; cvt.u32.u8 %0, b;}" : "=r"(both) : "f"(x1), "f"(x0));
    return both;
#else
    return encode_e2m1<F>(x0) | encode_e2m1<F>(x1) << 4;
#endif
  } else {
    return encode<F, Clamp>(x0) | encode<F, Clamp>(x1) << 4;
  }
}

// The exact value of a code (every value of every element format is a float32).
template <class F>
__device__ __forceinline__ float decode(unsigned code) {
  if constexpr (F::E8M0) {
    unsigned bits = code == 0 ? 0x00400000u : code << 23;  // 2^-127 is a float32 subnormal
    return __uint_as_float(code == F::NAN_CODE ? 0x7fc00000u : bits);
  } else if constexpr (F::INT) {
    constexpr float STEP = 1.0f / (float)(1 << F::MANTISSA);
    return __fmul_rn((float)((int)(code << (32 - F::BITS)) >> (32 - F::BITS)), STEP);
  } else {
    unsigned magnitude = code & (F::MASK >> 1);
    constexpr unsigned UNIT = (unsigned)(127 + 127 - F::BIAS) << 23;  // 2^(127 - bias): exact, subnormals included
    float y = __fmul_rn(__uint_as_float(magnitude << (23 - F::MANTISSA)), __uint_as_float(UNIT));
    unsigned bits = __float_as_uint(y) | (code & F::SIGN_CODE) << (32 - F::BITS);
    if constexpr (F::INF) bits = magnitude == F::OVERFLOW_CODE ? 0x7f800000u | (bits & 0x80000000u) : bits;
    if constexpr (F::NAN_) bits = magnitude > (F::INF ? F::OVERFLOW_CODE : F::MAX_CODE) ? 0x7fc00000u : bits;
    return __uint_as_float(bits);
  }
}
