// softmax: y = exp(scale x - lse) and lse of each row of x [D0, D1, R, C] over the columns that the row sees;
// softmax_vjp: dx = scale y (dy - sum y dy) over rows [n, C]. Float32 inside, one rounding.
//
// Parallelisation: blockDim.x threads (a power of two of at least 32) per row, blockDim.y rows per block; more than a
// warp per row only with one row per block. A thread holds CHUNKS pieces of PER elements of its row in registers, all
// of them loaded before the first is used; CHUNKS = 0: rows too long for that are read twice, forward with a running
// maximum and the sum of exp relative to it. Threads meet by xor shuffles; each writes its own elements after it has
// read them, so y may be x, and dx may be y or dy. No atomics: every call repeats its bits.
// Bytes moved: sizeof(T_IN) + sizeof(T_OUT) per element (columns beyond the causal limit are written only), plus the
// mask's bytes; backward sizeof(T_Y) + sizeof(T_DY) + sizeof(T_OUT).
//
// SINK: exp(sink) of the row's head joins the sum. `tops`, unless null, takes the largest value of each row.
//
// SINK: exp(sink) of the row's head joins the sum. `tops`, unless null, takes the largest value of each row.
//
// Macros: PER (elements per access: 8 where every row starts at a multiple of 16 bytes, else 1); CHUNKS;
// T_IN, T_OUT, MASKED and SINK for `softmax`; T_Y, T_DY, T_OUT for `softmax_vjp`.
#include "online.cuh"
#include "pack.cuh"
#include "strided.cuh"

constexpr int HELD = CHUNKS ? CHUNKS : 1;
template <bool SHORT> struct ColumnType { using type = long long; };
template <> struct ColumnType<true> { using type = int; };
using Column = ColumnType<(CHUNKS > 0)>::type;  // a column, or a number of them

// f(i, c) for each piece of the thread's own, the i-th of which starts at column c, below `end`.
template <class F>
__device__ __forceinline__ void each(Column end, F f) {
  if constexpr (CHUNKS > 0) {
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i) {
      const int c = (int)(threadIdx.x + i * blockDim.x) * PER;
      if (c < end) f(i, c);
    }
  } else {
    for (long long c = (long long)threadIdx.x * PER; c < end; c += (long long)blockDim.x * PER) f(0, c);
  }
}

#ifdef T_IN
// The mask of columns c .. c+PER-1 of a row, a byte each, 0 from `seen` on where they come one by one. Its loads go out
// with those of x. `whole`: they lie side by side in memory, PER at a multiple of PER bytes.
struct Mask {
  const bool* row;
  long long step;
  bool whole;

  __device__ __forceinline__ uint2 at(Column c, Column seen) const {
    uint2 bytes = {0, 0};
#if MASKED
    if (PER == 8 && whole) return *reinterpret_cast<const uint2*>(row + c);
#pragma unroll 2  // all of them at once would take the registers of the row
    for (int j = 0; j < PER; ++j)
      if (c + j < seen && row[(c + j) * step]) (j < 4 ? bytes.x : bytes.y) |= 1u << 8 * (j % 4);
#endif
    return bytes;
  }
};

// The columns c .. c+PER-1 of a row, scaled; -inf where they are hidden.
__device__ __forceinline__ void visible(const Words<T_IN, PER>& v, uint2 hidden, Column c, Column seen, float scale,
                                        float (&x)[PER]) {
  unpack(v, x);
#pragma unroll
  for (int j = 0; j < PER; ++j) x[j] = x[j] * scale;
#if MASKED
#pragma unroll
  for (int j = 0; j < PER; ++j)
    if ((j < 4 ? hidden.x : hidden.y) & 255u << 8 * (j % 4)) x[j] = -INF;
#endif
  if (c + PER <= seen) return;
#pragma unroll
  for (int j = 0; j < PER; ++j)
    if (c + j >= seen) x[j] = -INF;
}

// Registers are kept for two blocks of MOST_THREADS threads where a thread holds 16 elements of a masked row, which would
// take more than others, so that fewer loads would be in flight. Other targets' compilers would spill, and do so even
// without a bound on blocks: told one, they take the registers.
#if MASKED && !SINK && (CHUNKS == 0 || CHUNKS * PER <= 16) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define BOUNDS MOST_THREADS, 2
#else
#define BOUNDS MOST_THREADS, 1
#endif

// What the row's maximum is used for: it is told, and the sink (of head `t / matrix`, going round) joins it.
#if SINK
#define WITH_SINK                                                              \
  if (tops && threadIdx.x == 0) tops[t] = top;                                 \
  const float sink = sinks ? sinks[t / matrix % heads] : constant;             \
  top = fmaxf(top, sink);
#else
#define WITH_SINK \
  if (tops && threadIdx.x == 0) tops[t] = top;
#endif

// What the row's maximum is used for: it is told, and the sink (of head `t / matrix`, going round) joins it.
#if SINK
#define WITH_SINK                                                              \
  if (tops && threadIdx.x == 0) tops[t] = top;                                 \
  const float sink = sinks ? sinks[t / matrix % heads] : constant;             \
  top = fmaxf(top, sink);
#else
#define WITH_SINK \
  if (tops && threadIdx.x == 0) tops[t] = top;
#endif

// `at`: [D0, D1, R] with the strides of the mask's rows; `step`: its stride along columns. Row r of a matrix sees the
// columns below first + r * more.
extern "C" __global__ void __launch_bounds__(BOUNDS)
softmax(const T_IN* x, T_OUT* y, float* __restrict__ lse, const bool* __restrict__ mask, const Strided<3> at,
        long long step, long long rows, long long columns, long long matrix, long long first, long long more,
        float scale, float* __restrict__ tops, const float* __restrict__ sinks, long long heads, float constant) {
  // Whole warps run through the loop alike: a warp has one row, a block of several warps per row too.
  for (long long t = (long long)blockIdx.x * blockDim.y + threadIdx.y; t < rows; t += (long long)gridDim.x * blockDim.y) {
    const long long limit = first + t % matrix * more;
    const Column width = (Column)columns, seen = (Column)(limit < 0 ? 0 : limit < columns ? limit : columns);
    const T_IN* row = x + t * columns;
    Mask hidden = {mask, step, false};
#if MASKED
    hidden.row += at.offset(t, at.first);
    hidden.whole = step == 1 && (unsigned long long)hidden.row % PER == 0;
#endif
    T_OUT* out = y + t * columns;
    float v[HELD][PER], top, sum;
    if constexpr (CHUNKS > 0) {
      Words<T_IN, PER> raw[HELD];
      uint2 bytes[HELD];
      each(seen, [&](int i, Column c) { raw[i] = load_words<T_IN, PER>(row + c); });
      each(seen, [&](int i, Column c) { bytes[i] = hidden.at(c, seen); });
      top = -INF;
      each(width, [&](int i, Column c) {
        if (c < seen) {
          visible(raw[i], bytes[i], c, seen, scale, v[i]);
        } else {
#pragma unroll
          for (int j = 0; j < PER; ++j) v[i][j] = -INF;
        }
#pragma unroll
        for (int j = 0; j < PER; ++j) top = fmaxf(top, v[i][j]);  // NaN is never the top, but makes the sum NaN
      });
      top = row_max(top);
      WITH_SINK
      const float base = base_of(top);
      sum = 0.0f;
      each(width, [&](int i, Column c) {
#pragma unroll
        for (int j = 0; j < PER; ++j) {
          v[i][j] = exp_below(v[i][j] - base);
          sum += v[i][j];
        }
      });
      sum = row_sum(sum);
#if SINK
      sum += expf(sink - base);
#endif
    } else {
      Running r = {-INF, 0.0f};
      each(seen, [&](int i, Column c) {
        visible(load_words<T_IN, PER>(row + c), hidden.at(c, seen), c, seen, scale, v[0]);
        add(r, v[0]);
      });
      r = row_merge(r);
      top = r.top;
      WITH_SINK
      sum = r.sum;
#if SINK
      sum = r.sum * expf(r.top - base_of(top)) + expf(sink - base_of(top));
#endif
    }
    const float base = base_of(top), inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    if (CHUNKS > 0 && inverse == inverse) {
      each(width, [&](int i, Column c) {
#pragma unroll
        for (int j = 0; j < PER; ++j) v[i][j] *= inverse;
        keep_words(out + c, pack<T_OUT, PER, false>(v[i]));
      });
    } else {  // read again; a row that became NaN stays 0 where it is hidden
#pragma unroll 1
      for (Column c = (Column)threadIdx.x * PER; c < width; c += (Column)blockDim.x * PER) {
        float x[PER] = {};
        if (c < seen) {
          visible(load_words<T_IN, PER>(row + c), hidden.at(c, seen), c, seen, scale, x);
#pragma unroll
          for (int j = 0; j < PER; ++j) x[j] = x[j] == -INF ? 0.0f : expf(x[j] - base) * inverse;
        }
        keep_words(out + c, pack<T_OUT, PER>(x));
      }
    }
    if (threadIdx.x == 0) lse[t] = top + logf(sum);
  }
}
#endif

#ifdef T_Y
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
softmax_vjp(const T_Y* y, const T_DY* dy, T_OUT* dx, long long rows, long long columns, float scale) {
  for (long long t = (long long)blockIdx.x * blockDim.y + threadIdx.y; t < rows; t += (long long)gridDim.x * blockDim.y) {
    const long long start = t * columns;
    Words<T_Y, PER> weights[HELD];
    Words<T_DY, PER> slopes[HELD];
    auto load = [&](int i, long long c) {
      weights[i] = load_words<T_Y, PER>(y + start + c);
      slopes[i] = load_words<T_DY, PER>(dy + start + c);
    };
    if constexpr (CHUNKS > 0) each(columns, load);
    float sum = 0.0f;
    each(columns, [&](int i, long long c) {
      if constexpr (CHUNKS == 0) load(i, c);
      float p[PER], d[PER];
      unpack(weights[i], p);
      unpack(slopes[i], d);
#pragma unroll
      for (int j = 0; j < PER; ++j) sum += p[j] == 0.0f ? 0.0f : p[j] * d[j];  // what has no weight is not looked at
    });
    sum = row_sum(sum);
    each(columns, [&](int i, long long c) {
      if constexpr (CHUNKS == 0) load(i, c);
      float p[PER], d[PER], result[PER];
      unpack(weights[i], p);
      unpack(slopes[i], d);
#pragma unroll
      for (int j = 0; j < PER; ++j) result[j] = p[j] == 0.0f ? 0.0f : p[j] * scale * (d[j] - sum);
      keep_words(dx + start + c, pack<T_OUT, PER>(result));
    });
  }
}
#endif
