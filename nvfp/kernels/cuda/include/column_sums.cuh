// The order in which columns are summed, shared by bias_grad.cu and the tiles of 128 x 128 (`kernels/bias_grad.py` states
// it): a tile of 128 rows in groups of 4, each from top to bottom, the 32 groups by a balanced tree of neighbours. Rows
// beyond the last are zeros. Sums of tiles meet in bias_grad.cu's second stage.
#pragma once

constexpr int SUM_ROWS = 128, SUM_GROUP = 4;

// A balanced tree over N = 2^k neighbours.
template <int N>
__device__ __forceinline__ float tree(const float* x, int stride) {
  if constexpr (N == 1) return *x;
  else return tree<N / 2>(x, stride) + tree<N / 2>(x + N / 2 * stride, stride);
}
