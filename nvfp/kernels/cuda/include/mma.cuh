// One warp's product on tensor cores, and products of two 16-bit numbers at a time. On the CPU (the tests' emulator has
// no __CUDA_ARCH__) the same by shuffles and float32 arithmetic.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class T> struct Half16;  // what a 16-bit float is for arithmetic on registers of two
template <> struct Half16<__nv_bfloat16> {
  static constexpr int MANTISSA = 7, BIAS = 127;
  static __device__ __forceinline__ float widen(unsigned bits) { return __uint_as_float(bits << 16); }
  static __device__ __forceinline__ unsigned narrow(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
};
template <> struct Half16<__half> {
  static constexpr int MANTISSA = 10, BIAS = 15;
  static __device__ __forceinline__ float widen(unsigned bits) { return __half2float(__ushort_as_half((unsigned short)bits)); }
  static __device__ __forceinline__ unsigned narrow(float x) { return __half_as_ushort(__float2half_rn(x)); }
};

// 2^e twice.
template <class T>
__device__ constexpr unsigned POWERS2(int e) { return ((unsigned)(e + Half16<T>::BIAS) << Half16<T>::MANTISSA) * 0x10001u; }

// Two products, subnormals kept. Before Hopper bfloat16 has fused ones only; adding -0 changes nothing.
template <class T>
__device__ __forceinline__ unsigned multiply2(unsigned a, unsigned b) {
#ifdef __CUDA_ARCH__
  unsigned c;
  if constexpr (Half16<T>::BIAS == 127) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(c) : "r"(a), "r"(b), "r"(0x80008000u));
  else asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
#else
  using H = Half16<T>;
  const float low = __fmul_rn(H::widen(a & 0xffffu), H::widen(b & 0xffffu)), high = __fmul_rn(H::widen(a >> 16), H::widen(b >> 16));
  return H::narrow(low) | H::narrow(high) << 16;
#endif
}

// d += a b, with a [16 x 16] and b [16 x 8] of 16-bit floats, d [16 x 8] of float32, spread over a warp as the PTX manual
// says of mma.m16n8k16: with lane = 4 g + t, a holds (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8) and what stands right
// of each, b holds (2t, g), (2t + 8, g) and what stands below each, d holds (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
template <class T>
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#ifdef __CUDA_ARCH__
  if constexpr (Half16<T>::BIAS == 127)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  for (int from = 0; from < 4; ++from) {
    unsigned left[4], right[2][2];
    for (int i = 0; i < 4; ++i) left[i] = __shfl_sync(0xffffffffu, a[i], g * 4 + from);
    for (int j = 0; j < 2; ++j) {
      right[j][0] = __shfl_sync(0xffffffffu, b0, (2 * t + j) * 4 + from);
      right[j][1] = __shfl_sync(0xffffffffu, b1, (2 * t + j) * 4 + from);
    }
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 2; ++j)
        for (int shift = 0; shift < 32; shift += 16)
          d[i % 2 * 2 + j] += Half16<T>::widen(left[i] >> shift & 0xffffu) * Half16<T>::widen(right[j][i / 2] >> shift & 0xffffu);
  }
#endif
}
