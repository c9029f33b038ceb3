// The input function of the tiles that normalizes rows (INPUT = 5): quantize_tile128.cuh's values become
// y = (x - mean) rstd (shift + gamma) + beta, rounded to T_IN, right after they are loaded; y is never written.
//
// PANELS = 0: each row's statistics are there, from layer_norm_statistics or rms_norm_statistics.
// PANELS = 1: the kernel makes them itself, so that x comes from memory once and from L2 the second time. A panel is the
// tiles of the same 128 rows. Block t makes the statistics of a share of the rows of tile t's panel, and then, once all
// shares of that panel are there, the codes of tile t - lead. Blocks are started in about this order, so that nobody
// waits long; nothing promises that order, so a block that has waited too long makes the statistics of the whole panel
// itself: they have the same bits. Nothing can stand still, whatever runs beside it.
// `state`, zeroed before: for each panel how many of its shares are there.
//
// A row's sums are those of norm.cuh bit for bit: NORM_LANES threads share a row there, and what one of its warps adds up
// is added up here by some warp, folded by the same trees.
//
// x is contiguous; x, gamma, beta, mean, rstd start at multiples of 16 bytes, and so does every row of x.
//
// Macros: T_IN, T_PARAM, NORM_CENTERED, PANELS; with PANELS NORM_LANES (whole warps), NORM_CHUNKS (vectors of 16 bytes that
// each of them holds).
#pragma once
#include "norm_value.cuh"
#include "pack.cuh"

#define INPUT_PARAMETERS                                                                                             \
  , const T_PARAM *__restrict__ norm_gamma, const T_PARAM *__restrict__ norm_beta, float *norm_mean, float *norm_rstd, \
      Middle *norm_middle, unsigned *norm_state, int norm_lead, const NormSizes norm_sizes
#define INPUT_ARGUMENTS \
  {norm_gamma, norm_beta, norm_mean, norm_rstd, norm_middle, norm_state, norm_lead, norm_sizes.length, norm_sizes.eps, norm_sizes.shift}

// What this kernel may have written.
__device__ __forceinline__ float read_fresh(const float* p) {
#ifdef __CUDA_ARCH__
  return __ldcg(p);
#else
  return *p;
#endif
}

// Waits until `word` has reached `wanted`, or for a while, about 0.2 ms. Returns whether it has: then all that was written
// before it did can be read.
__device__ __forceinline__ bool wait_for(const unsigned* word, unsigned wanted) {
#ifdef __CUDA_ARCH__
#pragma unroll 1
  for (int i = 0; i < 256; ++i) {
    unsigned seen;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(__cvta_generic_to_global(word)) : "memory");
    if (seen >= wanted) return true;
    __nanosleep(64);
  }
  return false;
#else
  return *word >= wanted;
#endif
}

// Adds 1 to `word` after all that the block has written; a barrier of the block comes before.
__device__ __forceinline__ void release_one(unsigned* word) {
#ifdef __CUDA_ARCH__
  __threadfence();
#endif
  atomicAdd(word, 1u);
}

template <bool CENTERED>
struct NormInput {
  const T_PARAM *gamma, *beta;
  float *mean, *rstd;
  Middle* middle;
  unsigned* state;
  int lead;
  float length, eps, shift;

#if PANELS
  static constexpr int VECTOR = 16 / sizeof(T_IN), PARTS = NORM_LANES / 32;
  static constexpr int AT_MOST = NORM_CHUNKS < 8 ? 8 / NORM_CHUNKS : 1;          // parts of rows that a warp holds
  static constexpr int TOGETHER = PARTS < 8 * AT_MOST ? 8 * AT_MOST / PARTS : 1;  // rows of a round
  static constexpr int JOBS = (TOGETHER * PARTS + 7) / 8;
  static constexpr int SUMS = CENTERED ? 2 : 1;
  static_assert(NORM_LANES % 32 == 0 && NORM_CHUNKS > 0 && THREADS == 256, "whole warps of rows held in registers");
  using Sums = float[TOGETHER][PARTS][SUMS];  // of the parts of a round's rows

  // A round: rows `first`, `first` + `apart`, ... below `end`. Part number `job` of it belongs to a warp.
  struct Round {
    long long first, end;
    int apart, vectors;

    __device__ __forceinline__ long long row(int k) const { return first + (long long)k * apart; }
    __device__ __forceinline__ static int job(int q) { return threadIdx.x / 32 + 8 * q; }
    // f(i, r, v): vector v of row r is the i-th that the thread holds of part `job`
    template <class F>
    __device__ __forceinline__ void each(int job, F f) const {
      const long long r = row(job / PARTS);
      if (job >= TOGETHER * PARTS || r >= end) return;
#pragma unroll
      for (int i = 0; i < NORM_CHUNKS; ++i) {
        const int v = job % PARTS * 32 + (int)threadIdx.x % 32 + i * NORM_LANES;
        if (v < vectors) f(i, r, v);
      }
    }
  };

  template <int N>
  __device__ __forceinline__ static void keep(int job, Sums& to, float (&s)[N]) {
    add_lanes<32>(s);
    if (threadIdx.x % 32 != 0 || job >= TOGETHER * PARTS) return;
#pragma unroll
    for (int j = 0; j < N; ++j) to[job / PARTS][job % PARTS][j] = s[j];
  }

  // The sums of row k of the round, for every lane of the warp.
  template <int N>
  __device__ __forceinline__ static void fold(const Sums& from, int k, float (&s)[N]) {
    const int lane = threadIdx.x % SPAN<PARTS>;
#pragma unroll
    for (int j = 0; j < N; ++j) s[j] = lane < PARTS ? from[k][lane][j] : 0.0f;
    add_lanes<SPAN<PARTS>>(s);
  }
  __device__ __forceinline__ float base_of(const Sums& from, int k) const {
    float total[1];
    fold(from, k, total);
    return total[0] / length;
  }

  // The statistics of rows `from`, `from` + `apart`, ... below `end`; ends with a barrier.
  __device__ __forceinline__ void make_statistics(const Source& s, long long from, long long end, int apart) const {
    __shared__ Sums level, parts;  // of x; of squares, or differences and their squares
    for (; from < end; from += (long long)apart * TOGETHER) {
      const Round round = {from, end, apart, (int)(s.columns / VECTOR)};
      Words<T_IN, VECTOR> held[JOBS][NORM_CHUNKS];
#pragma unroll
      for (int q = 0; q < JOBS; ++q)
        round.each(round.job(q), [&](int i, long long r, int v) {
          held[q][i] = load_words<T_IN, VECTOR>(s.data + r * s.columns + (long long)v * VECTOR);
        });
      if constexpr (CENTERED) {
#pragma unroll
        for (int q = 0; q < JOBS; ++q) {
          float total[1] = {0.0f};
          round.each(round.job(q), [&](int i, long long, int) {
            float x[VECTOR];
            unpack(held[q][i], x);
            add_values(total, x);
          });
          keep(round.job(q), level, total);
        }
        __syncthreads();
      }
#pragma unroll
      for (int q = 0; q < JOBS; ++q) {
        float sums[SUMS] = {};
        const float base = CENTERED ? base_of(level, min(round.job(q) / PARTS, TOGETHER - 1)) : 0.0f;
        round.each(round.job(q), [&](int i, long long, int) {
          float x[VECTOR];
          unpack(held[q][i], x);
          if constexpr (CENTERED) add_differences(sums, x, base);
          else add_squares(sums, x);
        });
        keep(round.job(q), parts, sums);
      }
      __syncthreads();
      for (int k = threadIdx.x / 32; k < TOGETHER; k += 8) finish(level, parts, k, round);
      __syncthreads();
    }
  }

  __device__ __forceinline__ void finish(const Sums& level, const Sums& parts, int k, const Round& round) const {
    const long long r = round.row(k);
    float sums[SUMS];
    fold(parts, k, sums);
    const float base = CENTERED ? base_of(level, k) : 0.0f;
    if (r >= round.end || threadIdx.x % 32 != 0) return;
    rstd[r] = rstd_of(variance_of(sums, length), eps);
    if constexpr (CENTERED) {
      const Middle at = {base, sums[0] / length};
      middle[r] = at;
      if (mean) mean[r] = at.base + at.rest;
    }
  }
#endif

  // The tile whose codes this block makes, or -1. Barriers of the block are inside.
  __device__ __forceinline__ long long tile(const Source& s, long long index) const {
#if PANELS
    __shared__ bool there;
    const int across = (int)((s.columns + COLUMNS - 1) / COLUMNS), tiles = across * (int)((s.rows + ROWS - 1) / ROWS);
    const int share = (int)blockIdx.x, mine = share - lead;
    int panel = share / across, first = share % across, apart = across;
    bool work = share < tiles;
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {
      const long long top = (long long)panel * ROWS;
      if (work) make_statistics(s, top + first, min(top + ROWS, s.rows), apart);
      if (turn == 1) break;
      if (work && threadIdx.x == 0) release_one(state + panel);
      if (mine < 0) return -1;
      panel = mine / across;
      if (threadIdx.x == 0) there = wait_for(state + panel, across);
      __syncthreads();
      if (there) break;
      first = 0, apart = 1, work = true;  // for a second turn
    }
    return mine;
#else
    return index;
#endif
  }

  // The thread's rows; elements outside the matrix stay 0. Rows of x are whole vectors of 16 bytes, so that four
  // neighbours are inside or outside together.
  template <bool Whole>
  __device__ __forceinline__ void load(Values (&v)[HELD], const Source& s, long long r, long long c) const {
    load_rows<Whole>(v, s, r, c);
    float scale[HELD];
    Middle at[HELD];
#pragma unroll
    for (int k = 0; k < HELD; ++k) {
      const long long row = Whole ? r + k : min(r + k, s.rows - 1);  // what is outside is dropped below
      scale[k] = read_fresh(rstd + row);
      if constexpr (CENTERED) at[k] = {read_fresh(&middle[row].base), read_fresh(&middle[row].rest)};
    }
#pragma unroll
    for (int i = 0; i < PIECE; i += 4) {
      const long long from = Whole ? c + i : min(c + i, s.columns - 4);
      float g[4], b[4] = {};
      unpack(load_words<T_PARAM, 4>(gamma + from), g);
      if (CENTERED && beta) unpack(load_words<T_PARAM, 4>(beta + from), b);
#pragma unroll
      for (int k = 0; k < HELD; ++k) {
        Words<T_IN, 4> words;
        float x[4];
#pragma unroll
        for (int w = 0; w < 4 / PER; ++w) words.at[w] = v[k].word[i / PER + w];
        unpack(words, x);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          x[j] = normalized<CENTERED>(x[j], at[k], scale[k], g[j] + shift);
          if (CENTERED && beta) x[j] += b[j];
        }
        words = pack<T_IN, 4, false>(x);  // which NaN it is does not matter to codes
#pragma unroll
        for (int w = 0; w < 4 / PER; ++w) v[k].word[i / PER + w] = words.at[w];
      }
    }
    if constexpr (Whole) return;
#pragma unroll
    for (int i = 0; i < WORDS_HELD; ++i)
#pragma unroll
      for (int k = 0; k < HELD; ++k)
        if (c + i * PER >= s.columns || r + k >= s.rows) v[k].word[i] = 0u;
  }
};
using Input = NormInput<NORM_CENTERED>;
