// amax: the largest magnitude of a tensor into a float word, by integer maxima on float bits.
//
// Parallelisation: a grid-stride loop; every block reduces its part and updates each word once. The result
// does not depend on the order, so it repeats its bits. NaN (KIND=1: and infinity) counts as 0; KIND=2 counts
// both as what their bits are, NaN > inf > every number, into a word that starts at 0.
// Bytes moved: sizeof(T_IN) per element, read once.
//
// Macros: T_IN, KIND, and RANK for `amax_strided`.
#include "convert.cuh"
#include "reduce.cuh"
#include "strided.cuh"
#include "vec.cuh"

constexpr int THREADS = 256;

__device__ __forceinline__ unsigned seen(T_IN x) {
  if constexpr (KIND == 2) return magnitude(load_float(x));
  else return counted<KIND == 1>(load_float(x));
}

__device__ __forceinline__ void finish(unsigned m, float* word, float* also, float* and_also) {
  m = block_max<THREADS>(m);
  if (threadIdx.x != 0) return;
  if constexpr (KIND == 2) {
    atomicMax(reinterpret_cast<unsigned*>(word), m);
  } else {
    record_max(word, m);
    if (also != nullptr) record_max(also, m);
    if (and_also != nullptr) record_max(and_also, m);
  }
}

#ifndef RANK
constexpr int PER_LOAD = 16 / sizeof(T_IN);
// Contiguous input whose address is a multiple of 16.
extern "C" __global__ void __launch_bounds__(THREADS)
amax_flat(const T_IN* __restrict__ x, long long n, float* word, float* also, float* and_also) {
  constexpr int UNROLL = 4;  // independent loads in flight per thread
  const long long vectors = n / PER_LOAD, stride = (long long)gridDim.x * THREADS;
  long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
  unsigned m = 0;
  for (; i + (UNROLL - 1) * stride < vectors; i += UNROLL * stride) {
    Vec<T_IN, PER_LOAD> v[UNROLL];
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) v[k] = load_vec<T_IN, PER_LOAD>(x + (i + k * stride) * PER_LOAD);
#pragma unroll
    for (int k = 0; k < UNROLL; ++k)
#pragma unroll
      for (int j = 0; j < PER_LOAD; ++j) m = max(m, seen(v[k].at[j]));
  }
  for (; i < vectors; i += stride) {
    Vec<T_IN, PER_LOAD> v = load_vec<T_IN, PER_LOAD>(x + i * PER_LOAD);
#pragma unroll
    for (int j = 0; j < PER_LOAD; ++j) m = max(m, seen(v.at[j]));
  }
  if (blockIdx.x == 0 && threadIdx.x < n % PER_LOAD) m = max(m, seen(x[vectors * PER_LOAD + threadIdx.x]));
  finish(m, word, also, and_also);
}

#else
// Any strides.
extern "C" __global__ void __launch_bounds__(THREADS)
amax_strided(const T_IN* __restrict__ x, const Strided<RANK> at, long long n, float* word, float* also, float* and_also) {
  unsigned m = 0;
  for (long long i = (long long)blockIdx.x * THREADS + threadIdx.x; i < n; i += (long long)gridDim.x * THREADS)
    m = max(m, seen(x[at.offset(i, at.first)]));
  finish(m, word, also, and_also);
}
#endif
