// dequantize: values = fl(fl(code * scale) * tensor scale), each product one float32 operation, then one cast.
//
// `dequantize_rows`: matrices with contiguous rows whose blocks are whole pieces. A thread makes 16 bytes of
// output per step; a warp covers neighbouring pieces of a row, so every store is one full line.
// `dequantize_strided`: everything else, one thread per value, in stored order.
// Bytes moved per value: 1 or 1/2 in, one scale per block, sizeof(T_OUT) out.
//
// Macros: T_OUT, ELEMENT, SCALE (rows), FLOAT_SCALE (whether scales are float32), PACK (0: one code per byte, 1: two
// along the columns, 2: along the rows), BLOCK_ROWS and BLOCK_COLUMNS (both 0: one scale per tensor).
#include "convert.cuh"
#include "encode.cuh"
#include "vec.cuh"

using Element = Format<ELEMENT>;
using Scale = Format<SCALE>;
constexpr int THREADS = 256;

// A null scale or tensor scale stands for 1.
__device__ __forceinline__ float scale_of(const void* scale, long long at) {
  if (scale == nullptr) return 1.0f;
  if constexpr (FLOAT_SCALE) return static_cast<const float*>(scale)[at];
  else return decode<Scale>(static_cast<const StoredCode<Scale>*>(scale)[at]);
}

// Offset of the scale of value (r, c), from its strides along the two blocked axes.
__device__ __forceinline__ long long scale_at(long long r, long long c, long long row_step, long long column_step) {
#if BLOCK_ROWS
  return r / BLOCK_ROWS * row_step + c / BLOCK_COLUMNS * column_step;
#else
  return 0;
#endif
}

// A product with 1 keeps every bit, so missing factors need no branch.
__device__ __forceinline__ T_OUT value_of(unsigned code, float scale, float tensor_scale) {
  return store<T_OUT>(__fmul_rn(__fmul_rn(decode<Element>(code), scale), tensor_scale));
}

#if PACK < 2
constexpr int PER = 16 / sizeof(T_OUT);                // values per piece
constexpr int BYTES = PACK ? PER / 2 : PER;            // of their codes
constexpr int COLUMNS = 32 * PER, STEPS = 4, ROWS = THREADS / 32 * STEPS;

extern "C" __global__ void __launch_bounds__(THREADS)
dequantize_rows(const unsigned char* __restrict__ codes, T_OUT* __restrict__ y, long long rows, long long columns,
                long long pitch, long long stride, const void* __restrict__ scale, long long scale_row,
                long long scale_column, const float* tensor_scale) {
  const float tensor = tensor_scale == nullptr ? 1.0f : *tensor_scale;
  const unsigned across = (unsigned)((columns + COLUMNS - 1) / COLUMNS);  // the launcher keeps tiles below 2^31
  const long long r0 = (long long)(blockIdx.x / across) * ROWS + threadIdx.x / 32;
  const long long c = (long long)(blockIdx.x % across) * COLUMNS + threadIdx.x % 32 * PER;
  if (c >= columns) return;
  const bool whole = c + PER <= columns;
  Vec<unsigned char, BYTES> v[STEPS];
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    const long long r = r0 + k * (THREADS / 32);
    if (whole && r < rows) v[k] = load_vec<unsigned char, BYTES>(codes + r * pitch + c / (PACK + 1));
  }
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    const long long r = r0 + k * (THREADS / 32);
    if (r >= rows) return;
    const float s = scale_of(scale, scale_at(r, c, scale_row, scale_column));
    if (whole) {
      Vec<T_OUT, PER> w;
#pragma unroll
      for (int i = 0; i < PER; ++i) w.at[i] = value_of(PACK ? v[k].at[i / 2] >> 4 * (i % 2) & 15u : v[k].at[i], s, tensor);
      store_vec<T_OUT, PER>(y + r * stride + c, w);
    } else {
#pragma unroll 1
      for (long long i = c; i < columns; ++i) {
        const unsigned byte = codes[r * pitch + i / (PACK + 1)];
        y[r * stride + i] = value_of(PACK ? byte >> 4 * (i % 2) & 15u : byte, s, tensor);
      }
    }
  }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
dequantize_strided(const unsigned char* __restrict__ codes, T_OUT* __restrict__ y, long long batch, long long rows,
                   long long columns, long long code_batch, long long code_row, long long code_column,
                   long long y_batch, long long y_row, long long y_column, const void* __restrict__ scale,
                   long long scale_batch, long long scale_row, long long scale_column, const float* tensor_scale) {
  const float tensor = tensor_scale == nullptr ? 1.0f : *tensor_scale;
  const long long n = batch * rows * columns;
  for (long long i = (long long)blockIdx.x * THREADS + threadIdx.x; i < n; i += (long long)gridDim.x * THREADS) {
    const long long c = i % columns, r = i / columns % rows, b = i / columns / rows;
    const long long at = b * code_batch + (PACK == 2 ? r / 2 : r) * code_row + (PACK == 1 ? c / 2 : c) * code_column;
    const long long half = PACK == 0 ? 0 : PACK == 1 ? c % 2 : r % 2;
    const unsigned code = PACK ? codes[at] >> 4 * half & 15u : codes[at];
    const float s = scale_of(scale, b * scale_batch + scale_at(r, c, scale_row, scale_column));
    y[b * y_batch + r * y_row + c * y_column] = value_of(code, s, tensor);
  }
}
