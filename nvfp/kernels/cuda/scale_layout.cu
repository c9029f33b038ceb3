// scale_layout: 8-bit block scales from a plain matrix to tiles of 128 x 4 (512 bytes) and back; float32 block scales to
// rows along K (`k_major128`; back is a view).
//
// Parallelisation: where rows of the matrix lie at multiples of 16 bytes a thread moves 16 columns of 4 rows that are 32
// apart, which are 16 bytes of 4 tiles; else one thread per byte of the result. Bytes moved: one read and one write
// per byte.
#include "tiles.cuh"
#include "vec.cuh"

constexpr int THREADS = 256;

// Whether 16 bytes can go at a time.
__device__ __forceinline__ bool in_pieces(const void* scale, const void* tiles, long long columns, long long row_stride,
                                          long long column_stride, long long tile_stride) {
  return columns % 16 == 0 && row_stride % 16 == 0 && column_stride == 1 && tile_stride == 1 &&
         ((unsigned long long)scale | (unsigned long long)tiles) % 16 == 0;
}

// f(r, c, at) for the first of the 4 rows, the first of the 16 columns, and the place of their 16 bytes in the first of
// the 4 tiles. A warp takes 8 rows of 64 columns.
template <class F>
__device__ __forceinline__ void each_piece(long long rows, long long columns, F f) {
  const long long across = columns / 4, groups = (columns + 63) / 64, items = (rows + 127) / 128 * groups * 4;
  const int lane = threadIdx.x % 32;
  for (long long i = ((long long)blockIdx.x * THREADS + threadIdx.x) / 32; i < items; i += (long long)gridDim.x * (THREADS / 32)) {
    const long long strip = i / 4 / groups, c = (i / 4 - strip * groups) * 64 + lane / 8 * 16;
    const int r = (int)(i % 4) * 8 + lane % 8;
    if (c < columns) f(strip * 128 + r, c, (strip * across + c / 4) * 512 + r * 16);
  }
}

// Word j of four vectors as vector j.
__device__ __forceinline__ void turn(uint4 (&v)[4]) {
  const uint4 a = v[0], b = v[1], c = v[2], d = v[3];
  v[0] = make_uint4(a.x, b.x, c.x, d.x);
  v[1] = make_uint4(a.y, b.y, c.y, d.y);
  v[2] = make_uint4(a.z, b.z, c.z, d.z);
  v[3] = make_uint4(a.w, b.w, c.w, d.w);
}

// Whole tiles; bytes outside the matrix are 0. `repeat` rows of the layout share one row of the matrix (square
// blocks: a scale for each of their rows).
extern "C" __global__ void __launch_bounds__(THREADS)
scale_to_tiles(const unsigned char* __restrict__ scale, unsigned char* __restrict__ tiles, long long rows,
               long long columns, long long row_stride, long long column_stride, long long repeat, long long tile_stride,
               long long n) {
  if (in_pieces(scale, tiles, columns, row_stride, column_stride, tile_stride)) {
    each_piece(rows, columns, [&](long long r, long long c, long long at) {
      uint4 v[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const long long row = r + 32 * k;
        v[k] = row < rows ? __ldg(reinterpret_cast<const uint4*>(scale + row / repeat * row_stride + c)) : make_uint4(0, 0, 0, 0);
      }
      turn(v);
#pragma unroll
      for (int k = 0; k < 4; ++k) store_words(reinterpret_cast<uint4*>(tiles + at + 512 * k), v[k]);
    });
    return;
  }
  const long long across = (columns + 3) / 4;
  for (long long i = (long long)blockIdx.x * THREADS + threadIdx.x; i < n; i += (long long)gridDim.x * THREADS) {
    const long long tile = i / 512, r = tile / across * 128 + i % 16 / 4 * 32 + i % 512 / 16;
    const long long c = tile % across * 4 + i % 4;
    tiles[i * tile_stride] = r < rows && c < columns ? scale[r / repeat * row_stride + c * column_stride] : 0;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
scale_from_tiles(const unsigned char* __restrict__ tiles, unsigned char* __restrict__ scale, long long rows,
                 long long columns, long long row_stride, long long column_stride, long long tile_stride) {
  if (in_pieces(scale, tiles, columns, row_stride, column_stride, tile_stride)) {
    each_piece(rows, columns, [&](long long r, long long c, long long at) {
      uint4 v[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) v[k] = __ldg(reinterpret_cast<const uint4*>(tiles + at + 512 * k));
      turn(v);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (r + 32 * k < rows) store_words(reinterpret_cast<uint4*>(scale + (r + 32 * k) * row_stride + c), v[k]);
    });
    return;
  }
  for (long long i = (long long)blockIdx.x * THREADS + threadIdx.x; i < rows * columns; i += (long long)gridDim.x * THREADS) {
    const long long r = i / columns, c = i % columns;
    scale[r * row_stride + c * column_stride] = tiles[tile_offset(r, c, columns) * tile_stride];
  }
}

// The transpose, its rows filled with zeros up to `length`.
extern "C" __global__ void __launch_bounds__(THREADS)
scale_to_k_major(const float* __restrict__ scale, float* __restrict__ out, long long rows, long long columns,
                 long long length, long long row_stride, long long column_stride, long long out_row, long long out_column) {
  for (long long i = (long long)blockIdx.x * THREADS + threadIdx.x; i < columns * length; i += (long long)gridDim.x * THREADS) {
    const long long c = i / length, r = i % length;
    out[c * out_row + r * out_column] = r < rows ? scale[r * row_stride + c * column_stride] : 0.0f;
  }
}
