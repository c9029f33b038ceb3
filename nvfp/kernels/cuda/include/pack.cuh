// N elements as the 32-bit words that hold them, and as float32. Elements narrower than a word in structs cost an
// instruction for each half to take apart and to put together, and make a load that runs ahead wait for its data.
#pragma once
#include "convert.cuh"
#include "own.cuh"

template <class A, class B> constexpr bool PACKS_AS = false;
template <class A> constexpr bool PACKS_AS<A, A> = true;

template <class T, int N>
struct Words {
  static constexpr int BYTES = sizeof(T) * N, COUNT = (BYTES + 3) / 4;
  unsigned at[COUNT];
};

// From an address that is a multiple of min(16, N * sizeof(T)) bytes; the kernel may write there too.
template <class T, int N>
__device__ __forceinline__ Words<T, N> load_words(const T* p) {
  constexpr int BYTES = Words<T, N>::BYTES;
  static_assert(BYTES % 16 == 0 || BYTES == 8 || BYTES == 4 || BYTES == 2, "one load, or several of 16 bytes");
  Words<T, N> v;
  if constexpr (BYTES % 16 == 0) {
#pragma unroll
    for (int i = 0; i < BYTES / 16; ++i) {
      const uint4 w = reinterpret_cast<const uint4*>(p)[i];
      v.at[4 * i] = w.x, v.at[4 * i + 1] = w.y, v.at[4 * i + 2] = w.z, v.at[4 * i + 3] = w.w;
    }
  } else if constexpr (BYTES == 8) {
    const uint2 w = *reinterpret_cast<const uint2*>(p);
    v.at[0] = w.x, v.at[1] = w.y;
  } else if constexpr (BYTES == 4) {
    v.at[0] = *reinterpret_cast<const unsigned*>(p);
  } else {
    v.at[0] = *reinterpret_cast<const unsigned short*>(p);
  }
  return v;
}

template <class T, int N>
__device__ __forceinline__ void keep_words(T* p, const Words<T, N>& v) {
  constexpr int BYTES = Words<T, N>::BYTES;
  if constexpr (BYTES % 16 == 0) {
#pragma unroll
    for (int i = 0; i < BYTES / 16; ++i)
      store_words(reinterpret_cast<uint4*>(p) + i, make_uint4(v.at[4 * i], v.at[4 * i + 1], v.at[4 * i + 2], v.at[4 * i + 3]));
  } else if constexpr (BYTES == 8) {
    store_words(p, make_uint2(v.at[0], v.at[1]));
  } else if constexpr (BYTES == 4) {
    *reinterpret_cast<unsigned*>(p) = v.at[0];
  } else {
    *reinterpret_cast<unsigned short*>(p) = (unsigned short)v.at[0];
  }
}

// Widens exactly, as load_float() of each element.
template <class T, int N>
__device__ __forceinline__ void unpack(const Words<T, N>& v, float (&x)[N]) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 2, "float32 or 16 bits");
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if constexpr (sizeof(T) == 4) {
      x[j] = __uint_as_float(v.at[j]);
    } else if constexpr (PACKS_AS<T, __nv_bfloat16>) {
      x[j] = __uint_as_float(j % 2 ? v.at[j / 2] & 0xffff0000u : v.at[j / 2] << 16);
    } else {
      x[j] = __half2float(__ushort_as_half((unsigned short)(j % 2 ? v.at[j / 2] >> 16 : v.at[j / 2])));
    }
  }
}

template <class T>
__device__ __forceinline__ unsigned store_bits(float x) {
  if constexpr (sizeof(T) == 4) return __float_as_uint(x);
  else if constexpr (PACKS_AS<T, __nv_bfloat16>) return __bfloat16_as_ushort(store<T>(x));
  else return __half_as_ushort(store<T>(x));
}

#ifdef __CUDA_ARCH__
// Both rounded to nearest even, `low` in the low half. A NaN loses its sign and payload.
template <class T>
__device__ __forceinline__ unsigned round_pair(float low, float high) {
  unsigned word;
  if constexpr (PACKS_AS<T, __half>) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
#endif

// Rounds once, as store<T>() of each element. Pairs go in one instruction, which gives NaN other bits than store():
// a vector with a NaN is written again one by one. NANS = false: there is none.
template <class T, int N, bool NANS = true>
__device__ __forceinline__ Words<T, N> pack(const float (&x)[N]) {
  Words<T, N> v;
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int j = 0; j < N; ++j) v.at[j] = __float_as_uint(x[j]);
  } else {
    bool singly = true;
#ifdef __CUDA_ARCH__
    if constexpr (N % 2 == 0) {
      singly = false;
#pragma unroll
      for (int j = 0; j < N; j += 2) {
        v.at[j / 2] = round_pair<T>(x[j], x[j + 1]);
        if constexpr (NANS) singly |= x[j] != x[j] || x[j + 1] != x[j + 1];
      }
    }
#endif
    if (singly)
#pragma unroll
      for (int j = 0; j < Words<T, N>::COUNT; ++j)
        v.at[j] = store_bits<T>(x[2 * j % N]) | (2 * j + 1 < N ? store_bits<T>(x[(2 * j + 1) % N]) << 16 : 0u);
  }
  return v;
}
