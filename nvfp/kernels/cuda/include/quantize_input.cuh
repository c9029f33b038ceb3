// Input functions of the tiles of 128 x 128: what is applied to the source as it is read, rounded to T_IN as the function
// of its own rounds it, so that what follows sees the same bits. Elements outside the matrix stay 0: every function here
// keeps 0. And the column sums of the result (BIAS_GRAD).
//
// Macros: those of quantize_values128.cuh; INPUT (0 unless set: none; 1 act(x); 2 act(a) b; 3 act'(x) dy, the source is
// dy; 4 the gradients of a and b, side by side, the source is dy; 5 a norm), ACT (the number of the function), BIAS_GRAD.
// `rows` and `columns` of the source are those of the result.
#pragma once
#include "column_sums.cuh"
#ifndef BIAS_GRAD
#define BIAS_GRAD 0
#endif

#if INPUT == 5
#include "input_norm.cuh"
#else
#if INPUT
#include "activation.cuh"
#include "pack.cuh"
#endif
#if INPUT >= 3
#define INPUT_PARAMETERS , const T_IN* __restrict__ second, long long second_stride
#define INPUT_ARGUMENTS {second, second_stride}
#else
#define INPUT_PARAMETERS
#define INPUT_ARGUMENTS {}
#endif

#if INPUT
#ifndef READ
#define READ (INPUT == 1 ? HELD : 2)
#endif
// The values of a piece, each by f.
template <class F>
__device__ __forceinline__ void each(Values& v, const F& f) {
#pragma unroll
  for (int i = 0; i < WORDS_HELD; ++i) {
    float y[PER];
#pragma unroll
    for (int j = 0; j < PER; ++j) y[j] = f(i, j);
    v.word[i] = pack<T_IN, PER, false>(y).at[0];  // (bits of NaN do not matter from here on)
  }
  renew(v);
}

// Rows of the result from N sources: read all at once in whole tiles, else, with the registers of slow loads, one by one.
template <bool Whole, int N, class F>
__device__ __forceinline__ void each_row(Values (&v)[HELD], const Source (&s)[N], long long r, long long c, const F& f) {
  constexpr int TOGETHER = Whole ? READ : 1;
  const T_IN* from[N];
#pragma unroll
  for (int n = 0; n < N; ++n) from[n] = s[n].data + r * s[n].stride + c;
#pragma unroll
  for (int first = 0; first < HELD; first += TOGETHER) {
    Values held[TOGETHER][N];
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        held[k][n] = load_values<Whole>(s[n], from[n], r + first + k, c);
        from[n] += s[n].stride;
      }
    }
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k) {
      each(v[first + k], [&](int i, int j) {
        float x[N];
#pragma unroll
        for (int n = 0; n < N; ++n) x[n] = element(held[k][n].word[i], j);
        return f(x);
      });
    }
  }
}
#endif

struct Input {
#if INPUT >= 3
  const T_IN* second;
  long long second_stride;
#endif

  // The tile that a block takes (negative: none). Both gradients of a pair are taken next to each other: what they read is in L2 then.
  __device__ __forceinline__ long long tile(const Source& s, unsigned index) const {
    if constexpr (INPUT == 4) {
      const unsigned across = max((unsigned)((s.columns + COLUMNS - 1) / COLUMNS), 1u);
      const unsigned k = index % across;
      return index - k + (k % 2 ? (across + 1) / 2 + k / 2 : k / 2);
    }
    return index;
  }

  // The thread's rows of the result.
  template <bool Whole>
  __device__ __forceinline__ void load(Values (&v)[HELD], const Source& s, long long r, long long c) const {
#if INPUT == 0
    load_rows<Whole>(v, s, r, c);
#elif INPUT == 1
    each_row<Whole, 1>(v, {s}, r, c, [](const float (&x)[1]) { return act<ACT>(x[0]); });
#elif INPUT == 2
    const Source b{s.data + s.columns, s.rows, s.columns, s.stride, s.aligned};
    each_row<Whole, 2>(v, {s, b}, r, c, [](const float (&x)[2]) { return act<ACT>(x[0]) * factor<ACT>(x[1]); });
#elif INPUT == 3
    const Source x{second, s.rows, s.columns, second_stride, s.aligned};
    each_row<Whole, 2>(v, {s, x}, r, c, [](const float (&x)[2]) { return act_vjp<ACT>(x[1], x[0]); });
#else
    // a piece lies in one half: the launcher sees to it
    const long long half = s.columns / 2;
    const Source dy{s.data, s.rows, half, s.stride, s.aligned}, a{second, s.rows, half, second_stride, s.aligned};
    const Source b{second + half, s.rows, half, second_stride, s.aligned};
    if constexpr (ACT == CLAMPED) {  // both read b: fewer registers in one loop
      each_row<Whole, 3>(v, {dy, a, b}, r, c < half ? c : c - half, [&](const float (&x)[3]) {
        return c < half ? act_vjp<ACT>(x[1], x[0] * factor<ACT>(x[2])) : factor_vjp<ACT>(x[2], act<ACT>(x[1]) * x[0]);
      });
    } else if (c < half) {
      each_row<Whole, 3>(v, {dy, a, b}, r, c, [](const float (&x)[3]) { return act_vjp<ACT>(x[1], x[0] * x[2]); });
    } else {
      each_row<Whole, 2>(v, {dy, a}, r, c - half, [](const float (&x)[2]) { return act<ACT>(x[1]) * x[0]; });
    }
#endif
  }
};
#endif

// Column sums of the tile. `partial`: [rows of tiles, columns].
#if BIAS_GRAD
#define BIAS_PARAMETERS , float* partial
#define BIAS_ARGUMENT partial
constexpr int SUM_WARPS = WARPS / ABREAST;
struct Sums { float at[SUM_WARPS][COLUMNS]; };
static_assert(SUM_ROWS == ROWS && SUM_GROUP == HELD && OWN == PIECE / DOWN, "the order of column_sums.cuh");

// The columns of a piece fall to the lanes that share them: a lane hands half of its sums on and keeps the other, which
// are those of twice as many groups then. A barrier of the block is inside.
__device__ __forceinline__ void sum_columns(Sums& sums, Values (&v)[HELD], const Source& s, const Origin& o, float* partial) {
  float x[PIECE];
#pragma unroll
  for (int c = 0; c < PIECE; ++c) {
    x[c] = value(v[0], c);
#pragma unroll
    for (int k = 1; k < HELD; ++k) x[c] += value(v[k], c);
  }
#pragma unroll
  for (int k = 0; k < HELD; ++k) renew(v[k]);
  int n = PIECE, first = piece_of_thread() * PIECE;
#pragma unroll
  for (int apart = ACROSS; apart < 32; apart *= 2) {
    n /= 2;
    const bool upper = threadIdx.x & apart;
#pragma unroll
    for (int i = 0; i < PIECE / 2; ++i) {
      if (i >= n) continue;
      const float given = __shfl_xor_sync(ALL, upper ? x[i] : x[i + n], apart);
      x[i] = (upper ? x[i + n] : x[i]) + given;
    }
    if (upper) first += n;
  }
#pragma unroll
  for (int i = 0; i < OWN; ++i) sums.at[threadIdx.x / 32 / ABREAST][first + i] = x[i];
  __syncthreads();
  const long long c = o.c + threadIdx.x;
  if (threadIdx.x < COLUMNS && c < s.columns && o.r < s.rows)
    partial[o.r / ROWS * s.columns + c] = tree<SUM_WARPS>(&sums.at[0][threadIdx.x], COLUMNS);
}
#else
#define BIAS_PARAMETERS
#define BIAS_ARGUMENT nullptr
struct Sums {};
__device__ __forceinline__ void sum_columns(Sums&, Values (&)[HELD], const Source&, const Origin&, float*) {}
#endif
