// Normalisation of rows [rows, columns] and its gradients, for layer_norm.cu and rms_norm.cu. CENTERED: the mean is
// subtracted (layer norm). Statistics and sums in float32, results rounded once. No atomics: every call repeats its bits.
//
// Parallelisation: LANES threads (8, 16 or whole warps) share a row, ROWS rows share a block. A thread keeps CHUNKS
// vectors of W elements of its row in registers, so that x (and dy) come from memory once; CHUNKS = 0: rows too long
// for that are read again for each pass, mostly from L2.
//
// Macros: T_IN (x, y, dy, dx), T_PARAM (gamma, beta and their gradients), W, LANES, ROWS, CHUNKS.
// `shift` is 1 for zero-centred gamma, else 0; `n` is the length of a row as a float.
#pragma once
#include "norm_value.cuh"
#include "pack.cuh"
#include "reduce.cuh"

#ifdef T_IN
constexpr int WARPS = LANES < 32 ? 1 : LANES / 32;
constexpr int HELD = CHUNKS ? CHUNKS : 1;
using Part = Words<T_IN, W>;

// A thread's share of a row: vectors threadIdx.x, threadIdx.x + LANES, ... below `vectors`.
template <class F>
__device__ __forceinline__ void each(int vectors, F f) {
  if constexpr (CHUNKS > 0) {
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i)
      if ((int)threadIdx.x + i * LANES < vectors) f(i, (int)threadIdx.x + i * LANES);
  } else {
    for (int v = threadIdx.x; v < vectors; v += LANES) f(0, v);
  }
}

struct Held {
  Part part[HELD];
  __device__ __forceinline__ void load(const T_IN* row, int vectors) {
    if constexpr (CHUNKS > 0) each(vectors, [&](int i, int v) { part[i] = load_words<T_IN, W>(row + (long long)v * W); });
  }
  __device__ __forceinline__ void get(const T_IN* row, int i, int v, float (&x)[W]) const {
    if constexpr (CHUNKS > 0) unpack(part[i], x);
    else unpack(load_words<T_IN, W>(row + (long long)v * W), x);
  }
};

// A thread's share of gamma as factors: shift + gamma.
struct Factors {
  float held[HELD * W];
  __device__ __forceinline__ static void read(const T_PARAM* gamma, int v, float shift, float (&g)[W]) {
    unpack(load_words<T_PARAM, W>(gamma + (long long)v * W), g);
#pragma unroll
    for (int j = 0; j < W; ++j) g[j] += shift;
  }
  __device__ __forceinline__ void load(const T_PARAM* gamma, int vectors, float shift) {
    if constexpr (CHUNKS > 0)
      each(vectors, [&](int i, int v) {
        float g[W];
        read(gamma, v, shift, g);
#pragma unroll
        for (int j = 0; j < W; ++j) held[i * W + j] = g[j];
      });
  }
  __device__ __forceinline__ void get(const T_PARAM* gamma, int i, int v, float shift, float (&g)[W]) const {
    if constexpr (CHUNKS > 0) {
#pragma unroll
      for (int j = 0; j < W; ++j) g[j] = held[i * W + j];
    } else {
      read(gamma, v, shift, g);
    }
  }
};

// Sums over the LANES threads of a row, in a fixed tree; every one gets them. All threads of the block must call.
// `phase` alternates between two pieces of shared memory, so that one barrier a call is enough.
template <int N>
__device__ __forceinline__ void row_sum(float (&s)[N], int& phase) {
  add_lanes<(LANES < 32 ? LANES : 32)>(s);
  if constexpr (WARPS > 1) {
    __shared__ float part[2][ROWS][WARPS][N];
    float(&mine)[WARPS][N] = part[phase][threadIdx.y];
    phase ^= 1;
    if (threadIdx.x % 32 == 0)
#pragma unroll
      for (int j = 0; j < N; ++j) mine[threadIdx.x / 32][j] = s[j];
    __syncthreads();
    const int from = threadIdx.x % SPAN<WARPS>;
#pragma unroll
    for (int j = 0; j < N; ++j) s[j] = from < WARPS ? mine[from][j] : 0.0f;
    add_lanes<SPAN<WARPS>>(s);
  }
}

// y = (x - mean) rstd (shift + gamma) + beta. The variance is that of the differences to a first mean, which their own
// mean then corrects: a large common offset costs no digits. Where a thread has one vector, the next row's is under
// way while a row is computed.
// STATISTICS: y is not written, but where each row's mean lies (CENTERED); with RECORD the largest magnitude of y, as
// amax counts it, goes into up to three words.
#ifndef RECORD
#define RECORD 0  // 1: NaN counts as 0; 2: infinity too
#endif
// RESIDUAL: what is normalized is x + residual, rounded, which is written to `total` (it may be x or residual).
#ifndef RESIDUAL
#define RESIDUAL 0
#endif
#if RESIDUAL
#define RESIDUAL_PARAMETERS , const T_IN *residual, T_IN *total
#define RESIDUAL_ARGUMENTS , nullptr, nullptr, nullptr, nullptr, residual, total
#else
#define RESIDUAL_PARAMETERS
#define RESIDUAL_ARGUMENTS
#endif
__device__ __forceinline__ Part sum_of(const Part& a, const Part& b) {
  float x[W], y[W];
  unpack(a, x);
  unpack(b, y);
#pragma unroll
  for (int j = 0; j < W; ++j) x[j] += y[j];
  return pack<T_IN, W>(x);
}
template <bool CENTERED, bool STATISTICS = false>
__device__ __forceinline__ void norm(const T_IN* x, const T_PARAM* __restrict__ gamma, const T_PARAM* __restrict__ beta,
                                     T_IN* y, float* __restrict__ mean, float* __restrict__ rstd, const NormSizes& sizes,
                                     Middle* __restrict__ middle = nullptr, float* word = nullptr, float* also = nullptr,
                                     float* and_also = nullptr, const T_IN* residual = nullptr, T_IN* total = nullptr) {
  constexpr bool AHEAD = CHUNKS == 1;
  const long long rows = sizes.rows;
  const int columns = sizes.columns;
  const float n = sizes.length, eps = sizes.eps, shift = sizes.shift;
  const long long step = (long long)gridDim.x * ROWS;
  int phase = 0;
  unsigned most = 0;
  Held next, added;
  auto fetch = [&](long long r) {
    if (r >= rows) return;
    next.load(x + r * columns, columns / W);
    if constexpr (RESIDUAL) added.load(residual + r * columns, columns / W);
  };
  if constexpr (AHEAD) fetch((long long)blockIdx.x * ROWS + threadIdx.y);
  for (long long first = (long long)blockIdx.x * ROWS; first < rows; first += step) {
    const long long r = first + threadIdx.y;
    const int vectors = r < rows ? columns / W : 0;
    const T_IN* row = x + r * columns;
    if constexpr (!AHEAD) fetch(r);
    Held held = next;
    if constexpr (RESIDUAL) {
      each(vectors, [&](int i, int v) {
        const long long at = r * columns + (long long)v * W;
        const Part sum = CHUNKS > 0 ? sum_of(held.part[i], added.part[i])
                                    : sum_of(load_words<T_IN, W>(x + at), load_words<T_IN, W>(residual + at));
        keep_words(total + at, sum);
        held.part[i] = sum;
      });
      row = total + r * columns;  // (where CHUNKS = 0: each thread reads again what it has written)
    }
    if constexpr (AHEAD) fetch(r + step);
    Middle at = {0.0f, 0.0f};
    float variance;
    if constexpr (CENTERED) {
      float total[1] = {0.0f}, s[2] = {0.0f, 0.0f};
      each(vectors, [&](int i, int v) {
        float p[W];
        held.get(row, i, v, p);
        add_values(total, p);
      });
      row_sum(total, phase);
      at.base = total[0] / n;
      each(vectors, [&](int i, int v) {
        float p[W];
        held.get(row, i, v, p);
        add_differences(s, p, at.base);
      });
      row_sum(s, phase);
      at.rest = s[0] / n;
      variance = variance_of(s, n);
    } else {
      float s[1] = {0.0f};
      each(vectors, [&](int i, int v) {
        float p[W];
        held.get(row, i, v, p);
        add_squares(s, p);
      });
      row_sum(s, phase);
      variance = variance_of(s, n);
    }
    const float scale = rstd_of(variance, eps);
    T_IN* out = y + r * columns;
    if constexpr (!STATISTICS || RECORD)
      each(vectors, [&](int i, int v) {
        float p[W], g[W], q[W];
        held.get(row, i, v, p);
        Factors::read(gamma, v, shift, g);
#pragma unroll
        for (int j = 0; j < W; ++j) q[j] = normalized<CENTERED>(p[j], at, scale, g[j]);
        if (CENTERED && beta) {
          float b[W];
          unpack(load_words<T_PARAM, W>(beta + (long long)v * W), b);
#pragma unroll
          for (int j = 0; j < W; ++j) q[j] += b[j];
        }
        const Part rounded = pack<T_IN, W>(q);
        if constexpr (STATISTICS) {
          unpack(rounded, q);
#pragma unroll
          for (int j = 0; j < W; ++j) most = max(most, counted<RECORD == 2>(q[j]));
        } else {
          keep_words(out + (long long)v * W, rounded);
        }
      });
    if (r < rows && threadIdx.x == 0) {
      if constexpr (CENTERED) {
        if (mean) mean[r] = at.base + at.rest;
        if constexpr (STATISTICS) middle[r] = at;
      }
      rstd[r] = scale;
    }
  }
  if constexpr (STATISTICS && RECORD) {
    constexpr int ALL_WARPS = (LANES * ROWS + 31) / 32;
    __shared__ unsigned part[ALL_WARPS];
    const int thread = threadIdx.y * LANES + threadIdx.x;
    most = lanes_max<32>(most);
    if (thread % 32 == 0) part[thread / 32] = most;
    __syncthreads();
    if (thread != 0) return;
#pragma unroll
    for (int k = 1; k < ALL_WARPS; ++k) most = max(most, part[k]);
    record_max(word, most);
    if (also) record_max(also, most);
    if (and_also) record_max(and_also, most);
  }
}

// With t = (x - mean) rstd and g = dy (shift + gamma): dx = rstd (g - mean(g) - t mean(g t)) (uncentred: without
// mean(g)); null: not wanted. Where CHUNKS > 0 each block also adds up dy t (and dy) over its rows, and writes one
// row of `partial` [1 or 2][blocks, columns] each (null: not wanted).
// ADD: another gradient `add` of x is added to the rounded dx.
// The factors stay in registers for all rows of a block, and the next row's x and dy are under way while a row is
// computed, where registers can hold both.
#ifndef ADD
#define ADD 0
#endif
#if ADD
#define ADD_PARAMETER , const T_IN* add
#define ADD_ARGUMENT , add
#else
#define ADD_PARAMETER
#define ADD_ARGUMENT
#endif
template <bool CENTERED>
__device__ __forceinline__ void norm_vjp(const T_IN* __restrict__ dy, const T_IN* __restrict__ x,
                                         const T_PARAM* __restrict__ gamma, const float* __restrict__ mean,
                                         const float* __restrict__ rstd, T_IN* __restrict__ dx,
                                         float* __restrict__ partial, long long rows, int columns, float n, float shift,
                                         const T_IN* add = nullptr) {
  constexpr int SUMS = CENTERED ? 2 : 1;
  constexpr bool AHEAD = HELD * W <= 16;
  float total[SUMS][HELD * W] = {};
  const float share = 1.0f / n;
  const long long step = (long long)gridDim.x * ROWS;
  int phase = 0;
  Held next_x, next_dy;
  float next_mean = 0.0f, next_rstd = 0.0f;
  auto fetch = [&](long long r) {
    if (r >= rows) return;
    next_x.load(x + r * columns, columns / W);
    next_dy.load(dy + r * columns, columns / W);
    if constexpr (CENTERED) next_mean = mean[r];
    next_rstd = rstd[r];
  };
  if constexpr (AHEAD) fetch((long long)blockIdx.x * ROWS + threadIdx.y);
  Factors factors;
  if constexpr (AHEAD) factors.load(gamma, columns / W, shift);
  auto factor = [&](int i, int v, float (&g)[W]) {
    if constexpr (AHEAD) factors.get(gamma, i, v, shift, g);
    else Factors::read(gamma, v, shift, g);
  };
  for (long long first = (long long)blockIdx.x * ROWS; first < rows; first += step) {
    const long long r = first + threadIdx.y;
    const int vectors = r < rows ? columns / W : 0;
    const T_IN *row = x + r * columns, *drow = dy + r * columns;
    if constexpr (!AHEAD) fetch(r);
    const Held held = next_x, dheld = next_dy;
    const float base = next_mean, scale = next_rstd;
    if constexpr (AHEAD) fetch(r + step);
    float s[SUMS] = {};
    each(vectors, [&](int i, int v) {
      float p[W], d[W], g[W];
      held.get(row, i, v, p);
      dheld.get(drow, i, v, d);
      factor(i, v, g);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const float t = (CENTERED ? p[j] - base : p[j]) * scale, w = d[j] * g[j];
        s[0] = fmaf(w, t, s[0]);
        if constexpr (CENTERED) s[1] += w;
        if constexpr (CHUNKS > 0) {
          total[0][i * W + j] = fmaf(d[j], t, total[0][i * W + j]);
          if constexpr (CENTERED) total[1][i * W + j] += d[j];
        }
      }
    });
    if (!dx) continue;
    Held more;
    if constexpr (ADD) more.load(add + r * columns, vectors);
    row_sum(s, phase);
    // rstd (w - level - t along) with t = (x - mean) rstd, as two fused products of w and x - mean
    const float along = -(scale * scale) * (s[0] * share), level = CENTERED ? -scale * (s[SUMS - 1] * share) : 0.0f;
    T_IN* out = dx + r * columns;
    each(vectors, [&](int i, int v) {
      float p[W], d[W], g[W], q[W];
      held.get(row, i, v, p);
      dheld.get(drow, i, v, d);
      factor(i, v, g);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const float w = d[j] * g[j];
        q[j] = fmaf(CENTERED ? p[j] - base : p[j], along, CENTERED ? fmaf(w, scale, level) : w * scale);
      }
      Part rounded = pack<T_IN, W>(q);
      if constexpr (ADD) rounded = sum_of(rounded, CHUNKS > 0 ? more.part[i] : load_words<T_IN, W>(add + r * columns + (long long)v * W));
      keep_words(out + (long long)v * W, rounded);
    });
  }
  if constexpr (CHUNKS > 0) {
    if (!partial) return;
#pragma unroll
    for (int k = 0; k < SUMS; ++k) {
      if constexpr (ROWS > 1) {  // the rows of a block, in order
        __shared__ float pile[ROWS][HELD * W][LANES];
        __syncthreads();
#pragma unroll
        for (int e = 0; e < HELD * W; ++e) pile[threadIdx.y][e][threadIdx.x] = total[k][e];
        __syncthreads();
        if (threadIdx.y == 0)
#pragma unroll
          for (int e = 0; e < HELD * W; ++e)
            for (int y = 1; y < ROWS; ++y) total[k][e] += pile[y][e][threadIdx.x];
      }
      float* out = partial + ((long long)k * gridDim.x + blockIdx.x) * columns;
      each(threadIdx.y == 0 ? columns / W : 0, [&](int i, int v) {
        Vec<float, W> q;
#pragma unroll
        for (int j = 0; j < W; ++j) q.at[j] = total[k][i * W + j];
        store_vec(out + (long long)v * W, q);
      });
    }
  }
}

// For rows too long for registers: the same sums of dy t (and dy), a thread for each W columns of a chunk of rows.
template <bool CENTERED>
__device__ __forceinline__ void norm_columns(const T_IN* __restrict__ dy, const T_IN* __restrict__ x,
                                             const float* __restrict__ mean, const float* __restrict__ rstd,
                                             float* __restrict__ partial, long long rows, int columns, long long chunk) {
  const long long c = ((long long)blockIdx.x * LANES + threadIdx.x) * W;
  if (c >= columns) return;
  const long long first = blockIdx.y * chunk, last = first + chunk < rows ? first + chunk : rows;
  Vec<float, W> along = {}, level = {};
#pragma unroll 4
  for (long long r = first; r < last; ++r) {
    float p[W], d[W];
    unpack(load_words<T_IN, W>(x + r * columns + c), p);
    unpack(load_words<T_IN, W>(dy + r * columns + c), d);
    const float base = CENTERED ? mean[r] : 0.0f, scale = rstd[r];
#pragma unroll
    for (int j = 0; j < W; ++j) {
      along.at[j] = fmaf(d[j], (p[j] - base) * scale, along.at[j]);
      level.at[j] += d[j];
    }
  }
  store_vec(partial + blockIdx.y * columns + c, along);
  if constexpr (CENTERED) store_vec(partial + ((long long)gridDim.y + blockIdx.y) * columns + c, level);
}
#endif

// Column sums of partial [1 or 2][many, columns]: block row y of the grid gives the y-th result (null: not wanted).
// 32 columns a block; thread row k adds rows k, k + 32, ...; then the 32 sums are added in order.
#ifdef T_OUT
constexpr int SPREAD = 32;

__device__ __forceinline__ void norm_finish(const float* __restrict__ partial, T_OUT* __restrict__ dgamma,
                                            T_OUT* __restrict__ dbeta, long long many, long long columns) {
  __shared__ float sums[SPREAD][SPREAD];
  T_OUT* out = blockIdx.y == 0 ? dgamma : dbeta;
  if (!out) return;
  const long long c = (long long)blockIdx.x * SPREAD + threadIdx.x;
  const float* from = partial + blockIdx.y * many * columns + c;
  float total = 0.0f;
  if (c < columns)
#pragma unroll 8
    for (long long k = threadIdx.y; k < many; k += SPREAD) total += from[k * columns];
  sums[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || c >= columns) return;
#pragma unroll
  for (int k = 1; k < SPREAD; ++k) total += sums[k][threadIdx.x];
  out[c] = store<T_OUT>(total);
}
#endif
