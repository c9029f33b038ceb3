// cast: every conversion between element types, and (with equal types) the strided copy.
//
// One rounding, to nearest even or toward zero, from any source; see `convert` for the rules. Codes are one per byte.
// Parallelisation: `cast_flat` takes PER neighbours per thread: 16 bytes of what it writes, or 32 of a wider source;
// `cast_strided` one element.
// Bytes moved: one read and one write per element.
//
// Macros: T_IN, T_OUT; SOURCE / TARGET (element rows) where one side holds narrow codes, with SATURATE and TOWARD_ZERO; RANK
// for `cast_strided`.
#include "convert.cuh"
#include "encode.cuh"
#include "strided.cuh"
#include "vec.cuh"

template <class T> constexpr bool is_float = false;
template <> constexpr bool is_float<float> = true;
template <> constexpr bool is_float<double> = true;
template <> constexpr bool is_float<__half> = true;
template <> constexpr bool is_float<__nv_bfloat16> = true;
template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;

// The value as a float32 that still rounds right: exact, or rounded to odd.
template <class T>
__device__ __forceinline__ float sticky(T x) {
  if constexpr (is_float<T> || sizeof(T) < 4) return load_float(x);
  else if constexpr ((T)-1 < (T)0) return to_odd((long long)x);
  else return to_odd((unsigned long long)x);
}

template <class TO, class TI>
__device__ __forceinline__ TO dense(TI x) {
  if constexpr (same<TO, TI>) return x;
  else if constexpr (same<TO, bool>) {
    if constexpr (is_float<TI> && sizeof(TI) == 2) return load_float(x) != 0.0f;
    else return x != (TI)0;
  } else if constexpr (is_float<TO>) {
    if constexpr (sizeof(TO) == 8) {
      if constexpr (is_float<TI>) return (double)load_float(x);  // TI is not double here
      else return (double)x;
    } else if constexpr (same<TO, float>) {
      if constexpr (same<TI, double>) return (float)x;  // not through to_odd: float32 itself is the target
      else return load_float(x);
    } else return store<TO>(sticky(x));
  } else {
    if constexpr (same<TI, double>) return to_integer<TO>(x);
    else if constexpr (is_float<TI>) return to_integer<TO>(load_float(x));
    else return (TO)x;
  }
}

#if defined(TARGET)
__device__ __forceinline__ T_OUT code_of(float x) {
#if defined(TOWARD_ZERO)
  return (T_OUT)encode_toward_zero<Format<TARGET>, SATURATE>(x);
#else
  return (T_OUT)encode<Format<TARGET>, SATURATE>(x);
#endif
}
#endif

__device__ __forceinline__ T_OUT convert(T_IN x) {
#if defined(SOURCE) && defined(TARGET)
  return code_of(decode<Format<SOURCE>>(x));
#elif defined(SOURCE)
  return dense<T_OUT>(decode<Format<SOURCE>>(x));
#elif defined(TARGET)
  return code_of(sticky(x));
#else
  return dense<T_OUT>(x);
#endif
}

constexpr int THREADS = 256;

#ifndef RANK
constexpr int WIDEST = sizeof(T_IN) > sizeof(T_OUT) ? sizeof(T_IN) : sizeof(T_OUT);
constexpr int NARROWEST = sizeof(T_IN) + sizeof(T_OUT) - WIDEST;
// = cast.py's. Two stores of 16 bytes a thread, 32 bytes apart from the next thread's, would cost a third of the rate.
constexpr int TWICE = 16 / NARROWEST < 32 / WIDEST ? 16 / NARROWEST : 32 / WIDEST;
constexpr int PER = sizeof(T_OUT) > sizeof(T_IN) ? 16 / WIDEST : TWICE;

__device__ __forceinline__ Vec<T_OUT, PER> converted(const Vec<T_IN, PER>& v) {
  Vec<T_OUT, PER> w;
#if defined(TARGET) && !defined(SOURCE) && !defined(TOWARD_ZERO)
#pragma unroll
  for (int j = 0; j < PER; j += 2) {  // in one instruction, where there is one
    const unsigned both = encode2<Format<TARGET>, SATURATE>(sticky(v.at[j]), sticky(v.at[j + 1]));
    w.at[j] = (T_OUT)(both & 255u), w.at[j + 1] = (T_OUT)(both >> 8);
  }
#else
#pragma unroll
  for (int j = 0; j < PER; ++j) w.at[j] = convert(v.at[j]);
#endif
  return w;
}

// Contiguous arrays whose addresses are multiples of 16.
extern "C" __global__ void __launch_bounds__(THREADS)
cast_flat(const T_IN* __restrict__ x, T_OUT* __restrict__ y, long long n) {
  const long long vectors = n / PER, stride = (long long)gridDim.x * THREADS;
  for (long long i = (long long)blockIdx.x * THREADS + threadIdx.x; i < vectors; i += stride)
    store_vec<T_OUT, PER>(y + i * PER, converted(load_vec<T_IN, PER>(x + i * PER)));
  if (blockIdx.x == 0 && threadIdx.x < n % PER) {
    long long j = vectors * PER + threadIdx.x;
    y[j] = convert(x[j]);
  }
}

#else
// Any strides on both sides (first: x, second: y).
extern "C" __global__ void __launch_bounds__(THREADS)
cast_strided(const T_IN* __restrict__ x, T_OUT* __restrict__ y, const Strided<RANK> at, long long n) {
  for (long long i = (long long)blockIdx.x * THREADS + threadIdx.x; i < n; i += (long long)gridDim.x * THREADS) {
    long long from, to;
    at.offsets(i, from, to);
    y[to] = convert(x[from]);
  }
}
#endif
