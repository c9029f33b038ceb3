// transpose: [batch, rows, columns] -> [batch, columns, rows], by tiles through shared memory.
//
// `transpose_items` moves items of 1, 2, 4 or 8 bytes; `transpose_packed` moves 4-bit codes, two per byte along
// the last axis (low nibble first) on both sides; the unused nibble of an odd length is written as 0.
// Parallelisation: one block of 256 threads per tile of 64 x 64 items (8-byte items: 32 x 32).
// Bytes moved: one read and one write per item, both in rows of at least 32 bytes.
//
// Macros: ITEM for `transpose_items` (an unsigned type of the item's size).

constexpr int THREADS = 256;

#ifdef ITEM
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
constexpr int TILE = 64;  // codes; 32 bytes

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
