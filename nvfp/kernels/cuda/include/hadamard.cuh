// The random Hadamard transform of 16 values that a thread holds; the order of its sums is part of the format
// (nvfp/dtypes/rotation.py).
//
// Macro: SIGNS (sixteen comma-separated numbers).
#pragma once
#include "convert.cuh"

constexpr int GROUP = 16;

// In place: stages of strides 1, 2, 4, 8, then x 0.25; the signs first, or last for the inverse.
template <bool Inverse = false>
__device__ __forceinline__ void rotate(float (&v)[GROUP]) {
  constexpr float signs[GROUP] = {SIGNS};
  if (!Inverse) {
#pragma unroll
    for (int i = 0; i < GROUP; ++i) v[i] = signs[i] < 0.0f ? -v[i] : v[i];
  }
#pragma unroll
  for (int stride = 1; stride < GROUP; stride *= 2) {
#pragma unroll
    for (int i = 0; i < GROUP; ++i) {
      if (i & stride) continue;
      const float a = v[i], b = v[i + stride];
      v[i] = __fadd_rn(a, b);
      v[i + stride] = __fadd_rn(a, -b);
    }
  }
#pragma unroll
  for (int i = 0; i < GROUP; ++i) v[i] = __fmul_rn(v[i], Inverse ? 0.25f * signs[i] : 0.25f);
}

// Two values rounded to bfloat16, in the halves of a word. A NaN is some NaN.
__device__ __forceinline__ unsigned rounded2(float low, float high) {
#ifdef __CUDA_ARCH__
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  return __bfloat16_as_ushort(__float2bfloat16_rn(low)) | (unsigned)__bfloat16_as_ushort(__float2bfloat16_rn(high)) << 16;
#endif
}
