// scale_layout: 8-bit block scales from a plain matrix to tiles of 128 x 4 (512 bytes) and back; float32 block scales to
// rows along K (`k_major128`; back is a view).
//
// Parallelisation: one thread per byte of the result, a gather. Bytes moved: one read and one write per byte.
#include "tiles.cuh"

constexpr int THREADS = 256;

// Whole tiles; bytes outside the matrix are 0. `repeat` rows of the layout share one row of the matrix (square
// blocks: a scale for each of their rows).
extern "C" __global__ void __launch_bounds__(THREADS)
scale_to_tiles(const unsigned char* __restrict__ scale, unsigned char* __restrict__ tiles, long long rows,
               long long columns, long long row_stride, long long column_stride, long long repeat, long long tile_stride,
               long long n) {
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
