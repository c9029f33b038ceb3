// bfloat16 for the CPU shim: the few names that nvfp's device code uses.
#pragma once
#include "shim.h"

struct __nv_bfloat16 {
  unsigned short bits;
};
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short b) { return {b}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.bits; }
inline float __bfloat162float(__nv_bfloat16 h) { return __uint_as_float((unsigned)h.bits << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  unsigned u = __float_as_uint(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {(unsigned short)((u + 0x7fffu + (u >> 16 & 1u)) >> 16)};
}
