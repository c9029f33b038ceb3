// Four or eight codes of a word at once to their exact values, as decode() of each.
#pragma once
#include "encode.cuh"
#include "pack.cuh"

template <class F>
constexpr bool IS_E4M3 = F::BITS == 8 && F::SIGN && F::EXPONENT == 4 && F::MANTISSA == 3 && F::BIAS == 7 &&
                         F::MAX_CODE == 0x7e && F::NAN_CODE == 0x7f && F::NAN_ && !F::INF;
template <class F>
constexpr bool IS_E5M2 = F::BITS == 8 && F::SIGN && F::EXPONENT == 5 && F::MANTISSA == 2 && F::BIAS == 15 &&
                         F::MAX_CODE == 0x7b && F::NAN_ && F::INF;

#ifdef __CUDA_ARCH__
__device__ __forceinline__ void widen_halves(unsigned pair, float& low, float& high) {
  low = __half2float(__ushort_as_half((unsigned short)pair));
  high = __half2float(__ushort_as_half((unsigned short)(pair >> 16)));
}

// E2M1 codes in bits 12 to 15 of each half of `signs` and in bits 9 to 12 of `magnitudes`: float16 has the same fields,
// its exponents 14 lower.
__device__ __forceinline__ void e2m1_halves(unsigned signs, unsigned magnitudes, float& low, float& high) {
  unsigned pair = (signs & 0x80008000u) | (magnitudes & 0x0e000e00u);
  asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(0x74007400u));
  widen_halves(pair, low, high);
}
#endif

#if NVFP_HARDWARE_FP8
template <bool E4M3>
__device__ __forceinline__ void fp8_halves(unsigned word, unsigned& first, unsigned& second) {
  if constexpr (E4M3)
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b;}"
        : "=r"(first), "=r"(second) : "r"(word));
  else
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e5m2x2 %0, a; cvt.rn.f16x2.e5m2x2 %1, b;}"
        : "=r"(first), "=r"(second) : "r"(word));
}
#endif

// One code per byte, the first in the lowest.
template <class F>
__device__ __forceinline__ void decode4(unsigned word, float (&x)[4]) {
#ifdef __CUDA_ARCH__
  if constexpr (IS_E2M1<F>) {
    e2m1_halves(word << 12, word << 9, x[0], x[2]);
    e2m1_halves(word << 4, word << 1, x[1], x[3]);
  } else
#endif
#if NVFP_HARDWARE_FP8
  if constexpr (IS_E4M3<F> || IS_E5M2<F>) {
    unsigned first, second;
    fp8_halves<IS_E4M3<F>>(word, first, second);
    widen_halves(first, x[0], x[1]);
    widen_halves(second, x[2], x[3]);
  } else
#endif
  {
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = decode<F>(word >> 8 * j & 255u);
  }
}

// One code per nibble, the first in the lowest.
template <class F>
__device__ __forceinline__ void decode8(unsigned word, float (&x)[8]) {
#ifdef __CUDA_ARCH__
  if constexpr (IS_E2M1<F>) {
    e2m1_halves(word << 12, word << 9, x[0], x[4]);
    e2m1_halves(word << 8, word << 5, x[1], x[5]);
    e2m1_halves(word << 4, word << 1, x[2], x[6]);
    e2m1_halves(word, word >> 3, x[3], x[7]);
  } else
#endif
  {
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = decode<F>(word >> 4 * j & 15u);
  }
}
