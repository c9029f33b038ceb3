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

// sigmoid(z) = (z < 0 ? e : 1) / (1 + e) with e = exp(-|z|): small results keep their relative precision.
struct SigmoidParts {
  float e, total;
};
__device__ __forceinline__ SigmoidParts sigmoid_parts(float z) {
  float e = exp32(-__uint_as_float(__float_as_uint(z) & 0x7fffffffu));
  return {e, 1.0f + e};
}
__device__ __forceinline__ float sigmoid32(float z) {
  SigmoidParts s = sigmoid_parts(z);
  return (z < 0.0f ? s.e : 1.0f) / s.total;
}
