// Codes and scales of a weight [N, K] into the order that weight_only_gemm.cu reads (kernels/_weight_only.py), and back.
//
// `weight_only_gemm_pack`: one thread per 16 bytes of packed codes. `weight_only_gemm_scales`: one block per tile of 16
// rows; it also writes the factor of each row, all that multiplies a row of w, or NaN if one of its scales is NaN. The
// first, launched after it, does the same for NaN codes: then whatever x is, that row's results are NaN.
// `weight_only_gemm_unpack`, `weight_only_gemm_unpack_scales`: one thread per byte of codes, per scale.
//
// Macros: ELEMENT, SCALE (rows), HOME and TURNS, ALONG (0: no blocks).
#include "encode.cuh"
#include "weight_only.cuh"

constexpr int THREADS = 256, PER_WORD = 32 / BITS;
template <bool WIDE> struct Kept { using type = StoredCode<Scale>; };
template <> struct Kept<true> { using type = float; };
using Stored = Kept<FLOAT_SCALE>::type;

// Column of code i of word j of lane t, from the start of the unit, and whether its row is g + 8.
__device__ __forceinline__ int column_of(int j, int t, int i) {
  return BITS == 4 ? j / 2 * 32 + t * 8 + i : t * 8 + j % 2 * 4 + i;
}
__device__ __forceinline__ int half_of(int j) { return BITS == 4 ? j % 2 : j / 2; }

extern "C" __global__ void __launch_bounds__(THREADS)
weight_only_gemm_pack(const unsigned char* __restrict__ codes, long long row_stride, long long column_stride,
                      uint4* __restrict__ packed, float* __restrict__ factor, long long n, long long k, long long units,
                      long long pieces) {
  const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (at >= pieces) return;
  const int lane = at % 32, g = lane / 4, t = lane % 4;
  const long long unit = at / 32 % units, tile = at / 32 / units;
  unsigned words[4] = {0, 0, 0, 0};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const long long row = tile * 16 + g + 8 * half_of(j);
    bool nan = false;
#pragma unroll
    for (int i = 0; i < PER_WORD; ++i) {
      const long long column = unit * UNIT + column_of(j, t, i);
      unsigned code = 0;
      if (row < n && column < k) {
        code = codes[row * row_stride + column / (BITS == 4 ? 2 : 1) * column_stride];
        if constexpr (BITS == 4) code = code >> 4 * (column % 2) & 15u;
        if constexpr (Element::NAN_) nan |= (code & Element::MASK >> 1) > (Element::INF ? Element::OVERFLOW_CODE : Element::MAX_CODE);
      }
#pragma unroll
      for (int bit = 0; bit < BITS; ++bit) words[j] |= (code >> bit & 1u) << place_of(i, bit);
    }
    if (nan) factor[row] = __uint_as_float(0x7fc00000u);  // whichever thread is last: they all write this
  }
  packed[at] = make_uint4(words[0], words[1], words[2], words[3]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
weight_only_gemm_unpack(const unsigned* __restrict__ packed, unsigned char* __restrict__ codes, long long k, long long units,
                        long long bytes, long long total) {
  const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (at >= total) return;
  constexpr int PER = BITS == 4 ? 2 : 1;
  const long long row = at / bytes, column = at % bytes * PER;
  const int inside = column % UNIT, t = inside / 8 % 4, half = row % 16 / 8;
  const int j = BITS == 4 ? inside / 32 * 2 + half : half * 2 + inside / 4 % 2;
  const unsigned word = packed[((row / 16 * units + column / UNIT) * 32 + row % 8 * 4 + t) * 4 + j];
  unsigned byte = 0;
#pragma unroll
  for (int i = 0; i < PER_WORD; ++i)  // the code is known at run time, the places are constants
    if (i / PER == column % 8 % PER_WORD / PER)
#pragma unroll
      for (int bit = 0; bit < BITS; ++bit) byte |= (word >> place_of(i, bit) & 1u) << (bit + i % PER * BITS);
  codes[at] = (unsigned char)byte;
}

// Row and first column of entry `at` of the packed scales of a tile: spans, rows g, blocks, sets, rows g and g + 8.
struct Entry {
  int row;
  long long column;
};
__device__ __forceinline__ Entry entry_of(int at) {
  const int half = at % 2, set = at / 2 % SETS, sub = at / 2 / SETS % SUBS, g = at / 2 / SETS / SUBS % 8;
  return {g + 8 * half, (long long)(at / 16 / SETS / SUBS) * SPAN + set * 32 + sub * ALONG};
}

// The factors of a row: one per tensor, one more per tensor or per row; null stands for 1.
extern "C" __global__ void __launch_bounds__(THREADS)
weight_only_gemm_scales(const Stored* __restrict__ scale, long long row_stride, long long column_stride,
                        Stored* __restrict__ packed, float* __restrict__ factor, const float* first, const float* second,
                        long long second_stride, long long n, long long k, int across, int entries) {
  __shared__ int bad[16];
  if (threadIdx.x < 16) bad[threadIdx.x] = 0;
  __syncthreads();
  const long long top = (long long)blockIdx.x * 16;
  if constexpr (ALONG != 0) {
    for (int at = threadIdx.x; at < entries; at += THREADS) {
      const Entry e = entry_of(at);
      Stored found = 0;
      if (top + e.row < n && e.column < k) {
        found = scale[(top + e.row) / across * row_stride + e.column / ALONG * column_stride];
        float value;
        if constexpr (FLOAT_SCALE) value = found;
        else value = decode<Scale>(found);
        if (value != value) bad[e.row] = 1;  // whichever thread is last: they all write this
      }
      packed[blockIdx.x * (long long)entries + at] = found;
    }
  }
  __syncthreads();
  if (threadIdx.x < 16) {
    const bool there = top + threadIdx.x < n;
    float f = first == nullptr || !there ? 1.0f : *first;
    if (second != nullptr && there) f = __fmul_rn(f, second[(top + threadIdx.x) * second_stride]);
    factor[top + threadIdx.x] = bad[threadIdx.x] ? __uint_as_float(0x7fc00000u) : f;
  }
}

#if ALONG
extern "C" __global__ void __launch_bounds__(THREADS)
weight_only_gemm_unpack_scales(const Stored* __restrict__ packed, Stored* __restrict__ scale, long long columns, int across,
                               int entries, long long total) {
  const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (at >= total) return;
  const long long row = at / columns * across, column = at % columns * ALONG;
  const int inside = column % SPAN, set = SETS == 1 ? 0 : inside / 32, sub = SUBS == 1 ? 0 : inside % 32 / ALONG;
  const long long entry = (((column / SPAN * 8 + row % 8) * SUBS + sub) * SETS + set) * 2 + row % 16 / 8;
  scale[at] = packed[row / 16 * entries + entry];
}
#endif
