// Short vectors that move in one load or store of up to 16 bytes per instruction.
#pragma once

template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec {
  T at[N];
};

// N elements from an address that is a multiple of min(16, N * sizeof(T)) bytes, through the read-only path.
template <class T, int N>
__device__ __forceinline__ Vec<T, N> load_vec(const T* p) {
  constexpr int BYTES = sizeof(T) * N;
  Vec<T, N> v;
  if constexpr (BYTES >= 16) {
    static_assert(BYTES % 16 == 0, "whole 16-byte pieces");
#pragma unroll
    for (int i = 0; i < BYTES / 16; ++i) reinterpret_cast<uint4*>(&v)[i] = __ldg(reinterpret_cast<const uint4*>(p) + i);
  } else if constexpr (BYTES == 8) {
    reinterpret_cast<uint2*>(&v)[0] = __ldg(reinterpret_cast<const uint2*>(p));
  } else if constexpr (BYTES == 4) {
    reinterpret_cast<unsigned*>(&v)[0] = __ldg(reinterpret_cast<const unsigned*>(p));
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) v.at[i] = p[i];
  }
  return v;
}

// EVICT_FIRST: what is stored makes way in L2 for what the kernel reads a second time.
#ifdef EVICT_FIRST
#define STORE "st.global.cs"
#else
#define STORE "st.global"
#endif

// One store instruction each: the compiler may split the plain store of a struct.
__device__ __forceinline__ void store_words(void* p, uint4 v) {
#ifdef __CUDA_ARCH__
  asm volatile(STORE ".v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#else
  *static_cast<uint4*>(p) = v;
#endif
}
__device__ __forceinline__ void store_words(void* p, uint2 v) {
#ifdef __CUDA_ARCH__
  asm volatile(STORE ".v2.u32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(p)), "r"(v.x), "r"(v.y) : "memory");
#else
  *static_cast<uint2*>(p) = v;
#endif
}

template <class T, int N>
__device__ __forceinline__ void store_vec(T* p, const Vec<T, N>& v) {
  constexpr int BYTES = sizeof(T) * N;
  if constexpr (BYTES >= 16) {
    static_assert(BYTES % 16 == 0, "whole 16-byte pieces");
#pragma unroll
    for (int i = 0; i < BYTES / 16; ++i) store_words(reinterpret_cast<uint4*>(p) + i, reinterpret_cast<const uint4*>(&v)[i]);
  } else if constexpr (BYTES == 8) {
    store_words(p, reinterpret_cast<const uint2*>(&v)[0]);
  } else if constexpr (BYTES == 4) {
    *reinterpret_cast<unsigned*>(p) = *reinterpret_cast<const unsigned*>(&v);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) p[i] = v.at[i];
  }
}
