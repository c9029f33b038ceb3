// Addressing arrays of any strides: a logical row-major index to an element offset.
#pragma once

// Passed by value from `nvfp/kernels/cuda/_layout.py`. Two stride sets serve kernels that read one array and
// write another of the same shape.
template <int AXES>
struct Strided {
  long long shape[AXES];
  long long first[AXES];   // strides in elements
  long long second[AXES];

  __device__ __forceinline__ long long offset(long long index, const long long (&strides)[AXES]) const {
    long long total = 0;
#pragma unroll
    for (int d = AXES - 1; d > 0; --d) {
      long long q = index / shape[d];
      total += (index - q * shape[d]) * strides[d];
      index = q;
    }
    return total + index * strides[0];
  }
  __device__ __forceinline__ void offsets(long long index, long long& a, long long& b) const {
    a = b = 0;
#pragma unroll
    for (int d = AXES - 1; d > 0; --d) {
      long long q = index / shape[d], i = index - q * shape[d];
      a += i * first[d];
      b += i * second[d];
      index = q;
    }
    a += index * first[0];
    b += index * second[0];
  }
};
