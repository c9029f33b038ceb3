// random: Philox bits, uniforms, normals and integers; the formulas stand in `kernels/random.py`.
//
// A thread draws one group of four words: four elements, or two integers of 64-bit words. All but the normals'
// log, sin and cos are the CPU's operations (no contraction), so the same bits.
// Bytes moved: sizeof(T_OUT) per element, written once.
//
// Macros: T_OUT; KIND; T_ACC (float or double; unsigned long long for integers, unsigned for bits); WIDE (1: integers
// from 64-bit words); STEP_WORD (1: the step is read from device memory).
#include "convert.cuh"
#include "philox.cuh"
#include "vec.cuh"

#define BITS 0
#define UNIFORM 1
#define NORMAL 2
#define INTEGERS 3

constexpr int THREADS = 256;
constexpr int ELEMENTS = WIDE ? 2 : 4;  // of a group
template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;

template <class A>
__device__ __forceinline__ A round_to(T_ACC x) {
  if constexpr (same<A, __half> || same<A, __nv_bfloat16>) return store<A>((float)x);
  else return (A)x;
}

#if KIND == BITS
__device__ __forceinline__ void draw(const uint4& w, T_OUT* y, T_ACC, T_ACC, T_ACC) {
  y[0] = w.x, y[1] = w.y, y[2] = w.z, y[3] = w.w;
}
#elif KIND == UNIFORM
__device__ __forceinline__ T_ACC unit(unsigned w) {
  if constexpr (same<T_ACC, double>) return ((double)w + 0.5) * 0x1p-32;
  else return (float)(w >> 8) * 0x1p-24f;
}
__device__ __forceinline__ T_OUT one(unsigned w, T_ACC low, T_ACC factor, T_ACC most) {
  const T_ACC value = low + unit(w) * factor;
  return round_to<T_OUT>(value < most ? value : most);
}
__device__ __forceinline__ void draw(const uint4& w, T_OUT* y, T_ACC low, T_ACC factor, T_ACC most) {
  y[0] = one(w.x, low, factor, most), y[1] = one(w.y, low, factor, most);
  y[2] = one(w.z, low, factor, most), y[3] = one(w.w, low, factor, most);
}
#elif KIND == NORMAL
// Radius, cosine and sine of one pair of words.
__device__ __forceinline__ void polar(unsigned w0, unsigned w1, float& r, float& c, float& s) {
  r = sqrtf(-2.0f * logf((float)w0 * 0x1p-32f + 0x1p-33f));
  sincospif((float)((int)w1 >> 8) * 0x1p-23f, &s, &c);
}
__device__ __forceinline__ void polar(unsigned w0, unsigned w1, double& r, double& c, double& s) {
  r = sqrt(-2.0 * log(((double)w0 + 0.5) * 0x1p-32));
  sincospi((double)(int)w1 * 0x1p-31, &s, &c);
}
__device__ __forceinline__ void pair(unsigned w0, unsigned w1, T_OUT* y, T_ACC mean, T_ACC deviation) {
  T_ACC r, c, s;
  polar(w0, w1, r, c, s);
  y[0] = round_to<T_OUT>(mean + (r * c) * deviation);
  y[1] = round_to<T_OUT>(mean + (r * s) * deviation);
}
__device__ __forceinline__ void draw(const uint4& w, T_OUT* y, T_ACC mean, T_ACC deviation, T_ACC) {
  pair(w.x, w.y, y, mean, deviation);
  pair(w.z, w.w, y + 2, mean, deviation);
}
#elif WIDE
// The high half of word * span; a span of 2**64 (held as 0) keeps the word.
__device__ __forceinline__ T_OUT one(unsigned low_half, unsigned high_half, T_ACC low, T_ACC span) {
  const unsigned long long word = (unsigned long long)high_half << 32 | low_half;
  return (T_OUT)(low + (span == 0 ? word : __umul64hi(word, span)));
}
__device__ __forceinline__ void draw(const uint4& w, T_OUT* y, T_ACC low, T_ACC span, T_ACC) {
  y[0] = one(w.x, w.y, low, span), y[1] = one(w.z, w.w, low, span);
}
#else
__device__ __forceinline__ T_OUT one(unsigned w, T_ACC low, T_ACC span) { return (T_OUT)(low + (w * span >> 32)); }
__device__ __forceinline__ void draw(const uint4& w, T_OUT* y, T_ACC low, T_ACC span, T_ACC) {
  y[0] = one(w.x, low, span), y[1] = one(w.y, low, span), y[2] = one(w.z, low, span), y[3] = one(w.w, low, span);
}
#endif

#if STEP_WORD
typedef const unsigned* STEP;
__device__ __forceinline__ unsigned value_of(STEP step) { return *step; }
#else
typedef unsigned STEP;
__device__ __forceinline__ unsigned value_of(STEP step) { return step; }
#endif

// y is freshly allocated (its address a multiple of 16).
extern "C" __global__ void __launch_bounds__(THREADS)
random_fill(T_OUT* __restrict__ y, long long n, unsigned long long key, unsigned stream, STEP step, T_ACC low,
            T_ACC high, T_ACC limit) {
  const long long groups = (n + ELEMENTS - 1) / ELEMENTS, stride = (long long)gridDim.x * THREADS;
  const unsigned at_step = value_of(step);
  for (long long g = (long long)blockIdx.x * THREADS + threadIdx.x; g < groups; g += stride) {
    Vec<T_OUT, ELEMENTS> v;
    draw(philox_group(g, stream, at_step, key), v.at, low, high, limit);
    if ((g + 1) * ELEMENTS <= n) {
      *reinterpret_cast<Vec<T_OUT, ELEMENTS>*>(y + g * ELEMENTS) = v;
    } else {
#pragma unroll
      for (int j = 0; j < ELEMENTS; ++j)
        if (g * ELEMENTS + j < n) y[g * ELEMENTS + j] = v.at[j];
    }
  }
}
