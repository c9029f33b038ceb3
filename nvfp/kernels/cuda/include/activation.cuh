// Activation functions and their gradients in float32, operation for operation as in `cpu/_act.py`.
// Kinds are numbered by the table of `kernels/activation.py`. Fused kernels include this file too.
#pragma once
#include "exp.cuh"

enum ActivationKind { GELU = 0, RELU = 1, SILU = 2, QGELU = 3, SRELU = 4, SIGMOID = 5, CLAMPED = 6 };

// 2 sqrt(2/pi) and that times 0.044715: gelu(x) = x sigmoid(2u), 2u = x (A + B x^2).
constexpr float GELU_A = 0x1.988454p+0f, GELU_B = 0x1.2444f4p-4f, GELU_3B = 0x1.b6676ep-3f;
constexpr float QGELU_Q = 0x1.b3b646p+0f;
// Of CLAMPED alone.
#ifndef ACT_LIMIT
#define ACT_LIMIT 7.0f
#define ACT_ALPHA QGELU_Q
#define ACT_OFFSET 1.0f
#endif
// Beyond these the sigmoid is exactly 0 or 1 in float32; the clip keeps x^2 and x (1 - s) finite, and the argument of
// exp above -127 (the CPU's limits are wider: the results are the same).
constexpr float GELU_FAR = 10.75f, SIGMOID_FAR = 126.0f;

__device__ __forceinline__ float clip(float x, float limit) {
  x = x < -limit ? -limit : x;
  return x > limit ? limit : x;
}

// ALONE: gelu in one instruction less, by other ones than those that it shares with its gradient otherwise.
template <int KIND, bool ALONE = false>
__device__ __forceinline__ float act(float x) {
  if constexpr (KIND == GELU && ALONE) {
    float a = fminf(fabsf(x), GELU_FAR), e = exp32_below(-a * fmaf(GELU_B, a * a, GELU_A));  // of a NaN: some number
    return x * quotient(x < 0.0f ? e : 1.0f, 1.0f + e);
  } else if constexpr (KIND == GELU) {
    float c = clip(x, GELU_FAR);
    return x * sigmoid32<true>(c * fmaf(GELU_B, c * c, GELU_A));
  } else if constexpr (KIND == RELU) {
    return x <= 0.0f ? 0.0f : x;  // NaN passes
  } else if constexpr (KIND == SILU) {
    return x * sigmoid32(x);
  } else if constexpr (KIND == QGELU) {
    return x * sigmoid32(QGELU_Q * x);
  } else if constexpr (KIND == SRELU) {
    float r = x <= 0.0f ? 0.0f : x;
    return r * r;
  } else if constexpr (KIND == CLAMPED) {
    float c = x > ACT_LIMIT ? ACT_LIMIT : x;
    return c * sigmoid32(ACT_ALPHA * c);
  } else {
    static_assert(KIND == SIGMOID, "a kind of the table");
    return x == x ? sigmoid32(x) : x;
  }
}

// silu'(x) = s (1 + x (1 - s)); qgelu' is the same at 1.702 x.
__device__ __forceinline__ float silu_slope(float x) {
  float c = clip(x, SIGMOID_FAR);
  SigmoidParts part = sigmoid_parts<true>(c);
  float inverse = inverse_of(part.total);
  float s = (c < 0.0f ? part.e : 1.0f) * inverse, rest = (c < 0.0f ? 1.0f : part.e) * inverse;
  return s * fmaf(c, rest, 1.0f);
}

// act'(x) * dy
template <int KIND>
__device__ __forceinline__ float act_vjp(float x, float dy) {
  if constexpr (KIND == GELU) {
    float c = clip(x, GELU_FAR);
    float square = c * c, z = c * fmaf(GELU_B, square, GELU_A);
    SigmoidParts part = sigmoid_parts<true>(z);
    float inverse = inverse_of(part.total);
    float s = (z < 0.0f ? part.e : 1.0f) * inverse;
    return fmaf(c * (part.e * inverse * inverse), fmaf(GELU_3B, square, GELU_A), s) * dy;
  } else if constexpr (KIND == RELU || KIND == SRELU) {
    float slope_dy = KIND == RELU ? dy : (x + x) * dy;
    float passed = x > 0.0f ? slope_dy : x;  // x is NaN where neither holds
    return x <= 0.0f ? 0.0f : passed;
  } else if constexpr (KIND == SILU) {
    return silu_slope(x) * dy;
  } else if constexpr (KIND == QGELU) {
    return silu_slope(QGELU_Q * x) * dy;
  } else if constexpr (KIND == CLAMPED) {
    float passed = x <= ACT_LIMIT ? silu_slope(ACT_ALPHA * x) * dy : x;  // x is NaN where neither holds
    return x > ACT_LIMIT ? 0.0f : passed;
  } else {
    static_assert(KIND == SIGMOID, "a kind of the table");
    SigmoidParts part = sigmoid_parts(x);
    float inverse = inverse_of(part.total);
    return x == x ? part.e * inverse * inverse * dy : x;
  }
}

// What a gated kind multiplies act(a) by: the second half, which CLAMPED cuts first.
template <int KIND>
__device__ __forceinline__ float factor(float b) {
  if constexpr (KIND == CLAMPED) return clip(b, ACT_LIMIT) + ACT_OFFSET;
  else return b;
}

// factor'(b) * dy
template <int KIND>
__device__ __forceinline__ float factor_vjp(float b, float dy) {
  if constexpr (KIND == CLAMPED) {
    float passed = fabsf(b) <= ACT_LIMIT ? dy : b;  // b is NaN where neither holds
    return fabsf(b) > ACT_LIMIT ? 0.0f : passed;
  } else {
    return dy;
  }
}
