// Conversions between dense types. load_float() widens exactly (double: to odd, see below), store<T>()
// rounds once to nearest even; float32 subnormals are never flushed (the loader compiles with -ftz=false).
// 16-bit NaNs are written as the quiet NaN with its sign, as NumPy and ml_dtypes write them.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// float64 -> float32, truncated, with the last bit set when anything was lost ("round to odd"). A later
// rounding to at most 22 bits then gives what one rounding of the float64 gives.
__device__ __forceinline__ float to_odd(double x) {
  float y = __double2float_rz(x);
  return (double)y == x || x != x ? y : __uint_as_float(__float_as_uint(y) | 1u);
}

__device__ __forceinline__ float load_float(float x) { return x; }
__device__ __forceinline__ float load_float(double x) { return to_odd(x); }
__device__ __forceinline__ float load_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float load_float(__nv_bfloat16 x) {
  return __uint_as_float((unsigned)__bfloat16_as_ushort(x) << 16);
}
__device__ __forceinline__ float load_float(bool x) { return x ? 1.0f : 0.0f; }
__device__ __forceinline__ float load_float(signed char x) { return (float)x; }
__device__ __forceinline__ float load_float(unsigned char x) { return (float)x; }
__device__ __forceinline__ float load_float(short x) { return (float)x; }
__device__ __forceinline__ float load_float(unsigned short x) { return (float)x; }
// 32- and 64-bit integers: to nearest even, as NumPy's astype(float32).
__device__ __forceinline__ float load_float(int x) { return (float)x; }
__device__ __forceinline__ float load_float(unsigned int x) { return (float)x; }
__device__ __forceinline__ float load_float(long long x) { return (float)x; }
__device__ __forceinline__ float load_float(unsigned long long x) { return (float)x; }

// 64-bit integers -> float32, rounded to odd like to_odd(double).
__device__ __forceinline__ float to_odd(long long x) {
  float y = __ll2float_rz(x);
  return (long long)y == x ? y : __uint_as_float(__float_as_uint(y) | 1u);
}
__device__ __forceinline__ float to_odd(unsigned long long x) {
  float y = __ull2float_rz(x);
  return (unsigned long long)y == x ? y : __uint_as_float(__float_as_uint(y) | 1u);
}

// Truncation to an integer type of BITS bits, clamped to its range; NaN is 0. F is float or double.
template <class T, class F>
__device__ __forceinline__ T to_integer(F x) {
  constexpr bool SIGNED_ = (T)-1 < (T)0;
  constexpr int BITS = sizeof(T) * 8 - (SIGNED_ ? 1 : 0);
  constexpr F END = (F)(1ull << (BITS - 1)) * (F)2;  // 2^BITS, the first number above the range
  constexpr T TOP = (T)(~0ull >> (64 - BITS));
  constexpr T LEAST = SIGNED_ ? (T)(-TOP - 1) : (T)0;
  if (x != x) return (T)0;
  if (x >= END) return TOP;
  if (x <= (SIGNED_ ? -END : (F)0)) return LEAST;
  return (T)x;
}

// Rounds to nearest even; integers truncate and clamp.
template <class T>
__device__ __forceinline__ T store(float x) { return to_integer<T>(x); }
template <>
__device__ __forceinline__ bool store<bool>(float x) { return x != 0.0f; }  // NaN is true
template <>
__device__ __forceinline__ float store<float>(float x) { return x; }
template <>
__device__ __forceinline__ double store<double>(float x) { return (double)x; }
template <>
__device__ __forceinline__ __half store<__half>(float x) {
  unsigned sign = (__float_as_uint(x) >> 16) & 0x8000u;
  return x == x ? __float2half_rn(x) : __ushort_as_half((unsigned short)(sign | 0x7e00u));
}
template <>
__device__ __forceinline__ __nv_bfloat16 store<__nv_bfloat16>(float x) {
  unsigned sign = (__float_as_uint(x) >> 16) & 0x8000u;
  return x == x ? __float2bfloat16_rn(x) : __ushort_as_bfloat16((unsigned short)(sign | 0x7fc0u));
}
