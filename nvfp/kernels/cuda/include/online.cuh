// The sum of exponentials of a row in one pass ("online softmax"), for softmax and cross_entropy: each thread keeps a
// running maximum and the sum of exp relative to it; they meet by xor shuffles in a fixed tree, so calls repeat their
// bits. A row belongs to blockDim.x threads (whole warps, at most MOST_THREADS); several rows share a block only where
// each has one warp.
#pragma once

#define INF __uint_as_float(0x7f800000u)
constexpr int MOST_THREADS = 512;
constexpr unsigned ALL = 0xffffffffu;

// The sum of one value per thread of a row; every thread of the row gets it.
template <class F>
__device__ __forceinline__ F row_sum(F x) {
  __shared__ F part[32];
#pragma unroll
  for (int k = 16; k > 0; k /= 2) x += __shfl_xor_sync(ALL, x, k);
  if (blockDim.x == 32) return x;
  __syncthreads();  // a former call's readers are done
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? part[threadIdx.x % 32] : F(0);
#pragma unroll
  for (int k = 16; k > 0; k /= 2) x += __shfl_xor_sync(ALL, x, k);
  return x;
}

// The largest value of a row (NaN is none) for every thread of it.
__device__ __forceinline__ float row_max(float x) {
  __shared__ float part[32];
#pragma unroll
  for (int k = 16; k > 0; k /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, k));
  if (blockDim.x == 32) return x;
  __syncthreads();  // a former call's readers are done
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? part[threadIdx.x % 32] : -INF;
#pragma unroll
  for (int k = 16; k > 0; k /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, k));
  return x;
}

// exp(x) for x <= 0, within 2 ulp plus |x| / 2 ulp; 0 instead of subnormal results.
__device__ __forceinline__ float exp_below(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 0x1.715476p+0f));
  return y;
#else
  return exp2f(x * 0x1.715476p+0f);
#endif
}

// sum of exp(x - top) over what was seen; while nothing but -inf was seen, exp is taken relative to 0.
struct Running {
  float top, sum;
};
__device__ __forceinline__ float base_of(float top) { return top == -INF ? 0.0f : top; }

template <int N>
__device__ __forceinline__ void add(Running& r, const float (&x)[N]) {
  float top = r.top;
#pragma unroll
  for (int j = 0; j < N; ++j) top = x[j] > top ? x[j] : top;  // NaN is never the top, but makes the sum NaN
  const float base = base_of(top);
  if (top > r.top) {
    r.sum *= expf(r.top - base);
    r.top = top;
  }
#pragma unroll
  for (int j = 0; j < N; ++j) r.sum += expf(x[j] - base);
}

__device__ __forceinline__ Running merge(Running a, Running b) {
  const float top = a.top > b.top ? a.top : b.top, base = base_of(top);
  return {top, a.sum * expf(a.top - base) + b.sum * expf(b.top - base)};
}

__device__ __forceinline__ Running warp_merge(Running r) {
#pragma unroll
  for (int k = 16; k > 0; k /= 2) r = merge(r, {__shfl_xor_sync(ALL, r.top, k), __shfl_xor_sync(ALL, r.sum, k)});
  return r;
}

__device__ __forceinline__ Running row_merge(Running r) {
  __shared__ float tops[32], sums[32];
  r = warp_merge(r);
  if (blockDim.x == 32) return r;
  __syncthreads();  // a former row's readers are done
  if (threadIdx.x % 32 == 0) {
    tops[threadIdx.x / 32] = r.top;
    sums[threadIdx.x / 32] = r.sum;
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  return warp_merge(lane < blockDim.x / 32 ? Running{tops[lane], sums[lane]} : Running{-INF, 0.0f});
}
