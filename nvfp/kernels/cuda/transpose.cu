// transpose: [batch, rows, columns] -> [batch, columns, rows].
//
// `transpose_pieces` and `transpose_nibbles` serve matrices whose rows are whole pieces on both sides: a thread reads N
// rows of one piece of N items, all loads first, turns the square in registers and writes N rows of the result. No
// shared memory: a warp reads rows of 8 pieces and writes rows of 4, the block both of 16. `transpose_items` (items of
// 1, 2, 4 or 8 bytes) and `transpose_packed` (4-bit codes, two per byte along the last axis, low nibble first, on both
// sides; the unused nibble of an odd length is written as 0) take any lengths and strides by tiles of 64 x 64 (8-byte
// items: 32 x 32) in shared memory.
// Bytes moved: one read and one write per item.
//
// Macros: ITEM for items (an unsigned type of their size), none for 4-bit codes.
#include "vec.cuh"

constexpr int THREADS = 256;

// 4 x 4 bytes: word k of the result holds byte k of each.
__device__ __forceinline__ void turn_bytes(const unsigned (&in)[4], unsigned (&out)[4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const unsigned pick = half ? 0x7362 : 0x5140;
    const unsigned upper = __byte_perm(in[0], in[1], pick), lower = __byte_perm(in[2], in[3], pick);
    out[2 * half] = __byte_perm(upper, lower, 0x5410);
    out[2 * half + 1] = __byte_perm(upper, lower, 0x7632);
  }
}

// The thread's square: 16 x 16 of them make the tile of a block.
constexpr int SIDE = 16, ABREAST = 8;
struct Square {
  long long batch, row, column;
};
template <int N>
__device__ __forceinline__ Square square_of_thread(long long rows, long long columns) {
  const long long across = (columns + SIDE * N - 1) / (SIDE * N), down = (rows + SIDE * N - 1) / (SIDE * N);
  const long long row = blockIdx.x / across, b = row / down, c = blockIdx.x - row * across;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int i = warp / 2 * (32 / ABREAST) + lane / ABREAST, j = warp % 2 * ABREAST + lane % ABREAST;
  return {b, ((row - b * down) * SIDE + i) * N, (c * SIDE + j) * N};
}

#ifdef ITEM
constexpr int N = 16 / sizeof(ITEM);

// Words of one piece of every row to those of the result.
template <class T>
__device__ __forceinline__ void turn_square(const uint4 (&in)[N], uint4 (&out)[N]) {
  const unsigned(*from)[4] = reinterpret_cast<const unsigned(*)[4]>(in);
  unsigned(*to)[4] = reinterpret_cast<unsigned(*)[4]>(out);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (sizeof(T) == 8) {
        to[j / 2][i / 2 * 2 + j % 2] = from[i / 2][j];
      } else if constexpr (sizeof(T) == 4) {
        to[j][i] = from[i][j];
      } else if constexpr (sizeof(T) == 2) {
        to[2 * j][i] = __byte_perm(from[2 * i][j], from[2 * i + 1][j], 0x5410);
        to[2 * j + 1][i] = __byte_perm(from[2 * i][j], from[2 * i + 1][j], 0x7632);
      } else {
        unsigned turned[4];
        turn_bytes({from[4 * i][j], from[4 * i + 1][j], from[4 * i + 2][j], from[4 * i + 3][j]}, turned);
#pragma unroll
        for (int k = 0; k < 4; ++k) to[4 * j + k][i] = turned[k];
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
transpose_pieces(const ITEM* __restrict__ x, ITEM* __restrict__ y, long long batch, long long rows, long long columns,
                 long long batch_stride, long long row_stride, long long column_stride) {
  const Square at = square_of_thread<N>(rows, columns);
  if (at.row >= rows || at.column >= columns) return;
  const ITEM* from = x + at.batch * batch_stride + at.row * row_stride + at.column;
  ITEM* to = y + (at.batch * columns + at.column) * rows + at.row;
  uint4 in[N], out[N];
#pragma unroll
  for (int k = 0; k < N; ++k) in[k] = __ldg(reinterpret_cast<const uint4*>(from + k * row_stride));
  turn_square<ITEM>(in, out);
#pragma unroll
  for (int k = 0; k < N; ++k) store_words(to + k * rows, out[k]);
}

constexpr int TILE = sizeof(ITEM) == 8 ? 32 : 64;
constexpr int STEP = THREADS / TILE;  // tile rows that the block moves at a time

extern "C" __global__ void __launch_bounds__(THREADS)
transpose_items(const ITEM* __restrict__ x, ITEM* __restrict__ y, long long batch, long long rows, long long columns,
                long long batch_stride, long long row_stride, long long column_stride) {
  __shared__ ITEM tile[TILE][TILE + (sizeof(ITEM) < 4 ? 4 / sizeof(ITEM) : 1)];  // the odd row length spreads the banks
  const long long across = (columns + TILE - 1) / TILE, down = (rows + TILE - 1) / TILE;
  const int i = threadIdx.x % TILE, j = threadIdx.x / TILE;
  for (long long t = blockIdx.x; t < batch * down * across; t += gridDim.x) {
    const long long b = t / (down * across), r0 = t / across % down * TILE, c0 = t % across * TILE;
    const ITEM* from = x + b * batch_stride;
    ITEM* to = y + b * rows * columns;
#pragma unroll
    for (int k = j; k < TILE; k += STEP)
      if (r0 + k < rows && c0 + i < columns) tile[k][i] = from[(r0 + k) * row_stride + (c0 + i) * column_stride];
    __syncthreads();
#pragma unroll
    for (int k = j; k < TILE; k += STEP)
      if (c0 + k < columns && r0 + i < rows) to[(c0 + k) * rows + r0 + i] = tile[i][k];
    __syncthreads();
  }
}
#else
constexpr int N = 16;  // codes; 8 bytes
constexpr int TILE = 64;  // codes; 32 bytes

// 8 x 8 nibbles: first the even and the odd columns of two rows side by side in bytes, then bytes.
__device__ __forceinline__ void turn_nibbles(const unsigned (&in)[8], unsigned (&out)[8]) {
  constexpr unsigned LOW = 0x0f0f0f0fu;
  unsigned even[4], odd[4], turned[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    even[i] = (in[2 * i] & LOW) | (in[2 * i + 1] << 4 & ~LOW);
    odd[i] = (in[2 * i] >> 4 & LOW) | (in[2 * i + 1] & ~LOW);
  }
  turn_bytes(even, turned);
#pragma unroll
  for (int i = 0; i < 4; ++i) out[2 * i] = turned[i];
  turn_bytes(odd, turned);
#pragma unroll
  for (int i = 0; i < 4; ++i) out[2 * i + 1] = turned[i];
}

extern "C" __global__ void __launch_bounds__(THREADS)
transpose_nibbles(const unsigned char* __restrict__ x, unsigned char* __restrict__ y, long long batch, long long rows,
                  long long columns, long long batch_stride, long long row_stride, long long byte_stride) {
  const Square at = square_of_thread<N>(rows, columns);
  if (at.row >= rows || at.column >= columns) return;
  const unsigned char* from = x + at.batch * batch_stride + at.row * row_stride + at.column / 2;
  unsigned char* to = y + (at.batch * columns + at.column) * (rows / 2) + at.row / 2;
  uint2 in[N];
  unsigned out[2][N];  // words of 8 rows
#pragma unroll
  for (int k = 0; k < N; ++k) in[k] = __ldg(reinterpret_cast<const uint2*>(from + k * row_stride));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      unsigned square[8], turned[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) square[k] = j ? in[8 * i + k].y : in[8 * i + k].x;
      turn_nibbles(square, turned);
#pragma unroll
      for (int k = 0; k < 8; ++k) out[i][8 * j + k] = turned[k];
    }
  }
#pragma unroll
  for (int k = 0; k < N; ++k) store_words(to + k * (rows / 2), make_uint2(out[0][k], out[1][k]));
}

extern "C" __global__ void __launch_bounds__(THREADS)
transpose_packed(const unsigned char* __restrict__ x, unsigned char* __restrict__ y, long long batch, long long rows,
                 long long columns, long long batch_stride, long long row_stride, long long byte_stride) {
  __shared__ unsigned char tile[TILE][TILE + 4];  // one code per byte
  const long long across = (columns + TILE - 1) / TILE, down = (rows + TILE - 1) / TILE;
  const long long out_row = (rows + 1) / 2;
  const int i = threadIdx.x % 32, j = threadIdx.x / 32;
  for (long long t = blockIdx.x; t < batch * down * across; t += gridDim.x) {
    const long long b = t / (down * across), r0 = t / across % down * TILE, c0 = t % across * TILE;
    const unsigned char* from = x + b * batch_stride;
    unsigned char* to = y + b * columns * out_row;
#pragma unroll
    for (int k = j; k < TILE; k += THREADS / 32) {
      const long long c = c0 + 2 * i;
      unsigned both = 0;
      if (r0 + k < rows && c < columns) both = from[(r0 + k) * row_stride + c / 2 * byte_stride];
      tile[k][2 * i] = both & 15;
      tile[k][2 * i + 1] = both >> 4;
    }
    __syncthreads();
#pragma unroll
    for (int k = j; k < TILE; k += THREADS / 32) {
      const long long r = r0 + 2 * i;
      if (c0 + k < columns && r < rows) {
        unsigned high = r + 1 < rows ? tile[2 * i + 1][k] : 0;
        to[(c0 + k) * out_row + r / 2] = (unsigned char)(tile[2 * i][k] | high << 4);
      }
    }
    __syncthreads();
  }
}
#endif
