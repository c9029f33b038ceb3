// What every kernel that normalizes computes, so that fused and plain ones have the same bits.
#pragma once

// Where a row's mean lies: `base` is a first mean of the row, `rest` the mean of the differences to it. Both are needed
// for the differences: their sum is rounded.
struct Middle {
  float base, rest;
};

// What a forward kernel is told beside addresses. `shift` is 1 for zero-centred gamma, else 0; `length` is that of a row.
struct NormSizes {
  long long rows;
  int columns;
  float length, eps, shift;
};

template <bool CENTERED>
__device__ __forceinline__ float normalized(float x, const Middle& m, float rstd, float factor) {
  return ((CENTERED ? (x - m.base) - m.rest : x) * rstd) * factor;
}

// From the sums over a row: of squares, or of differences to the base and of their squares.
__device__ __forceinline__ float variance_of(const float (&s)[1], float n) { return s[0] / n; }
__device__ __forceinline__ float variance_of(const float (&s)[2], float n) {
  const float rest = s[0] / n, variance = fmaf(-rest, rest, s[1] / n);
  return variance < 0.0f ? 0.0f : variance;  // NaN stays
}
__device__ __forceinline__ float rstd_of(float variance, float eps) { return 1.0f / sqrtf(variance + eps); }

// Threads that fold the sums of `WARPS` warps.
template <int WARPS> constexpr int SPAN = WARPS > 16 ? 32 : WARPS > 8 ? 16 : WARPS > 4 ? 8 : WARPS > 2 ? 4 : WARPS > 1 ? 2 : 1;

// Adds the values of WIDTH neighbouring lanes (a power of two), in a fixed tree; every one gets the sum.
template <int WIDTH, int N>
__device__ __forceinline__ void add_lanes(float (&s)[N]) {
#pragma unroll
  for (int k = WIDTH / 2; k > 0; k /= 2)
#pragma unroll
    for (int j = 0; j < N; ++j) s[j] += __shfl_xor_sync(0xffffffffu, s[j], k);
}

// A thread's part of a sum: of x, of squares, or of differences to a base and their squares.
template <int N>
__device__ __forceinline__ void add_values(float (&s)[1], const float (&x)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) s[0] += x[j];
}
template <int N>
__device__ __forceinline__ void add_squares(float (&s)[1], const float (&x)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) s[0] = fmaf(x[j], x[j], s[0]);
}
template <int N>
__device__ __forceinline__ void add_differences(float (&s)[2], const float (&x)[N], float base) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float d = x[j] - base;
    s[0] += d;
    s[1] = fmaf(d, d, s[1]);
  }
}
