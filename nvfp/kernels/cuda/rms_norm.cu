// rms_norm: y = x rstd gamma over rows [rows, columns]; rms_norm_vjp: dx and, per block, the sums
// that rms_norm_finish adds up to dgamma (rms_norm_columns makes them where rows are too long to be held
// in registers).
// rms_norm_statistics: what the tiles of quantize need to normalize x themselves, and the largest magnitude of y.
// How it runs: include/norm.cuh.
//
// Bytes moved per element: 2 * sizeof(T_IN) forward, 3 * sizeof(T_IN) backward; rows too long for registers: 3 and 7,
// of which L2 serves a part.
//
// Macros: PASS (1 forward, 2 backward, 3 columns, 4 finish, 5 statistics alone), MIN_BLOCKS (blocks per
// multiprocessor); T_OUT for PASS 4, else those of norm.cuh.
#include "norm.cuh"

#if PASS == 1
extern "C" __global__ void __launch_bounds__(LANES * ROWS, MIN_BLOCKS)
rms_norm(const T_IN* x, const T_PARAM* __restrict__ gamma, T_IN* y, float* __restrict__ rstd, const NormSizes sizes RESIDUAL_PARAMETERS) {
  norm<false>(x, gamma, nullptr, y, nullptr, rstd, sizes RESIDUAL_ARGUMENTS);
}
#elif PASS == 5
extern "C" __global__ void __launch_bounds__(LANES * ROWS, MIN_BLOCKS)
rms_norm_statistics(const T_IN* __restrict__ x, const T_PARAM* __restrict__ gamma, float* __restrict__ rstd, float* word,
                    float* also, float* and_also, const NormSizes sizes) {
  norm<false, true>(x, gamma, nullptr, nullptr, nullptr, rstd, sizes, nullptr, word, also, and_also);
}
#elif PASS == 2
extern "C" __global__ void __launch_bounds__(LANES * ROWS, MIN_BLOCKS)
rms_norm_vjp(const T_IN* __restrict__ dy, const T_IN* __restrict__ x, const T_PARAM* __restrict__ gamma,
             const float* __restrict__ rstd, T_IN* __restrict__ dx, float* __restrict__ partial, long long rows,
             int columns, float n, float shift ADD_PARAMETER) {
  norm_vjp<false>(dy, x, gamma, nullptr, rstd, dx, partial, rows, columns, n, shift ADD_ARGUMENT);
}
#elif PASS == 3
extern "C" __global__ void __launch_bounds__(LANES)
rms_norm_columns(const T_IN* __restrict__ dy, const T_IN* __restrict__ x, const float* __restrict__ rstd,
                 float* __restrict__ partial, long long rows, int columns, long long chunk) {
  norm_columns<false>(dy, x, nullptr, rstd, partial, rows, columns, chunk);
}
#else
extern "C" __global__ void __launch_bounds__(SPREAD * SPREAD)
rms_norm_finish(const float* __restrict__ partial, T_OUT* __restrict__ dgamma, long long many,
                long long columns) {
  norm_finish(partial, dgamma, nullptr, many, columns);
}
#endif
