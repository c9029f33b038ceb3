// sgd: the update of `kernels/sgd.py` for up to ENTRIES tensors in one launch; operation for operation as
// `cpu/sgd.py` (this file must be compiled with -fmad=false).
//
// Parallelisation: a block takes CHUNK elements of one tensor of the table (`entries.cuh`).
// Bytes moved per element: read p or w, g, m where there is momentum; write p, m, w.
//
// Macros: T_P, T_G: dtypes of parameters and gradients (`sgd_begin` needs neither).
#include "convert.cuh"
#include "entries.cuh"
#include "own.cuh"

struct Words {
  float lr, momentum, rest, decay;
  unsigned first, skip;  // not 0: the first step; write nothing
};

// One thread: advances the step and derives the words that all launches of this update read. skip: a word, or null.
extern "C" __global__ void sgd_begin(const float* hyper, int* step, const float* skip, Words* words) {
  if (skip != nullptr && *skip != 0.0f) {
    words->skip = 1;
    return;
  }
  const int t = *step + 1;
  *step = t;
  *words = {hyper[0], hyper[1], 1.0f - hyper[2], hyper[3], t == 1, 0};
}

#ifdef T_P
// m: the buffer of momentum, meaningless where `held` is false.
__device__ __forceinline__ void update(float& p, float g, float& m, const Words& c, bool nesterov, bool held) {
  g = g + c.decay * p;
  if (held) {
    m = c.first ? g : c.momentum * m + c.rest * g;
    g = nesterov ? g + c.momentum * m : m;
  }
  p = p - c.lr * g;
}

__device__ __forceinline__ void update_four(const Entry& e, long long i, const Words& c, bool nesterov) {
  const Vec<T_G, 4> g = load_own<T_G, 4>(e.g + i);
  const bool held = e.m != nullptr;
  Vec<float, 4> m = {}, w;
  if (held) m = load_own<float, 4>(e.m + i);
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
    update(w.at[j], load_float(g.at[j]), m.at[j], c, nesterov, held);
    p.at[j] = store<T_P>(w.at[j]);
  }
  store_vec(e.p + i, p);
  if (held) store_vec(e.m + i, m);
  if (e.w != nullptr) store_vec(e.w + i, w);
}

__device__ __forceinline__ void update_one(const Entry& e, long long i, const Words& c, bool nesterov) {
  const bool held = e.m != nullptr;
  float w = e.w != nullptr ? e.w[i] : load_float(e.p[i]), m = held ? e.m[i] : 0.0f;
  update(w, load_float(e.g[i]), m, c, nesterov, held);
  e.p[i] = store<T_P>(w);
  if (held) e.m[i] = m;
  if (e.w != nullptr) e.w[i] = w;
}

extern "C" __global__ void __launch_bounds__(THREADS) sgd(const __grid_constant__ Batch batch, const Words* words) {
  if (words->skip) return;
  const Entry e = batch.at[entry_of(batch, blockIdx.x)];
  const Words c = *words;
  const bool nesterov = batch.flag != 0;
  walk(e, [&](long long i) { update_four(e, i, c, nesterov); }, [&](long long i) { update_one(e, i, c, nesterov); });
}
#endif
