// One quantized format, from the macros that nvfp/kernels/cuda/_constants.py writes out of its row:
// ELEMENT and SCALE (rows), FAMILY, SCALE_RULE, POWER_OF_TWO, NAN_BLOCK, TENSOR_SCALE, and SATURATE of the call.
#pragma once
#include "convert.cuh"
#include "reduce.cuh"
#include "scales.cuh"

enum : int { FLOAT_SCALE = 0, E8M0_SCALE = 1, TWO_LEVEL = 2 };

// What a convention changes (nvfp/dtypes/conventions.py): order of operations, code in place of a scale of 0, least
// narrow scale (bits), mantissa bits of rule even (-1: the element's), whether a finite amax that rounds up to 2^128
// makes a NaN block, whether integer codes are symmetric, whether -0 loses its sign. Only quantize.cu takes CONVENTION.
#ifndef CONVENTION
#define CONVENTION 0, 0, 0, -1, 0, 0, 0
#endif
enum : int { MULTIPLY = 0, MODELOPT = 1, COMPRESSED_TENSORS = 2 };
template <int ORDER_, unsigned ZERO_, unsigned LEAST_, int EVEN_BITS_, int EVEN_OVERFLOW_, int SYMMETRIC_, int UNSIGNED_ZERO_>
struct StepsOf {
  static constexpr int ORDER = ORDER_, EVEN_BITS = EVEN_BITS_;
  static constexpr unsigned ZERO = ZERO_, LEAST = LEAST_;
  static constexpr bool EVEN_OVERFLOW = EVEN_OVERFLOW_, SYMMETRIC = SYMMETRIC_, UNSIGNED_ZERO = UNSIGNED_ZERO_;
};
using Steps = StepsOf<CONVENTION>;

using Element = Format<ELEMENT>;
using Scale = Format<SCALE>;

// What the whole tensor decides for its blocks.
struct Tensor {
  float per_element = 0.0f, decode_factor = 0.0f;  // two-level: fl(S_enc * fl(1 / max)) and fl(1 / S_enc)
  float epsilon = 0.0f, overflow = 0.0f;           // float32 scales
};

// The level of the tensor, from A or (without it) from the decode factor that is given.
__device__ __forceinline__ Tensor tensor_level(const float* amax, const float* given, float epsilon, float overflow) {
  Tensor t;
  if constexpr (FAMILY == TWO_LEVEL && Steps::ORDER != MULTIPLY) {
    t.decode_factor = divided_tensor_factor<Element, Scale, Steps::ORDER == MODELOPT>(amax, given);
  } else if constexpr (FAMILY == TWO_LEVEL) {
    float factor = 1.0f;
    if constexpr (TENSOR_SCALE) {
      factor = amax != nullptr ? s_enc<Element, Scale>(*amax) : s_enc_from_tensor_scale(*given);
    }
    t.per_element = __fmul_rn(factor, __fdiv_rn(1.0f, largest<Element>()));
    t.decode_factor = __fdiv_rn(1.0f, factor);
  }
  t.epsilon = epsilon;
  t.overflow = overflow;
  return t;
}

// The decode factor to store; one thread of a launch calls it.
__device__ __forceinline__ void store_tensor_scale(const float* amax, const float* given, float* stored) {
  if constexpr (TENSOR_SCALE) {
    if constexpr (Steps::ORDER == COMPRESSED_TENSORS) {
      *stored = given != nullptr ? *given : __fdiv_rn(1.0f, divided_tensor_factor<Element, Scale, false>(amax, given));
    } else {
      *stored = given != nullptr ? *given : tensor_scale_from_amax<Element, Scale>(*amax);
    }
  }
}

// The magnitude of an element as its block's maximum counts it: where a block with NaN or inf becomes a NaN
// block both count (as the largest bits); else NaN counts as 0.
__device__ __forceinline__ unsigned block_magnitude(float x) {
  if constexpr (NAN_BLOCK) return magnitude(x);
  else return counted<false>(x);
}

struct Block {
  float multiplier;
  unsigned stored;  // code of the scale, or the bits of a float32 scale
  bool bad;         // a NaN block
};

__device__ __forceinline__ float multiplier_of(unsigned stored, const Tensor& t) {
  if constexpr (FAMILY == E8M0_SCALE) return e8m0_multiplier(stored);
  else if constexpr (Steps::ORDER != MULTIPLY) return divisor<Scale, Steps::ORDER == MODELOPT>(stored, t.decode_factor);
  else return two_level_multiplier<Scale>(stored, t.decode_factor);
}

// From the bits of a block's maximum; `bad` makes a NaN block.
__device__ __forceinline__ Block block_scale(unsigned m, bool bad, const Tensor& t) {
  Block b;
  b.bad = bad;
  if constexpr (FAMILY == FLOAT_SCALE) {
    b.multiplier = fp32_multiplier<Element, POWER_OF_TWO>(__uint_as_float(m), t.epsilon, t.overflow);
    b.stored = b.bad ? 0x7fc00000u : __float_as_uint(__fdiv_rn(1.0f, b.multiplier));
  } else {
    if constexpr (FAMILY == E8M0_SCALE) {
      constexpr int EVEN_BITS = Steps::EVEN_BITS < 0 ? Element::TOP : Steps::EVEN_BITS;
      b.stored = m == 0u ? Steps::ZERO : e8m0_code<Element, SCALE_RULE, EVEN_BITS>(m);
      if constexpr (Steps::EVEN_OVERFLOW && SCALE_RULE == EVEN && NAN_BLOCK) b.bad |= m >= 0x7f800000u - (1u << (22 - EVEN_BITS));
    } else if constexpr (Steps::ORDER != MULTIPLY) {
      b.stored = divided_code<Element, Scale, Steps>(__uint_as_float(m), t.decode_factor);
    } else b.stored = two_level_code<Scale>(__uint_as_float(m), t.per_element);
    b.multiplier = multiplier_of(b.stored, t);
    if (b.bad) b.stored = Scale::NAN_CODE;
  }
  return b;
}

__device__ __forceinline__ Block block_scale(unsigned m, const Tensor& t) {
  return block_scale(m, NAN_BLOCK && m >= 0x7f800000u, t);
}

__device__ __forceinline__ void store_scale(void* scales, long long at, unsigned stored) {
  if constexpr (FAMILY == FLOAT_SCALE) static_cast<unsigned*>(scales)[at] = stored;
  else static_cast<StoredCode<Scale>*>(scales)[at] = (StoredCode<Scale>)stored;
}

// The code of every element of a NaN block.
constexpr unsigned BAD_CODE = Element::NAN_ ? Element::NAN_CODE : 0u;

__device__ __forceinline__ unsigned code_of(float x, const Block& b) {
  float y = Steps::ORDER == MULTIPLY ? __fmul_rn(x, b.multiplier) : __fdiv_rn(x, b.multiplier);
  if constexpr (Steps::UNSIGNED_ZERO) y = __fadd_rn(y, 0.0f);  // -0 + 0 is 0
  if constexpr (Element::INT && Steps::SYMMETRIC) y = y < -largest<Element>() ? -largest<Element>() : y;
  return b.bad ? BAD_CODE : encode<Element, SATURATE>(y);
}
