// softmax: y = exp(scale x - lse) and lse of each row of x [D0, D1, R, C] over the columns that the row sees;
// softmax_vjp: dx = scale y (dy - sum y dy) over rows [n, C]. Float32 inside, one rounding.
//
// Parallelisation: blockDim.x threads (a power of two of at least 32) per row, blockDim.y rows per block; more than a
// warp per row only with one row per block. Each thread keeps a running maximum and the sum of exp relative to it,
// merged by xor shuffles; then it reads its own elements again (from L1 or L2) and writes them, so y may be x, and dx
// may be y or dy. No atomics: every call repeats its bits.
// Bytes moved: sizeof(T_IN) + sizeof(T_OUT) per element (columns beyond the causal limit are written only), plus the
// mask's bytes; backward sizeof(T_Y) + sizeof(T_DY) + sizeof(T_OUT).
//
// Macros: PER (elements per access: 8 where every row starts at a multiple of 16 bytes, else 1);
// T_IN, T_OUT and MASKED for `softmax`; T_Y, T_DY, T_OUT for `softmax_vjp`.
#include "convert.cuh"
#include "online.cuh"
#include "own.cuh"
#include "strided.cuh"

template <class T>
__device__ __forceinline__ Vec<T, PER> take(const T* p) {
  if constexpr (PER == 1) {
    Vec<T, PER> one;
    one.at[0] = *p;
    return one;
  } else {
    return load_own<T, PER>(p);
  }
}

#ifdef T_IN
// The columns c .. c+PER-1 of a row, scaled; -inf where they are hidden.
__device__ __forceinline__ void visible(const T_IN* row, const bool* hidden, long long step, long long c,
                                        long long seen, float scale, float (&x)[PER]) {
  const Vec<T_IN, PER> v = take(row + c);
#pragma unroll
  for (int j = 0; j < PER; ++j) {
    x[j] = c + j < seen ? load_float(v.at[j]) * scale : -INF;
#if MASKED
    if (c + j < seen && hidden[(c + j) * step]) x[j] = -INF;
#endif
  }
}

// `at`: [D0, D1, R] with the strides of the mask's rows; `step`: its stride along columns. Row r of a matrix sees the
// columns below first + r * more.
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
softmax(const T_IN* x, T_OUT* y, float* __restrict__ lse, const bool* __restrict__ mask, const Strided<3> at,
        long long step, long long rows, long long columns, long long matrix, long long first, long long more,
        float scale) {
  // Whole warps run through the loop alike: a warp has one row, a block of several warps per row too.
  for (long long t = (long long)blockIdx.x * blockDim.y + threadIdx.y; t < rows; t += (long long)gridDim.x * blockDim.y) {
    const long long limit = first + t % matrix * more;
    const long long seen = limit < 0 ? 0 : limit < columns ? limit : columns;
    const T_IN* row = x + t * columns;
    const bool* hidden = mask;
#if MASKED
    hidden += at.offset(t, at.first);
#endif
    Running r = {-INF, 0.0f};
    float v[PER];
    for (long long c = (long long)threadIdx.x * PER; c < seen; c += (long long)blockDim.x * PER) {
      visible(row, hidden, step, c, seen, scale, v);
      add(r, v);
    }
    r = row_merge(r);
    const float base = base_of(r.top), inverse = r.sum == 0.0f ? 0.0f : 1.0f / r.sum;
    T_OUT* out = y + t * columns;
    for (long long c = (long long)threadIdx.x * PER; c < columns; c += (long long)blockDim.x * PER) {
      Vec<T_OUT, PER> result;
      if (c < seen) {
        visible(row, hidden, step, c, seen, scale, v);
#pragma unroll
        for (int j = 0; j < PER; ++j) result.at[j] = store<T_OUT>(v[j] == -INF ? 0.0f : expf(v[j] - base) * inverse);
      } else {
#pragma unroll
        for (int j = 0; j < PER; ++j) result.at[j] = store<T_OUT>(0.0f);
      }
      store_vec(out + c, result);
    }
    if (threadIdx.x == 0) lse[t] = r.top + logf(r.sum);
  }
}
#endif

#ifdef T_Y
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
softmax_vjp(const T_Y* y, const T_DY* dy, T_OUT* dx, long long rows, long long columns, float scale) {
  for (long long t = (long long)blockIdx.x * blockDim.y + threadIdx.y; t < rows; t += (long long)gridDim.x * blockDim.y) {
    const long long start = t * columns;
    float sum = 0.0f;
    for (long long c = (long long)threadIdx.x * PER; c < columns; c += (long long)blockDim.x * PER) {
      const Vec<T_Y, PER> p = take(y + start + c);
      const Vec<T_DY, PER> d = take(dy + start + c);
#pragma unroll
      for (int j = 0; j < PER; ++j) {
        const float weight = load_float(p.at[j]);
        sum += weight == 0.0f ? 0.0f : weight * load_float(d.at[j]);  // what has no weight is not looked at
      }
    }
    sum = row_sum(sum);
    for (long long c = (long long)threadIdx.x * PER; c < columns; c += (long long)blockDim.x * PER) {
      const Vec<T_Y, PER> p = take(y + start + c);
      const Vec<T_DY, PER> d = take(dy + start + c);
      Vec<T_OUT, PER> result;
#pragma unroll
      for (int j = 0; j < PER; ++j) {
        const float weight = load_float(p.at[j]);
        result.at[j] = store<T_OUT>(weight == 0.0f ? 0.0f : weight * scale * (load_float(d.at[j]) - sum));
      }
      store_vec(dx + start + c, result);
    }
  }
}
#endif
