// Vector access to arrays that the same kernel may write, and stretches that start at any element.
#pragma once
#include "vec.cuh"

// As load_vec, but through the ordinary path: the read-only one is not for data that the kernel writes.
template <class T, int N>
__device__ __forceinline__ Vec<T, N> load_own(const T* p) {
  constexpr int BYTES = sizeof(T) * N;
  static_assert(BYTES == 8 || BYTES % 16 == 0, "8 bytes or whole 16-byte pieces");
  Vec<T, N> v;
  if constexpr (BYTES == 8) {
    *reinterpret_cast<uint2*>(&v) = *reinterpret_cast<const uint2*>(p);
  } else {
#pragma unroll
    for (int i = 0; i < BYTES / 16; ++i) reinterpret_cast<uint4*>(&v)[i] = reinterpret_cast<const uint4*>(p)[i];
  }
  return v;
}

// How a stretch of n elements at p splits: `head` single elements up to a 16-byte address, then `vectors`
// pieces of 16 bytes, then single elements again.
struct Split {
  long long head, vectors;
};
template <class T>
__device__ __forceinline__ Split split(const T* p, long long n) {
  long long to_aligned = (long long)((16 - (unsigned long long)p % 16) % 16 / sizeof(T));
  long long head = to_aligned < n ? to_aligned : n;
  return {head, (n - head) / (long long)(16 / sizeof(T))};
}

// Whether two addresses reach a multiple of 16 after the same number of bytes.
__device__ __forceinline__ bool in_phase(const void* a, const void* b) {
  return ((unsigned long long)a - (unsigned long long)b) % 16 == 0;
}
