// float32 exp and sigmoid by the very operations of `cpu/_exp.py`, so that what is built on them has the same
// bits on both devices. (CUDA's expf is a little shorter but gives other bits than any CPU library.)
#pragma once

// exp(x) within 1 ulp: x = n ln 2 + r, a polynomial in r, then 2^n in two factors, since 2^n itself may be
// subnormal or too large. NaN stays NaN; beyond -104 and 89 the result is 0 and inf.
__device__ __forceinline__ float exp32(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  float shifted = fmaf(x, 0x1.715476p+0f, 12582912.0f);  // 1.5 * 2^23 rounds n into the low bits
  float n = shifted - 12582912.0f;
  int k = (int)(__float_as_uint(shifted) - 0x4b400000u);
  float r = fmaf(n, -0x1.7f7d1cp-20f, fmaf(n, -0x1.62e4p-1f, x));  // ln 2 in two parts
  float q = fmaf(0x1.6a2434p-10f, r, 0x1.1239e2p-7f);
  q = fmaf(q, r, 0x1.5558f2p-5f);
  q = fmaf(q, r, 0x1.555492p-3f);
  q = fmaf(q, r, 0x1.fffffcp-2f);
  float p = fmaf(r * r, q, r) + 1.0f;
  int half = k >> 1;
  return (p * __uint_as_float((unsigned)(half + 127) << 23)) * __uint_as_float((unsigned)(k - half + 127) << 23);
}

// exp32(x) for -127 < x <= 0, the same bits in fewer instructions: 2^64 e is normal there, so that it takes one sum of
// exponents, and one product rounds what is subnormal. NaN gives
// some number: the sum of exponents carries its bits away.
__device__ __forceinline__ float exp32_below(float x) {
  float shifted = fmaf(x, 0x1.715476p+0f, 12582976.0f);  // n + 64 in the low bits
  float n = shifted - 12582976.0f;
  float r = fmaf(n, -0x1.7f7d1cp-20f, fmaf(n, -0x1.62e4p-1f, x));
  float q = fmaf(0x1.6a2434p-10f, r, 0x1.1239e2p-7f);
  q = fmaf(q, r, 0x1.5558f2p-5f);
  q = fmaf(q, r, 0x1.555492p-3f);
  q = fmaf(q, r, 0x1.fffffcp-2f);
  float p = fmaf(r * r, q, r) + 1.0f;
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23)) * 0x1p-64f;
}

// 1 / b and a / b, correctly rounded, for 1 <= b <= 2 and 0 <= a <= 1 with a / b not subnormal or b = 1: the compiler's
// own sequences without the checks and the branch for operands that need scaling.
__device__ __forceinline__ float inverse_of(float b) {
#ifdef __CUDA_ARCH__
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
  return fmaf(fmaf(-b, r, 1.0f), r, r);
#else
  return 1.0f / b;
#endif
}
__device__ __forceinline__ float quotient(float a, float b) {
#ifdef __CUDA_ARCH__
  const float r = inverse_of(b), q = a * r;
  return fmaf(fmaf(-b, q, a), r, q);
#else
  return a / b;
#endif
}

// sigmoid(z) = (z < 0 ? e : 1) / (1 + e) with e = exp(-|z|): small results keep their relative precision. e is 0 from
// |z| = 104 on; NEAR: |z| is below 127 already. NaN gives some number, as exp32_below: what is not a multiple of z must
// look for it.
struct SigmoidParts {
  float e, total;
};
template <bool NEAR = false>
__device__ __forceinline__ SigmoidParts sigmoid_parts(float z) {
  float below = -fabsf(z);
  if constexpr (!NEAR) below = fmaxf(below, -126.0f);
  float e = exp32_below(below);
  return {e, 1.0f + e};
}
template <bool NEAR = false>
__device__ __forceinline__ float sigmoid32(float z) {
  SigmoidParts s = sigmoid_parts<NEAR>(z);
  return quotient(z < 0.0f ? s.e : 1.0f, s.total);
}
