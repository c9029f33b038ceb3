// layer_norm: y = (x - mean) rstd gamma + beta over rows [rows, columns]; layer_norm_vjp: dx and, per block, the sums
// that layer_norm_finish adds up to dgamma and dbeta (layer_norm_columns makes them where rows are too long to be held
// in registers).
// layer_norm_statistics: what the tiles of quantize need to normalize x themselves, and the largest magnitude of y.
// How it runs: include/norm.cuh.
//
// Bytes moved per element: 2 * sizeof(T_IN) forward, 3 * sizeof(T_IN) backward; rows too long for registers: 4 and 7,
// of which L2 serves a part.
//
// Macros: PASS (1 forward, 2 backward, 3 columns, 4 finish, 5 statistics alone), MIN_BLOCKS (blocks per
// multiprocessor); T_OUT for PASS 4, else those of norm.cuh.
#include "norm.cuh"

// Blackwell's compiler takes a few registers more.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && (PASS == 1 || PASS == 5)
constexpr int AT_ONCE = sizeof(T_PARAM) == 4 && LANES * ROWS * MIN_BLOCKS > 1024 ? 1024 / (LANES * ROWS) : MIN_BLOCKS;
#elif PASS != 4
constexpr int AT_ONCE = MIN_BLOCKS;
#endif

#if PASS == 1
extern "C" __global__ void __launch_bounds__(LANES * ROWS, AT_ONCE)
layer_norm(const T_IN* x, const T_PARAM* __restrict__ gamma, const T_PARAM* __restrict__ beta, T_IN* y,
           float* __restrict__ mean, float* __restrict__ rstd, const NormSizes sizes RESIDUAL_PARAMETERS) {
  norm<true>(x, gamma, beta, y, mean, rstd, sizes RESIDUAL_ARGUMENTS);
}
#elif PASS == 5
extern "C" __global__ void __launch_bounds__(LANES * ROWS, AT_ONCE)
layer_norm_statistics(const T_IN* __restrict__ x, const T_PARAM* __restrict__ gamma, const T_PARAM* __restrict__ beta,
                      float* __restrict__ mean, float* __restrict__ rstd, Middle* __restrict__ middle, float* word,
                      float* also, float* and_also, const NormSizes sizes) {
  norm<true, true>(x, gamma, beta, nullptr, mean, rstd, sizes, middle, word, also, and_also);
}
#elif PASS == 2
extern "C" __global__ void __launch_bounds__(LANES * ROWS, AT_ONCE)
layer_norm_vjp(const T_IN* __restrict__ dy, const T_IN* __restrict__ x, const T_PARAM* __restrict__ gamma,
               const float* __restrict__ mean, const float* __restrict__ rstd, T_IN* __restrict__ dx,
               float* __restrict__ partial, long long rows, int columns, float n, float shift ADD_PARAMETER) {
  norm_vjp<true>(dy, x, gamma, mean, rstd, dx, partial, rows, columns, n, shift ADD_ARGUMENT);
}
#elif PASS == 3
extern "C" __global__ void __launch_bounds__(LANES)
layer_norm_columns(const T_IN* __restrict__ dy, const T_IN* __restrict__ x, const float* __restrict__ mean,
                   const float* __restrict__ rstd, float* __restrict__ partial, long long rows, int columns,
                   long long chunk) {
  norm_columns<true>(dy, x, mean, rstd, partial, rows, columns, chunk);
}
#else
extern "C" __global__ void __launch_bounds__(SPREAD * SPREAD)
layer_norm_finish(const float* __restrict__ partial, T_OUT* __restrict__ dgamma, T_OUT* __restrict__ dbeta,
                  long long many, long long columns) {
  norm_finish(partial, dgamma, dbeta, many, columns);
}
#endif
