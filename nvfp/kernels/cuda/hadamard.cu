// hadamard: the random Hadamard transform of 16 along one axis, bfloat16 out.
//
// The source is seen as [outer, n, inner] with any strides, n the rotated axis; the result likewise, n rounded up to
// 16. A thread owns one group of 16 of WIDE neighbouring inner columns (LINE: one group whose elements are
// neighbours, moved in 16-byte pieces) and keeps it in registers; no shared memory but that of the maximum.
// Order of the sums: butterfly stages of strides 1, 2, 4, 8, then x 0.25, one rounding (nvfp/dtypes/rotation.py).
// Bytes moved per element: sizeof(T_IN) in, 2 out.
//
// Macros: T_IN, WIDE, LINE (0 or 1; WIDE is 1 then), INVERSE, SIGNS (sixteen comma-separated numbers).
#include "convert.cuh"
#include "reduce.cuh"
#include "vec.cuh"

constexpr int THREADS = 256, GROUP = 16;
using T_OUT = __nv_bfloat16;

__device__ __forceinline__ T_OUT rounded(float y) {
  return y == y ? __float2bfloat16_rn(y) : __ushort_as_bfloat16((unsigned short)0x7fc0u);
}

// One group, in place.
__device__ __forceinline__ void rotate(float (&v)[GROUP]) {
  constexpr float signs[GROUP] = {SIGNS};
  if (!INVERSE) {
#pragma unroll
    for (int i = 0; i < GROUP; ++i) v[i] = __fmul_rn(v[i], signs[i]);
  }
#pragma unroll
  for (int stride = 1; stride < GROUP; stride *= 2) {
#pragma unroll
    for (int i = 0; i < GROUP; ++i) {
      if (i & stride) continue;
      const float a = v[i], b = v[i + stride];
      v[i] = __fadd_rn(a, b);
      v[i + stride] = a - b;
    }
  }
#pragma unroll
  for (int i = 0; i < GROUP; ++i) v[i] = __fmul_rn(v[i], INVERSE ? 0.25f * signs[i] : 0.25f);
}

extern "C" __global__ void __launch_bounds__(THREADS)
hadamard(const T_IN* __restrict__ x, T_OUT* __restrict__ y, long long outer, long long n, long long inner,
         long long x_outer, long long x_n, long long x_inner, long long y_outer, long long y_n, long long y_inner,
         float* amax) {
  const long long groups = (n + GROUP - 1) / GROUP, across = inner / WIDE, all = outer * groups * across;
  unsigned most = 0;
  for (long long k = (long long)blockIdx.x * THREADS + threadIdx.x; k < all; k += (long long)gridDim.x * THREADS) {
    const long long o = k / (groups * across), g = k / across % groups, c = k % across * WIDE, r = g * GROUP;
    const T_IN* from = x + o * x_outer + r * x_n + c * x_inner;
    T_OUT* to = y + o * y_outer + r * y_n + c * y_inner;
    float v[WIDE][GROUP];
    if (LINE && r + GROUP <= n) {
      const Vec<T_IN, GROUP> line = load_vec<T_IN, GROUP>(from);
#pragma unroll
      for (int i = 0; i < GROUP; ++i) v[0][i] = load_float(line.at[i]);
    } else {
#pragma unroll
      for (int i = 0; i < GROUP; ++i) {
        if (r + i < n) {
          const Vec<T_IN, WIDE> part = load_vec<T_IN, WIDE>(from + i * x_n);
#pragma unroll
          for (int w = 0; w < WIDE; ++w) v[w][i] = load_float(part.at[w]);
        } else {
#pragma unroll
          for (int w = 0; w < WIDE; ++w) v[w][i] = 0.0f;
        }
      }
    }
#pragma unroll
    for (int w = 0; w < WIDE; ++w) rotate(v[w]);
    if (LINE) {
      Vec<T_OUT, GROUP> line;
#pragma unroll
      for (int i = 0; i < GROUP; ++i) {
        line.at[i] = rounded(v[0][i]);
        most = max(most, counted<true>(load_float(line.at[i])));
      }
      store_vec<T_OUT, GROUP>(to, line);
    } else {
#pragma unroll
      for (int i = 0; i < GROUP; ++i) {
        Vec<T_OUT, WIDE> part;
#pragma unroll
        for (int w = 0; w < WIDE; ++w) {
          part.at[w] = rounded(v[w][i]);
          most = max(most, counted<true>(load_float(part.at[w])));
        }
        store_vec<T_OUT, WIDE>(to + i * y_n, part);
      }
    }
  }
  if (amax == nullptr) return;
  most = block_max<THREADS>(most);
  if (threadIdx.x == 0) record_max(amax, most);
}
