// hadamard: the random Hadamard transform of 16 along one axis, bfloat16 out.
//
// The source is seen as [outer, n, inner] with any strides, n the rotated axis; the result likewise, n rounded up to
// 16. A thread owns one group of 16 of WIDE neighbouring inner columns and keeps the
// words in registers: all loads first, then two columns at a time, then all stores. LINE: the elements of a group are
// neighbours. Then two threads share the loads and stores of two groups, so that a warp moves 512 bytes in a row, and
// exchange halves by shuffles.
// KEEP 0 (not with LINE, bfloat16 only): nothing is written but two maxima, that of the result and that of the source: what quantize asks for before
// it rotates in its own kernel.
// Order of the sums: butterfly stages of strides 1, 2, 4, 8, then x 0.25, one rounding (nvfp/dtypes/rotation.py).
// Bytes moved per element: sizeof(T_IN) in, 2 out.
//
// Macros: T_IN, WIDE, LINE (0 or 1; WIDE is 1 then), INVERSE, KEEP, SIGNS (sixteen comma-separated numbers).
#include "hadamard.cuh"
#include "pack.cuh"
#include "reduce.cuh"

constexpr int THREADS = 256;
// Blocks per multiprocessor that registers must allow: as many as go without local memory.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int AT_ONCE = 2;
#else
constexpr int AT_ONCE = 3;
#endif
constexpr unsigned ALL = 0xffffffffu, INFINITE = 0x7f80u;
using T_OUT = __nv_bfloat16;

// Element j of words as they lie in memory.
template <int N>
__device__ __forceinline__ float element(const Words<T_IN, N>& v, int j) {
  if constexpr (sizeof(T_IN) == 4) {
    return __uint_as_float(v.at[j]);
  } else if constexpr (PACKS_AS<T_IN, __nv_bfloat16>) {
    return __uint_as_float(j % 2 ? v.at[j / 2] & 0xffff0000u : v.at[j / 2] << 16);
  } else {
    return load_float(__ushort_as_half((unsigned short)(v.at[j / 2] >> j % 2 * 16)));
  }
}

// Magnitudes of two bfloat16 numbers, 0 for those that are not finite.
__device__ __forceinline__ unsigned finite2(unsigned word) {
  const unsigned m = word & 0x7fff7fffu, beyond = m + 0x00800080u & 0x80008000u;
  return m & ~(beyond - (beyond >> 15));
}
__device__ __forceinline__ unsigned folded(unsigned m) { return max(m & 0xffffu, m >> 16); }

// The largest finite magnitude of rotated words, as bits of bfloat16; NaN gets the bits of DESIGN 3 on the way. Both are
// looked for again only where something is not finite.
template <int N>
__device__ __forceinline__ unsigned settled(unsigned (&word)[N]) {
  unsigned most = 0, finite = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) most = __vmaxu2(most, word[i] & 0x7fff7fffu);
  most = folded(most);
  if (most < INFINITE) return most;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    finite = __vmaxu2(finite, finite2(word[i]));
    if ((word[i] & 0x7fffu) > INFINITE) word[i] = (word[i] & 0xffff0000u) | 0x7fc0u;
    if ((word[i] >> 16 & 0x7fffu) > INFINITE) word[i] = (word[i] & 0xffffu) | 0x7fc00000u;
  }
  return folded(finite);
}

// Maxima so far, as bits of float32.
struct Most {
  unsigned result = 0, source = 0;
};

// The source's words likewise, which are counted only with KEEP 0.
template <int N, int COUNT>
__device__ __forceinline__ void count_source(Most& most, const Words<T_IN, COUNT> (&words)[N]) {
  if constexpr (!KEEP) {
    static_assert(KEEP || PACKS_AS<T_IN, __nv_bfloat16>, "maxima alone are those of bfloat16");
    unsigned seen = 0, finite = 0;
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
      for (int j = 0; j < Words<T_IN, COUNT>::COUNT; ++j) seen = __vmaxu2(seen, words[i].at[j] & 0x7fff7fffu);
    seen = folded(seen);
    if (seen >= INFINITE) {
#pragma unroll
      for (int i = 0; i < N; ++i)
#pragma unroll
        for (int j = 0; j < Words<T_IN, COUNT>::COUNT; ++j) finite = __vmaxu2(finite, finite2(words[i].at[j]));
      seen = folded(finite);
    }
    most.source = max(most.source, seen << 16);
  }
}

// WIDE columns of a group that has `left` rows.
template <bool Whole>
__device__ __forceinline__ void rotate_columns(const T_IN* from, T_OUT* to, long long left, long long x_n, long long y_n, Most& most) {
  Words<T_IN, WIDE> in[GROUP];
#pragma unroll
  for (int i = 0; i < GROUP; ++i) {
    in[i] = {};
    if (Whole || i < left) in[i] = load_words<T_IN, WIDE>(from + i * x_n);
  }
  count_source(most, in);
  unsigned out[(WIDE + 1) / 2 * GROUP];  // rows of pairs
#pragma unroll
  for (int p = 0; p < WIDE / 2; ++p) {
    float low[GROUP], high[GROUP];
#pragma unroll
    for (int i = 0; i < GROUP; ++i) {
      low[i] = element(in[i], 2 * p), high[i] = element(in[i], 2 * p + 1);
    }
    rotate<INVERSE>(low);
    rotate<INVERSE>(high);
#pragma unroll
    for (int i = 0; i < GROUP; ++i) out[WIDE / 2 * i + p] = rounded2(low[i], high[i]);
  }
  most.result = max(most.result, settled(out) << 16);
  if constexpr (KEEP) {
#pragma unroll
    for (int i = 0; i < GROUP; ++i) {
      Words<T_OUT, WIDE> row;
#pragma unroll
      for (int p = 0; p < WIDE / 2; ++p) row.at[p] = out[WIDE / 2 * i + p];
      keep_words<T_OUT, WIDE>(to + i * y_n, row);
    }
  }
}

// One column, element by element.
__device__ __forceinline__ void rotate_column(const T_IN* from, T_OUT* to, long long left, long long x_n, long long y_n, Most& most) {
  float v[GROUP];
  unsigned out[GROUP / 2];
#pragma unroll
  for (int i = 0; i < GROUP; ++i) {
    v[i] = i < left ? load_float(from[i * x_n]) : 0.0f;
    if constexpr (!KEEP) most.source = max(most.source, counted<true>(v[i]));
  }
  rotate<INVERSE>(v);
#pragma unroll
  for (int i = 0; i < GROUP; i += 2) out[i / 2] = rounded2(v[i], v[i + 1]);
  most.result = max(most.result, settled(out) << 16);
  if constexpr (KEEP) {
#pragma unroll
    for (int i = 0; i < GROUP; ++i) to[i * y_n] = __ushort_as_bfloat16((unsigned short)(out[i / 2] >> i % 2 * 16));
  }
}

// A group and its place in both arrays; none beyond the last one.
struct Place {
  const T_IN* from;
  T_OUT* to;
  long long left;
};
struct Arrays {
  const T_IN* x;
  T_OUT* y;
  long long groups, across, all, n, x_outer, x_n, x_inner, y_outer, y_n, y_inner;

  __device__ __forceinline__ Place place(long long k) const {
    long long o = 0, g = k, c = 0;
    if (across > 1) {
      g = k / across;
      c = (k - g * across) * WIDE;
    }
    if (g >= groups) {  // more than one batch
      o = g / groups;
      g -= o * groups;
    }
    const long long r = g * GROUP;
    return {x + o * x_outer + r * x_n + c * x_inner, y + o * y_outer + r * y_n + c * y_inner, k < all ? n - r : 0};
  }
};

// Half of a group: 8 neighbours, as words of T_IN.
using Half = Words<T_IN, 8>;
__device__ __forceinline__ Half load_half(const Place& p, int which) {
  const long long left = p.left - 8 * which;
  Half v = {};
  if (left >= 8) return load_words<T_IN, 8>(p.from + 8 * which);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i >= left) break;
    if constexpr (sizeof(T_IN) == 4) v.at[i] = reinterpret_cast<const unsigned*>(p.from)[8 * which + i];
    else v.at[i / 2] |= (unsigned)reinterpret_cast<const unsigned short*>(p.from)[8 * which + i] << i % 2 * 16;
  }
  return v;
}

// Between neighbouring lanes: the even one gives `second` for the other's `first`, which it keeps behind its own; the other
// way round it is the same exchange.
template <int N>
__device__ __forceinline__ void exchange(unsigned (&first)[N], unsigned (&second)[N]) {
  const bool odd = threadIdx.x & 1;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const unsigned got = __shfl_xor_sync(ALL, odd ? first[i] : second[i], 1);
    if (odd) first[i] = got;
    else second[i] = got;
  }
}

// Two groups of two lanes, `mine` the lane's one afterwards: the warp's first 16 groups belong to the even lanes.
__device__ __forceinline__ void rotate_lines(const Arrays& a, long long base, Most& most) {
  const int lane = threadIdx.x % 32, which = lane % 2;
  const Place first = a.place(base + lane / 2), second = a.place(base + 16 + lane / 2);
  Half low = load_half(first, which), high = load_half(second, which);
  exchange(low.at, high.at);
  float v[GROUP];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = element(low, i), v[i + 8] = element(high, i);
  }
  rotate<INVERSE>(v);
  unsigned out[GROUP / 2], half[2][4];
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] = rounded2(v[2 * i], v[2 * i + 1]);
  most.result = max(most.result, settled(out) << 16);
  if constexpr (KEEP) {
#pragma unroll
    for (int i = 0; i < 4; ++i) half[0][i] = out[i], half[1][i] = out[4 + i];
    exchange(half[0], half[1]);
    if (first.left > 0) store_words(first.to + 8 * which, make_uint4(half[0][0], half[0][1], half[0][2], half[0][3]));
    if (second.left > 0) store_words(second.to + 8 * which, make_uint4(half[1][0], half[1][1], half[1][2], half[1][3]));
  }
}

// The maximum of the block into both words; each may be null.
__device__ __forceinline__ void record(unsigned m, float* word, float* also) {
  __syncthreads();
  m = block_max<THREADS>(m);
  if (threadIdx.x != 0) return;
  if (word != nullptr) record_max(word, m);
  if (also != nullptr) record_max(also, m);
}

extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE)
hadamard(const T_IN* __restrict__ x, T_OUT* __restrict__ y, long long outer, long long n, long long inner,
         long long x_outer, long long x_n, long long x_inner, long long y_outer, long long y_n, long long y_inner,
         float* amax, float* also, float* source_amax, float* source_also) {
  const long long groups = (n + GROUP - 1) / GROUP, across = inner / WIDE, k = (long long)blockIdx.x * THREADS + threadIdx.x;
  const Arrays a{x, y, groups, across, outer * groups * across, n, x_outer, x_n, x_inner, y_outer, y_n, y_inner};
  Most most;
  if constexpr (LINE) {
    rotate_lines(a, k / 32 * 32, most);
  } else if (k < a.all) {
    const Place p = a.place(k);
    if constexpr (WIDE == 1) rotate_column(p.from, p.to, p.left, x_n, y_n, most);
    else if (p.left >= GROUP) rotate_columns<true>(p.from, p.to, p.left, x_n, y_n, most);
    else rotate_columns<false>(p.from, p.to, p.left, x_n, y_n, most);
  }
  if (amax == nullptr) return;
  record(most.result, amax, also);
  if constexpr (!KEEP) record(most.source, source_amax, source_also);
}
