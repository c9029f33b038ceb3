// Scale rules: the device twins of nvfp/dtypes/scales.py, one IEEE operation for each float32 operation there, in
// the same order. Every function names the rule it repeats; the bits are compared in the tests.
#pragma once
#include "encode.cuh"

enum : int { CEIL = 0, FLOOR = 1, EVEN = 2 };

template <class E>
__device__ __forceinline__ float largest() { return __uint_as_float(E::MAX_BITS); }

// Neither 0 nor inf nor NaN.
__device__ __forceinline__ bool usable(float a) {
  unsigned bits = __float_as_uint(a) & 0x7fffffffu;
  return bits != 0u && bits < 0x7f800000u;
}

// min(x, FLT_MAX), NaN kept.
__device__ __forceinline__ float capped(float x) {
  const float most = __uint_as_float(0x7f7fffffu);
  return x > most ? most : x;
}

// e8m0_from_amax, from the bits of amax, by comparing significands: never a float logarithm.
template <class E, int Rule, int EvenBits = E::TOP>
__device__ __forceinline__ unsigned e8m0_code(unsigned amax) {
  if (amax >= 0x7f800000u) return amax == 0x7f800000u ? 254u : 255u;
  if (amax == 0u) return 0u;
  int k = (int)(amax >> 23);
  unsigned m = amax & 0x7fffffu;
  if (k == 0) {  // a float32 subnormal: shift its leading bit into place
    int shift = __clz((int)amax) - 8;
    m = (amax << shift) & 0x7fffffu;
    k = 1 - shift;
  }
  constexpr unsigned LIMIT = Rule == EVEN ? 0x800000u - (1u << (22 - EvenBits)) - 1u : E::MAX_BITS & 0x7fffffu;
  int code = k - (E::MOST - 127) + (Rule != FLOOR && m > LIMIT ? 1 : 0);
  return (unsigned)max(0, min(code, 254));
}

// 2^(127 - code), what the elements of a block are multiplied by; the last two are float32 subnormals.
__device__ __forceinline__ float e8m0_multiplier(unsigned code) {
  return __uint_as_float(code < 254u ? (254u - code) << 23 : 0x00400000u >> (code - 254u));
}

// fp32_from_amax: the multiplier max / amax.
template <class E, bool PowerOfTwo>
__device__ __forceinline__ float fp32_multiplier(float amax, float epsilon, float overflow) {
  if (amax < epsilon) amax = epsilon;
  if (!usable(amax)) return 1.0f;
  float scale = __fdiv_rn(largest<E>(), amax);
  if ((__float_as_uint(scale) & 0x7fffffffu) == 0x7f800000u) scale = overflow;
  return PowerOfTwo ? __uint_as_float(__float_as_uint(scale) & 0xff800000u) : scale;
}

// s_enc, s_enc_from_tensor_scale, tensor_scale_from_amax: the tensor's level of two.
template <class E, class S>
__device__ __forceinline__ float product_of_largest() { return __fmul_rn(largest<E>(), largest<S>()); }

template <class E, class S>
__device__ __forceinline__ float s_enc(float amax) {
  return usable(amax) ? capped(__fdiv_rn(product_of_largest<E, S>(), amax)) : 1.0f;
}
__device__ __forceinline__ float s_enc_from_tensor_scale(float t) {
  return usable(t) ? capped(__fdiv_rn(1.0f, t)) : 1.0f;
}
template <class E, class S>
__device__ __forceinline__ float tensor_scale_from_amax(float amax) {
  bool finite = (__float_as_uint(amax) & 0x7fffffffu) < 0x7f800000u;
  return finite ? __fdiv_rn(amax, product_of_largest<E, S>()) : 1.0f;
}

// nvfp4_block_scale and nvfp4_multiplier; per_element is fl(S_enc * fl(1 / max)), decode is fl(1 / S_enc).
template <class S>
__device__ __forceinline__ unsigned two_level_code(float amax, float per_element) {
  return encode<S, true>(capped(__fmul_rn(amax, per_element)));
}
template <class S>
__device__ __forceinline__ float two_level_multiplier(unsigned code, float decode_factor) {
  return capped(__frcp_rn(__fmul_rn(decode<S>(code), decode_factor)));
}

// divided_tensor_level, divided_block_scale, divisor: conventions that divide. A divisor of 0 is the least float32.
__device__ __forceinline__ float above_zero(float x) { return fmaxf(x, __uint_as_float(1u)); }

template <class E, class S, bool Modelopt>
__device__ __forceinline__ float divided_tensor_factor(const float* amax, const float* given) {
  if constexpr (Modelopt) {
    const float g = given != nullptr ? *given : tensor_scale_from_amax<E, S>(*amax);
    return (__float_as_uint(g) & 0x7fffffffu) < 0x7f800000u ? g : 1.0f;
  } else {
    const float factor = amax != nullptr ? __fmul_rn(__fdiv_rn(1.0f, *amax), product_of_largest<E, S>()) : __fdiv_rn(1.0f, *given);
    return (__float_as_uint(factor) & 0x7fffffffu) < 0x7f800000u ? factor : 1.0f;
  }
}
template <class S, bool Modelopt>
__device__ __forceinline__ float divisor(unsigned code, float tensor) {
  return above_zero(Modelopt ? __fmul_rn(decode<S>(code), tensor) : __fdiv_rn(decode<S>(code), tensor));
}
template <class E, class S, class How>
__device__ __forceinline__ unsigned divided_code(float amax, float tensor) {
  constexpr bool MODELOPT_ORDER = How::ORDER == 1;
  float wanted = MODELOPT_ORDER ? __fdiv_rn(amax, above_zero(__fmul_rn(largest<E>(), tensor)))
                                : __fmul_rn(tensor, __fdiv_rn(amax, largest<E>()));
  if (wanted > 0.0f) wanted = fmaxf(wanted, __uint_as_float(How::LEAST));
  const unsigned code = encode<S, true>(wanted);
  return code == 0u ? How::ZERO : code;
}
