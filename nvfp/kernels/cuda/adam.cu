// adam: the update of `kernels/adam.py` for up to ENTRIES tensors in one launch; operation for operation as
// `cpu/adam.py` (this file must be compiled with -fmad=false).
//
// Parallelisation: a block takes CHUNK elements of one tensor of the table (`entries.cuh`).
// Bytes moved per element: read p, g, m, v (w); write p, m, v (w).
//
// Macros: T_P, T_G: dtypes of parameters and gradients (`adam_begin` needs neither).
#include "convert.cuh"
#include "entries.cuh"
#include "own.cuh"

// 1 / (1 - beta^step): products of float64, since pow differs between CPU and GPU.
__device__ __forceinline__ float correction(float beta, int step) {
  double power = 1.0, square = (double)beta;
  for (; step > 0; step >>= 1) {
    if (step & 1) power *= square;
    square *= square;
  }
  return 1.0f / (float)(1.0 - power);
}

struct Words {
  float lr, b1, b2, eps, decay, rest1, rest2, r1, r2;
  unsigned skip;  // not 0: write nothing
};

// One thread: advances the step and derives the words that all launches of this update read. skip: a word, or null.
extern "C" __global__ void adam_begin(const float* hyper, int* step, const float* skip, Words* words) {
  if (skip != nullptr && *skip != 0.0f) {
    words->skip = 1;
    return;
  }
  const int t = *step + 1;
  *step = t;
  const float b1 = hyper[1], b2 = hyper[2];
  *words = {hyper[0], b1, b2, hyper[3], hyper[4], 1.0f - b1, 1.0f - b2, correction(b1, t), correction(b2, t), 0};
}

#ifdef T_P
__device__ __forceinline__ void update(float& p, float g, float& m, float& v, const Words& c, bool l2) {
  if (l2) g = g + c.decay * p;
  m = c.b1 * m + c.rest1 * g;
  v = c.b2 * v + (c.rest2 * g) * g;
  float u = (m * c.r1) / (sqrtf(v * c.r2) + c.eps);
  if (!l2) u = u + c.decay * p;
  p = p - c.lr * u;
}

__device__ __forceinline__ void update_four(const Entry& e, long long i, const Words& c, bool l2) {
  const Vec<T_G, 4> g = load_own<T_G, 4>(e.g + i);
  Vec<float, 4> m = load_own<float, 4>(e.m + i), v = load_own<float, 4>(e.v + i), w;
  Vec<T_P, 4> p;
  if (e.w != nullptr) {
    w = load_own<float, 4>(e.w + i);
  } else {
    p = load_own<T_P, 4>(e.p + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) w.at[j] = load_float(p.at[j]);
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    update(w.at[j], load_float(g.at[j]), m.at[j], v.at[j], c, l2);
    p.at[j] = store<T_P>(w.at[j]);
  }
  store_vec(e.p + i, p);
  store_vec(e.m + i, m);
  store_vec(e.v + i, v);
  if (e.w != nullptr) store_vec(e.w + i, w);
}

__device__ __forceinline__ void update_one(const Entry& e, long long i, const Words& c, bool l2) {
  float w = e.w != nullptr ? e.w[i] : load_float(e.p[i]), m = e.m[i], v = e.v[i];
  update(w, load_float(e.g[i]), m, v, c, l2);
  e.p[i] = store<T_P>(w);
  e.m[i] = m;
  e.v[i] = v;
  if (e.w != nullptr) e.w[i] = w;
}

extern "C" __global__ void __launch_bounds__(THREADS) adam(const __grid_constant__ Batch batch, const Words* words) {
  if (words->skip) return;
  const Entry e = batch.at[entry_of(batch, blockIdx.x)];
  const Words c = *words;
  const bool l2 = batch.flag != 0;
  walk(e, [&](long long i) { update_four(e, i, c, l2); }, [&](long long i) { update_one(e, i, c, l2); });
}
#endif
