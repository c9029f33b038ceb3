// random: Philox bits, uniforms, normals and integers; the formulas stand in `kernels/random.py`.
//
// A thread draws groups of four words (four elements, or two integers of 64-bit words) for 16 bytes, or 32 that it trades
// with its neighbour, so that every store fills whole sectors. All but the normals' log, root, sin and cos are the CPU's
// operations (no contraction), so the same bits. The normals are what costs: they take the hardware's log2, root, sin and
// cos, whose errors are absolute ones of about 2^-21 (polynomials of float32's own precision took .232 ms in place of .162
// for 16384 x 8192 on an H200).
// Bytes moved: sizeof(T_OUT) per element, written once.
//
// Macros: T_OUT; KIND; T_ACC (float or double; unsigned long long for integers, unsigned for bits); WIDE (1: integers
// from 64-bit words); STEP_WORD (1: the step is read from device memory).
#include "convert.cuh"
#include "pack.cuh"
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
template <class Y>
__device__ __forceinline__ void draw(const uint4& w, Y* y, T_ACC, T_ACC, T_ACC) {
  y[0] = w.x, y[1] = w.y, y[2] = w.z, y[3] = w.w;
}
#elif KIND == UNIFORM
__device__ __forceinline__ T_ACC unit(unsigned w) {
  if constexpr (same<T_ACC, double>) return ((double)w + 0.5) * 0x1p-32;
  else return (float)(w >> 8) * 0x1p-24f;
}
template <class Y>
__device__ __forceinline__ Y one(unsigned w, T_ACC low, T_ACC factor, T_ACC most) {
  if constexpr (!same<Y, __half> && !same<Y, __nv_bfloat16>)
    if (sizeof(T_OUT) >= 4 && low == 0 && factor == 1) return (Y)unit(w);  // the same bits: below `most`
  const T_ACC value = low + unit(w) * factor;
  return round_to<Y>(value < most ? value : most);
}
template <class Y>
__device__ __forceinline__ void draw(const uint4& w, Y* y, T_ACC low, T_ACC factor, T_ACC most) {
  y[0] = one<Y>(w.x, low, factor, most), y[1] = one<Y>(w.y, low, factor, most);
  y[2] = one<Y>(w.z, low, factor, most), y[3] = one<Y>(w.w, low, factor, most);
}
#elif KIND == NORMAL
// The hardware's functions: absolute errors of about 2^-22 (log2 between 0.5 and 2), 2^-21 (sin, cos), 1 ulp (root).
__device__ __forceinline__ float quick_log2(float x) {
#ifdef __CUDA_ARCH__
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(x));
  return x;
#else
  return std::log2(x);
#endif
}
__device__ __forceinline__ float quick_root(float x) {
#ifdef __CUDA_ARCH__
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(x));
  return x;
#else
  return std::sqrt(x);
#endif
}
__device__ __forceinline__ void quick_turn(float x, float& c, float& s) {
  x *= 0x1.921fb6p+1f;
#ifdef __CUDA_ARCH__
  asm("cos.approx.ftz.f32 %0, %1;" : "=f"(c) : "f"(x));
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(x));
#else
  c = std::cos(x), s = std::sin(x);
#endif
}

// -log(u) for 2^-33 <= u <= 1.
__device__ __forceinline__ float quick_minus_log(float u) {
  const float v = 1.0f - u;  // near 1 the error of log2 would be the whole result
  const float series = fmaf(v * v, fmaf(v, fmaf(v, 0.25f, 0x1.555556p-2f), 0.5f), v);
  return v < 0x1p-5f ? series : quick_log2(u) * -0x1.62e43p-1f;
}
// Radius, cosine and sine of one pair of words.
__device__ __forceinline__ void polar(unsigned w0, unsigned w1, float& r, float& c, float& s) {
  const float u = (float)w0 * 0x1p-32f + 0x1p-33f, x = (float)((int)w1 >> 8) * 0x1p-23f;
  r = quick_root(2.0f * quick_minus_log(u));
  quick_turn(x, c, s);
}
__device__ __forceinline__ void polar(unsigned w0, unsigned w1, double& r, double& c, double& s) {
  r = sqrt(-2.0 * log(((double)w0 + 0.5) * 0x1p-32));
  sincospi((double)(int)w1 * 0x1p-31, &s, &c);
}
template <class Y>
__device__ __forceinline__ void pair(unsigned w0, unsigned w1, Y* y, T_ACC mean, T_ACC deviation) {
  T_ACC r, c, s;
  polar(w0, w1, r, c, s);
  y[0] = round_to<Y>(mean + (r * c) * deviation);
  y[1] = round_to<Y>(mean + (r * s) * deviation);
}
template <class Y>
__device__ __forceinline__ void draw(const uint4& w, Y* y, T_ACC mean, T_ACC deviation, T_ACC) {
  pair(w.x, w.y, y, mean, deviation);
  pair(w.z, w.w, y + 2, mean, deviation);
}
#elif WIDE
// The high half of word * span; a span of 2**64 (held as 0) keeps the word.
__device__ __forceinline__ T_OUT one(unsigned low_half, unsigned high_half, T_ACC low, T_ACC span) {
  const unsigned long long word = (unsigned long long)high_half << 32 | low_half;
  return (T_OUT)(low + (span == 0 ? word : __umul64hi(word, span)));
}
template <class Y>
__device__ __forceinline__ void draw(const uint4& w, Y* y, T_ACC low, T_ACC span, T_ACC) {
  y[0] = one(w.x, w.y, low, span), y[1] = one(w.z, w.w, low, span);
}
#else
__device__ __forceinline__ T_OUT one(unsigned w, T_ACC low, T_ACC span) { return (T_OUT)(low + (w * span >> 32)); }
template <class Y>
__device__ __forceinline__ void draw(const uint4& w, Y* y, T_ACC low, T_ACC span, T_ACC) {
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

constexpr int PIECE = ELEMENTS * sizeof(T_OUT) >= 16 ? ELEMENTS : 16 / sizeof(T_OUT);  // elements of a thread's turn
constexpr bool HALVES = same<T_OUT, __half> || same<T_OUT, __nv_bfloat16>;  // rounded in pairs
template <bool, class A, class> struct Either { typedef A type; };
template <class A, class B> struct Either<false, A, B> { typedef B type; };
typedef Either<HALVES, float, T_OUT>::type DRAWN;
constexpr bool TRADE = PIECE * sizeof(T_OUT) == 32;

// 32 bytes of every lane: stores of 16 bytes that lie 32 apart would write half sectors, at less than half the rate.
template <class Y>
__device__ __forceinline__ void put(T_OUT* at, const Vec<Y, PIECE>& v, int lane) {
  if constexpr (HALVES) {
    keep_words(at, pack<T_OUT, PIECE, false>(v.at));
  } else if constexpr (TRADE) {
    const uint4 low = reinterpret_cast<const uint4*>(&v)[0], high = reinterpret_cast<const uint4*>(&v)[1];
    const bool odd = lane % 2;
    uint4 other = odd ? low : high;
    other.x = __shfl_xor_sync(0xffffffffu, other.x, 1), other.y = __shfl_xor_sync(0xffffffffu, other.y, 1);
    other.z = __shfl_xor_sync(0xffffffffu, other.z, 1), other.w = __shfl_xor_sync(0xffffffffu, other.w, 1);
    uint4* to = reinterpret_cast<uint4*>(at) - (odd ? 1 : 0);
    store_words(to, odd ? other : low);
    store_words(to + 2, odd ? high : other);
  } else {
    store_vec<Y, PIECE>(at, v);
  }
}

// y is freshly allocated (its address a multiple of 16).
extern "C" __global__ void __launch_bounds__(THREADS)
random_fill(T_OUT* __restrict__ y, long long n, unsigned long long key, unsigned stream, STEP step, T_ACC low,
            T_ACC high, T_ACC limit) {
  const long long stride = (long long)gridDim.x * THREADS, first = (long long)blockIdx.x * THREADS + threadIdx.x;
  const long long pieces = n / PIECE / 32 * 32;  // whole warps, since lanes trade
  const unsigned at_step = value_of(step);
  for (long long i = first; i < pieces; i += stride) {
    Vec<DRAWN, PIECE> v;
#pragma unroll
    for (int j = 0; j < PIECE; j += ELEMENTS)
      draw(philox_group(i * (PIECE / ELEMENTS) + j / ELEMENTS, stream, at_step, key), v.at + j, low, high, limit);
    put(y + i * PIECE, v, threadIdx.x % 32);
  }
  const long long groups = (n + ELEMENTS - 1) / ELEMENTS;
  for (long long g = pieces * (PIECE / ELEMENTS) + first; g < groups; g += stride) {
    T_OUT v[ELEMENTS];
    draw(philox_group(g, stream, at_step, key), v, low, high, limit);
#pragma unroll
    for (int j = 0; j < ELEMENTS; ++j)
      if (g * ELEMENTS + j < n) y[g * ELEMENTS + j] = v[j];
  }
}
