// Activation functions and their gradients in float32, operation for operation as in `cpu/activation.py`.
// Kinds are numbered by the table of `kernels/activation.py`. Fused kernels include this file too.
#pragma once
#include "exp.cuh"

enum ActivationKind { GELU = 0, RELU = 1, SILU = 2 };

// 2 sqrt(2/pi) and that times 0.044715: gelu(x) = x sigmoid(2u), 2u = x (A + B x^2).
constexpr float GELU_A = 0x1.988454p+0f, GELU_B = 0x1.2444f4p-4f, GELU_3B = 0x1.b6676ep-3f;
// Beyond these the sigmoid is exactly 0 or 1 in float32; the clip keeps x^2 and x (1 - s) finite.
constexpr float GELU_FAR = 16.0f, SILU_FAR = 128.0f;

__device__ __forceinline__ float clip(float x, float limit) {
  x = x < -limit ? -limit : x;
  return x > limit ? limit : x;
}

template <int KIND>
__device__ __forceinline__ float act(float x) {
  if constexpr (KIND == GELU) {
    float c = clip(x, GELU_FAR);
    return x * sigmoid32(c * fmaf(GELU_B, c * c, GELU_A));
  } else if constexpr (KIND == RELU) {
    return x <= 0.0f ? 0.0f : x;  // NaN passes
  } else {
    return x * sigmoid32(x);
  }
}

// act'(x) * dy
template <int KIND>
__device__ __forceinline__ float act_vjp(float x, float dy) {
  if constexpr (KIND == GELU) {
    float c = clip(x, GELU_FAR);
    float square = c * c, z = c * fmaf(GELU_B, square, GELU_A);
    SigmoidParts part = sigmoid_parts(z);
    float inverse = 1.0f / part.total;
    float s = (z < 0.0f ? part.e : 1.0f) * inverse;
    return fmaf(c * (part.e * inverse * inverse), fmaf(GELU_3B, square, GELU_A), s) * dy;
  } else if constexpr (KIND == RELU) {
    float passed = x > 0.0f ? dy : x;  // x is NaN where neither holds
    return x <= 0.0f ? 0.0f : passed;
  } else {
    float c = clip(x, SILU_FAR);
    SigmoidParts part = sigmoid_parts(c);
    float inverse = 1.0f / part.total;
    float s = (c < 0.0f ? part.e : 1.0f) * inverse, rest = (c < 0.0f ? 1.0f : part.e) * inverse;
    return s * fmaf(c, rest, 1.0f) * dy;
  }
}
