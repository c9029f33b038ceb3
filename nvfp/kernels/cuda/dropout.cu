// dropout: y = keep ? x * scale : 0, plus a residual; the gradient is the same with dy for x. advance_steps: step += 1.
//
// Element e = offset + i takes word e % 4 of Philox group e / 4 and is kept if its upper 24 bits reach `limit`.
// Parallelisation: a grid-stride loop over 16-byte vectors (one group per four elements; only where offset is a
// multiple of 4), then over the groups of what is left. Each thread reads an element before it writes it, so y may be
// x or the residual. The step is read from device memory: a replayed graph sees the step of then.
// Bytes moved: 2 * sizeof(T_IN) per element, 3 * sizeof(T_IN) with a residual.
//
// Macros: T_IN, RESIDUAL (0 or 1). `vectors` is n / PER_VECTOR where addresses and offset allow it, else 0.
#include "pack.cuh"
#include "philox.cuh"

constexpr int THREADS = 256, WORDS = 500;  // = dropout.py's
constexpr int PER_VECTOR = 16 / sizeof(T_IN);

// The upper 24 bits reach the limit where the word reaches it with 8 zeros behind; 2^24, which none reaches, has no
// place for them.
struct Limit {
  unsigned low;
  bool none;
};

__device__ __forceinline__ float dropped(float x, unsigned word, Limit limit, float scale) {
  return word >= limit.low && !limit.none ? x * scale : 0.0f;
}

// One element: rounded, then the residual added and rounded, as the unfused pair does.
__device__ __forceinline__ T_IN one(T_IN x, T_IN residual, unsigned word, Limit limit, float scale) {
  const T_IN y = store<T_IN>(dropped(load_float(x), word, limit, scale));
  return RESIDUAL ? store<T_IN>(load_float(y) + load_float(residual)) : y;
}

extern "C" __global__ void __launch_bounds__(THREADS)
dropout(const T_IN* x, const T_IN* residual, T_IN* y, long long n, long long vectors, long long offset,
        unsigned long long key, unsigned stream, const long long* step, long long* used, unsigned least, float scale) {
  const long long first = (long long)blockIdx.x * THREADS + threadIdx.x, stride = (long long)gridDim.x * THREADS;
  const Limit limit = {least << 8, least >> 24 != 0};
  const long long now = *step;
  if (first == 0 && used != nullptr) *used = now;
  const unsigned at_step = (unsigned)now;
  for (long long i = first; i < vectors; i += stride) {
    const long long at = i * PER_VECTOR;
    const Words<T_IN, PER_VECTOR> v = load_words<T_IN, PER_VECTOR>(x + at);
    Words<T_IN, PER_VECTOR> r = v;
    if (RESIDUAL) r = load_words<T_IN, PER_VECTOR>(residual + at);
    float u[PER_VECTOR];
    unpack(v, u);
#pragma unroll
    for (int j = 0; j < PER_VECTOR; j += 4) {
      const uint4 w = philox_group((unsigned long long)(offset + at + j) / 4, stream, at_step, key);
      u[j] = dropped(u[j], w.x, limit, scale);
      u[j + 1] = dropped(u[j + 1], w.y, limit, scale);
      u[j + 2] = dropped(u[j + 2], w.z, limit, scale);
      u[j + 3] = dropped(u[j + 3], w.w, limit, scale);
    }
    if (RESIDUAL) {
      float add[PER_VECTOR];
      unpack(r, add);
      if (sizeof(T_IN) < 4) unpack(pack<T_IN, PER_VECTOR>(u), u);  // rounded in between
#pragma unroll
      for (int j = 0; j < PER_VECTOR; ++j) u[j] += add[j];
    }
    keep_words(y + at, pack<T_IN, PER_VECTOR>(u));
  }
  // Groups of the rest; the first and the last one may lie partly outside [start, n).
  const long long start = vectors * PER_VECTOR, low = (offset + start) / 4, high = (offset + n + 3) / 4;
  for (long long g = low + first; g < high; g += stride) {
    const uint4 w = philox_group((unsigned long long)g, stream, at_step, key);
    const unsigned words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const long long i = g * 4 + j - offset;
      if (i >= start && i < n) y[i] = one(x[i], RESIDUAL ? residual[i] : x[i], words[j], limit, scale);
    }
  }
}

struct Batch {
  long long* at[WORDS];
  long long count;
};

// One block; the table is a kernel argument, so a graph can capture the call.
extern "C" __global__ void __launch_bounds__(THREADS) advance_steps(const __grid_constant__ Batch batch) {
  for (int i = threadIdx.x; i < batch.count; i += THREADS) *batch.at[i] += 1;
}
