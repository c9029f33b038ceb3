// float32 sine and cosine by the very operations of `cpu/_trig.py`, so that both devices give the same bits.
#pragma once

// sin(x) and cos(x), absolute error below 2^-23.7 for |x| <= 2^17 and 2^-21.5 up to 2^22; NaN beyond, where
// neighbouring float32 angles are half a radian apart or more. x = n pi/2 + r with pi/2 in three parts (the first
// product cancels exactly, since n times 24 bits of pi/2 and x share a grid), then polynomials in r^2.
__device__ __forceinline__ void sincos32(float x, float& s, float& c) {
  x = fabsf(x) <= 0x1p22f ? x : __uint_as_float(0x7fc00000u);
  const float shifted = fmaf(x, 0x1.45f306p-1f, 12582912.0f);  // 1.5 * 2^23 rounds n into the low bits
  const float n = shifted - 12582912.0f;
  const unsigned k = __float_as_uint(shifted);  // n modulo 4 in the last two bits
  const float r = fmaf(n, 0x1.ee59dap-50f, fmaf(n, 0x1.777a5cp-25f, fmaf(n, -0x1.921fb6p+0f, x)));
  const float z = r * r;
  float p = fmaf(-0x1.99422p-13f, z, 0x1.110736p-7f);
  p = fmaf(fmaf(p, z, -0x1.555546p-3f), z * r, r);
  float q = fmaf(0x1.99ea02p-16f, z, -0x1.6c0c2ep-10f);
  q = fmaf(fmaf(fmaf(q, z, 0x1.55554ap-5f), z, -0.5f), z, 1.0f);
  const float even = k & 1u ? q : p, odd = k & 1u ? p : q;
  s = __uint_as_float(__float_as_uint(even) ^ (k & 2u) << 30);
  c = __uint_as_float(__float_as_uint(odd) ^ (k + 1u & 2u) << 30);
}
