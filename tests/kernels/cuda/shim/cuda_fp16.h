// float16 for the CPU shim: the few names that nvfp's device code uses, by integer arithmetic.
#pragma once
#include "shim.h"

struct __half {
  unsigned short bits;
};
inline __half __ushort_as_half(unsigned short b) { return {b}; }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }

inline float __half2float(__half h) {
  unsigned sign = (unsigned)(h.bits & 0x8000) << 16, e = h.bits >> 10 & 31, m = h.bits & 1023;
  if (e == 31) return __uint_as_float(sign | 0x7f800000u | m << 13);
  float y = std::ldexp((float)(e ? m | 1024 : m), (int)(e ? e : 1) - 25);
  return sign ? -y : y;
}
inline __half __float2half_rn(float x) {
  unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000;
  double a = std::fabs((double)x);
  if (a != a) return {0x7fff};
  int e;
  std::frexp(a, &e);
  e = std::max(e - 1, -14);
  unsigned n = a == 0 ? 0 : (unsigned)std::nearbyint(std::ldexp(a, 10 - e)) + ((unsigned)(e + 14) << 10);
  if (a > 65536.0 || n > 0x7c00) n = 0x7c00;
  return {(unsigned short)(sign | n)};
}
