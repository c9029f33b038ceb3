// cross_entropy: loss and log-sum-exp of each row of logits [rows, V]; cross_entropy_vjp: their gradient.
//
// Parallelisation: one block per row (32 to 512 threads by V); each thread keeps a running maximum and the sum of
// exp relative to it ("online softmax"), merged over the block by xor shuffles. A row may start at any element, so
// it is split into a scalar head, 16-byte vectors, FLIGHT of them loaded at a time, and a scalar tail. No atomics: every
// call repeats its bits.
// Bytes moved: sizeof(T_IN) per logit forward (twice with label smoothing, the second time mostly from L2),
// 2 * sizeof(T_IN) backward.
//
// Macros: T_IN, T_ID (int or long long); `cross_entropy_finish` needs T_ID only.
#include "convert.cuh"
#include "online.cuh"
#include "own.cuh"
#include "pack.cuh"

#ifdef T_IN
constexpr int PER_VECTOR = 16 / sizeof(T_IN);

// Calls one(x, v) or many(x, v) for each element or whole vector of a row, v being the first index.
template <int FLIGHT, class One, class Many>
__device__ __forceinline__ void for_row(const T_IN* row, long long n, Split cut, One one, Many many) {
  for (long long v = threadIdx.x; v < cut.head; v += blockDim.x) one(load_float(row[v]), v);
  for (long long i = threadIdx.x; i < cut.vectors; i += FLIGHT * blockDim.x) {
    Words<T_IN, PER_VECTOR> packed[FLIGHT];
#pragma unroll
    for (int k = 0; k < FLIGHT; ++k) {
      const long long at = i + k * blockDim.x;
      if (at < cut.vectors) packed[k] = load_words<T_IN, PER_VECTOR>(row + cut.head + at * PER_VECTOR);
    }
#pragma unroll
    for (int k = 0; k < FLIGHT; ++k) {
      const long long at = i + k * blockDim.x;
      float x[PER_VECTOR];
      unpack(packed[k], x);
      if (at < cut.vectors) many(x, cut.head + at * PER_VECTOR);
    }
  }
  for (long long v = cut.head + cut.vectors * PER_VECTOR + threadIdx.x; v < n; v += blockDim.x)
    one(load_float(row[v]), v);
}

// As `add`, with the exponentials of softmax.
template <int N>
__device__ __forceinline__ void add_near(Running& r, const float (&x)[N]) {
  float top = r.top;
#pragma unroll
  for (int j = 0; j < N; ++j) top = fmaxf(top, x[j]);  // NaN is never the top, but makes the sum NaN
  const float base = base_of(top);
  if (top > r.top) {
    r.sum *= exp_below(r.top - base);
    r.top = top;
  }
#pragma unroll
  for (int j = 0; j < N; ++j) r.sum += exp_below(x[j] - base);
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
cross_entropy_rows(const T_IN* __restrict__ logits, const T_ID* __restrict__ targets, long long rows,
                   long long vocabulary, long long ignore, float smoothing, float* loss, float* lse) {
  for (long long t = blockIdx.x; t < rows; t += gridDim.x) {
    const long long target = targets[t];
    if (target == ignore) {
      if (threadIdx.x == 0) loss[t] = lse[t] = 0.0f;
      continue;
    }
    const T_IN* row = logits + t * vocabulary;
    const Split cut = split(row, vocabulary);
    Running r = {-INF, 0.0f};
    for_row<2>(row, vocabulary, cut, [&](float x, long long) { const float one[1] = {x}; add_near(r, one); },
            [&](const float(&x)[PER_VECTOR], long long) { add_near(r, x); });
    r = row_merge(r);
    float below = 0.0f;  // sum over the row of (top - x)
    if (smoothing > 0.0f) {
      for_row<2>(row, vocabulary, cut, [&](float x, long long) { below += r.top - x; },
              [&](const float(&x)[PER_VECTOR], long long) {
#pragma unroll
                for (int j = 0; j < PER_VECTOR; ++j) below += r.top - x[j];
              });
      below = row_sum(below);
    }
    if (threadIdx.x == 0) {
      const float log_sum = logf(r.sum);
      const bool known = target >= 0 && target < vocabulary;
      float nll = known ? (r.top - load_float(row[target])) + log_sum : __uint_as_float(0x7fc00000u);
      if (smoothing > 0.0f) nll = (1.0f - smoothing) * nll + smoothing * (below / (float)vocabulary + log_sum);
      loss[t] = nll;
      lse[t] = r.top + log_sum;
    }
  }
}

extern "C" __global__ void __launch_bounds__(MOST_THREADS)
cross_entropy_vjp(const T_IN* logits, const T_ID* __restrict__ targets, const float* __restrict__ lse,
                  const float* __restrict__ weight, const float* __restrict__ dloss, long long dloss_stride,
                  long long rows, long long vocabulary, long long ignore, float hit, float uniform, T_IN* dlogits) {
  for (long long t = blockIdx.x; t < rows; t += gridDim.x) {
    const long long target = targets[t];
    const bool counts = target != ignore && target >= 0 && target < vocabulary;
    const float low = lse[t], factor = dloss[t * dloss_stride] * *weight;
    const T_IN* row = logits + t * vocabulary;
    T_IN* out = dlogits + t * vocabulary;
    // Both rows reach a 16-byte address together, or everything goes by single elements.
    const Split cut = in_phase(row, out) ? split(row, vocabulary) : Split{vocabulary, 0};
    auto gradient = [&](float x, long long v) {
      return counts ? ((exp_below(x - low) - uniform) - (v == target ? hit : 0.0f)) * factor : 0.0f;
    };
    for_row<4>(row, vocabulary, cut, [&](float x, long long v) { out[v] = store<T_IN>(gradient(x, v)); },
            [&](const float(&x)[PER_VECTOR], long long v) {
              float y[PER_VECTOR];
#pragma unroll
              for (int j = 0; j < PER_VECTOR; ++j) y[j] = gradient(x[j], v + j);
              keep_words(out + v, pack<T_IN, PER_VECTOR>(y));
            });
  }
}
#endif

// One block: the loss word and the weight word. mode 0: weight only (1); 1: sum; 2: mean over the counted rows.
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
cross_entropy_finish(const float* __restrict__ losses, const T_ID* __restrict__ targets, long long rows,
                     long long ignore, int mode, float* loss, float* weight) {
  double total = 0.0, valid = 0.0;
  if (mode != 0) {
    for (long long t = threadIdx.x; t < rows; t += blockDim.x) {
      total += (double)losses[t];
      valid += targets[t] != ignore ? 1.0 : 0.0;
    }
    total = row_sum(total);
    valid = row_sum(valid);
  }
  if (threadIdx.x != 0) return;
  const bool mean = mode == 2;
  if (mode != 0) *loss = !mean ? (float)total : valid > 0.0 ? (float)(total / valid) : 0.0f;
  *weight = !mean ? 1.0f : valid > 0.0 ? (float)(1.0 / valid) : 0.0f;
}
