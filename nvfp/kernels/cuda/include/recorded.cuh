// The largest magnitude of what a kernel writes (RECORD), as amax.cu takes it of an array: NaN aside, infinity counts.
// Without the macro nothing of it is left.
#pragma once
#include "pack.cuh"
#include "reduce.cuh"

#ifdef RECORD
#define RECORD_PARAMETER , float* word
#define RECORD_ARGUMENT word
#else
#define RECORD_PARAMETER
#define RECORD_ARGUMENT nullptr
#endif

struct Recorded {
#ifdef RECORD
  unsigned most = 0;
#endif

  template <int N>
  __device__ __forceinline__ void see(const Words<T_IN, N>& words) {
#ifdef RECORD
    float x[N];
    unpack(words, x);
#pragma unroll
    for (int j = 0; j < N; ++j) most = max(most, counted<false>(x[j]));
#endif
  }

  __device__ __forceinline__ T_IN seen(T_IN x) {
#ifdef RECORD
    most = max(most, counted<false>(load_float(x)));
#endif
    return x;
  }

  // Raises the word, once for the block; all of its threads come here.
  template <int THREADS>
  __device__ __forceinline__ void finish(float* word) {
#ifdef RECORD
    const unsigned m = block_max<THREADS>(most);
    if (threadIdx.x == 0) record_max(word, m);
#endif
  }
};
