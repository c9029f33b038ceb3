// adam: the update of `kernels/adam.py` for up to ENTRIES tensors in one launch; operation for operation as
// `cpu/adam.py` (this file must be compiled with -fmad=false).
//
// Parallelisation: a block takes CHUNK elements of one tensor; it finds its tensor by bisecting `first_block`.
// The table of tensors is a kernel argument, so nothing is copied to the device and a graph can capture the call.
// Bytes moved per element: read p, g, m, v (w); write p, m, v (w).
//
// Macros: T_P, T_G: dtypes of parameters and gradients (`adam_begin` needs neither).
#include "convert.cuh"
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
};

// One thread: advances the step and derives the words that all launches of this update read.
extern "C" __global__ void adam_begin(const float* hyper, int* step, Words* words) {
  const int t = *step + 1;
  *step = t;
  const float b1 = hyper[1], b2 = hyper[2];
  *words = {hyper[0], b1, b2, hyper[3], hyper[4], 1.0f - b1, 1.0f - b2, correction(b1, t), correction(b2, t)};
}

#ifdef T_P
constexpr int THREADS = 256, PER_THREAD = 4, TURNS = 4;
constexpr int CHUNK = THREADS * PER_THREAD * TURNS;  // = adam.py's CHUNK
constexpr int ENTRIES = 64;                          // = adam.py's ENTRIES

struct Entry {
  T_P* p;
  const T_G* g;
  float *m, *v, *w;  // w: float32 master copy, or null
  long long n;
  int first_block, unused;
};
struct Batch {
  Entry at[ENTRIES];
  int count, l2;
};

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
  int low = 0, high = batch.count - 1;
  while (low < high) {  // the last entry whose first block is not behind this one
    int middle = (low + high + 1) / 2;
    if (batch.at[middle].first_block <= (int)blockIdx.x) low = middle;
    else high = middle - 1;
  }
  const Entry e = batch.at[low];
  const Words c = *words;
  const bool l2 = batch.l2 != 0;
  const unsigned long long state = (unsigned long long)e.m | (unsigned long long)e.v | (unsigned long long)e.w;
  const bool aligned = state % 16 == 0 && (unsigned long long)e.p % (4 * sizeof(T_P)) == 0 &&
                       (unsigned long long)e.g % (4 * sizeof(T_G)) == 0;
  const long long start = (long long)((int)blockIdx.x - e.first_block) * CHUNK + threadIdx.x * PER_THREAD;
#pragma unroll 1
  for (int turn = 0; turn < TURNS; ++turn) {
    const long long i = start + turn * (THREADS * PER_THREAD);
    if (aligned && i + PER_THREAD <= e.n) {
      update_four(e, i, c, l2);
    } else {
      for (long long k = i; k < e.n && k < i + PER_THREAD; ++k) update_one(e, k, c, l2);
    }
  }
}
#endif
