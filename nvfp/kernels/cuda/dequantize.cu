// dequantize: values = fl(fl(code * scale) * tensor scale), each product one float32 operation, then one cast.
//
// `dequantize_rows`: matrices with contiguous rows whose blocks are whole pieces. A thread makes 16 bytes of
// output per step; a warp covers neighbouring pieces of a row, so every store is one full line.
// `dequantize_columns`: the same matrices into a transposed output, by tiles of 64 rows and 128 bytes of codes. A thread
// reads 8 bytes of 4 rows, turns them into words of 4 rows each and leaves those in shared memory; then threads decode
// 16 bytes of a line of output each.
// `dequantize_strided`: everything else, one thread per value, in stored order.
// Bytes moved per value: 1 or 1/2 in, one scale per block, sizeof(T_OUT) out.
//
// Macros: T_OUT, ELEMENT, SCALE (rows), FLOAT_SCALE (whether scales are float32), PACK (0: one code per byte, 1: two
// along the columns, 2: along the rows), BLOCK_ROWS and BLOCK_COLUMNS (both 0: one scale per tensor).
#include "decode.cuh"

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

template <class T, int N>
__device__ __forceinline__ void write(T* p, const float (&x)[N]) {
  if constexpr (PACKS_AS<T, float> || PACKS_AS<T, __half> || PACKS_AS<T, __nv_bfloat16>) {
    keep_words(p, pack<T, N>(x));
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) p[j] = store<T>(x[j]);
  }
}

// The values of N codes that lie side by side in memory.
template <int N>
__device__ __forceinline__ void decode_piece(const Vec<unsigned char, PACK ? N / 2 : N>& v, float (&x)[N]) {
  if constexpr (PACK == 0 && N % 4 == 0) {
#pragma unroll
    for (int k = 0; k < N; k += 4) {
      float part[4];
      decode4<Element>(reinterpret_cast<const unsigned*>(&v)[k / 4], part);
#pragma unroll
      for (int j = 0; j < 4; ++j) x[k + j] = part[j];
    }
  } else if constexpr (PACK == 1 && N == 8) {
    decode8<Element>(*reinterpret_cast<const unsigned*>(&v), x);
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = decode<Element>(PACK ? v.at[j / 2] >> 4 * (j % 2) & 15u : v.at[j]);
  }
}

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
  float scales[STEPS];
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    const long long r = r0 + k * (THREADS / 32);
    if (whole && r < rows) v[k] = load_vec<unsigned char, BYTES>(codes + r * pitch + c / (PACK + 1));
  }
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    const long long r = r0 + k * (THREADS / 32);
    if (r < rows) scales[k] = scale_of(scale, scale_at(r, c, scale_row, scale_column));
  }
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    const long long r = r0 + k * (THREADS / 32);
    if (r >= rows) return;
    const float s = scales[k];
    if (whole) {
      float x[PER];
      decode_piece(v[k], x);
#pragma unroll
      for (int i = 0; i < PER; ++i) x[i] = __fmul_rn(__fmul_rn(x[i], s), tensor);
      write(y + r * stride + c, x);
    } else {
#pragma unroll 1
      for (long long i = c; i < columns; ++i) {
        const unsigned byte = codes[r * pitch + i / (PACK + 1)];
        y[r * stride + i] = value_of(PACK ? byte >> 4 * (i % 2) & 15u : byte, s, tensor);
      }
    }
  }
}

// Tiles of `dequantize_columns`; every thread has one piece of 8 bytes in 4 rows.
constexpr int TILE_ROWS = 64, TILE_COLUMNS = 128 * (PACK + 1), PIECES = 16, CODES = 8 * (PACK + 1);
constexpr int SPAN = BLOCK_COLUMNS && BLOCK_COLUMNS < TILE_COLUMNS ? BLOCK_COLUMNS : TILE_COLUMNS;
constexpr int BLOCKS = TILE_COLUMNS / SPAN;  // scales of a row of a tile

// Word g of a column holds rows 4g to 4g + 3. Pairs of words change places with the column's piece, which spreads the
// writes of a warp over the banks.
__device__ __forceinline__ int place(int column, int g) {
  return column * (TILE_ROWS / 4) + ((g / 2 ^ column / CODES % 8) * 2 + g % 2);
}

// Byte j of four words, for j = 0 to 3, as word j.
__device__ __forceinline__ void turn4(unsigned (&w)[4]) {
  const unsigned a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140);
  const unsigned c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(a, b, 0x5410), w[1] = __byte_perm(a, b, 0x7632);
  w[2] = __byte_perm(c, d, 0x5410), w[3] = __byte_perm(c, d, 0x7632);
}

// As dequantize_rows, but value (r, c) goes to y[c * stride + r]. Rows of a tile go first: neighbouring blocks fill the
// same lines of the output.
extern "C" __global__ void __launch_bounds__(THREADS)
dequantize_columns(const unsigned char* __restrict__ codes, T_OUT* __restrict__ y, long long rows, long long columns,
                   long long pitch, long long stride, const void* __restrict__ scale, long long scale_row,
                   long long scale_column, const float* tensor_scale) {
  __shared__ unsigned words[TILE_COLUMNS * TILE_ROWS / 4];
  __shared__ float scales[BLOCKS][TILE_ROWS];
  const float tensor = tensor_scale == nullptr ? 1.0f : *tensor_scale;
  const unsigned down = (unsigned)((rows + TILE_ROWS - 1) / TILE_ROWS);
  const long long r0 = (long long)(blockIdx.x % down) * TILE_ROWS, c0 = (long long)(blockIdx.x / down) * TILE_COLUMNS;
  const int piece = threadIdx.x % PIECES, group = threadIdx.x / PIECES;
  const long long at = c0 / (PACK + 1) + piece * 8, nbytes = (columns + PACK) / (PACK + 1);
  uint2 v[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const long long r = r0 + group * 4 + k;
    v[k] = make_uint2(0, 0);
    if (r < rows && at + 8 <= nbytes) {
      v[k] = __ldg(reinterpret_cast<const uint2*>(codes + r * pitch + at));
    } else if (r < rows) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const unsigned byte = at + i < nbytes ? codes[r * pitch + at + i] : 0u;
        if (i < 4) v[k].x |= byte << 8 * i;
        else v[k].y |= byte << 8 * (i - 4);
      }
    }
  }
  for (int i = threadIdx.x; i < BLOCKS * TILE_ROWS; i += THREADS) {
    const int r = i / BLOCKS, b = i % BLOCKS;
    const bool there = r0 + r < rows && c0 + b * SPAN < columns;
    scales[b][r] = there ? scale_of(scale, scale_at(r0 + r, c0 + b * SPAN, scale_row, scale_column)) : 0.0f;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    unsigned w[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) w[k] = half ? v[k].y : v[k].x;
    if constexpr (PACK) {
      unsigned high[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) high[k] = w[k] >> 4 & 0x0f0f0f0fu, w[k] &= 0x0f0f0f0fu;
      turn4(high);
#pragma unroll
      for (int j = 0; j < 4; ++j) words[place(piece * CODES + half * 8 + 2 * j + 1, group)] = high[j];
    }
    turn4(w);
#pragma unroll
    for (int j = 0; j < 4; ++j) words[place(piece * CODES + (half * 4 + j) * (PACK + 1), group)] = w[j];
  }
  __syncthreads();
  constexpr int LINE = TILE_ROWS / PER;  // threads of a line of output
  const int first = threadIdx.x % LINE * PER;
  const long long r = r0 + first;
#pragma unroll 4
  for (int column = threadIdx.x / LINE; column < TILE_COLUMNS; column += THREADS / LINE) {
    const long long c = c0 + column;
    if (c >= columns || r >= rows) continue;
    float x[PER];
#pragma unroll
    for (int k = 0; k < PER; k += 4) {
      if constexpr (PER % 4 == 0) {
        float part[4];
        decode4<Element>(words[place(column, (first + k) / 4)], part);
#pragma unroll
        for (int j = 0; j < 4; ++j) x[k + j] = part[j];
      }
    }
#pragma unroll
    for (int j = 0; j < PER; ++j) x[j] = __fmul_rn(__fmul_rn(x[j], scales[column / SPAN][first + j]), tensor);
    T_OUT* line = y + c * stride + r;
    if (r + PER <= rows) {
      write(line, x);
    } else {
#pragma unroll
      for (int j = 0; j < PER; ++j)
        if (r + j < rows) line[j] = store<T_OUT>(x[j]);
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
