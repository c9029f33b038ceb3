// quantize, any format, block shape, strides and axis: the plain variant that every other one is tested against.
//
// The source is seen as [batch, rows, columns] with blocks of block_rows x block_columns over the last two; codes
// are packed along PACK (0: one per byte, 1: two per byte along the columns, 2: along the rows).
// `quantize_scales` takes LANES lanes per block and writes its scale; `quantize_codes` takes one thread per byte of
// codes, reads the scale back and repeats the multiplier. No shared memory, no barriers.
// Bytes moved per element: sizeof(T_IN) in, twice; 1 or 1/2 out.
//
// Macros: T_IN, those of format.cuh, LANES, PACK, PER_TENSOR (one scale, made from words alone), ROUNDING (0 nearest
// even, 1 by random numbers, 2 toward zero); LEVELS=1 where quantize_levels.cu has written scales and multipliers.
#include "quantize_view.cuh"
#if ROUNDING
#include "stochastic.cuh"
// `transposed`: the source is seen as the transpose of the matrix in which elements are counted.
#define RANDOM_PARAMETERS , unsigned long long key, unsigned stream, const long long* step, int transposed
#else
#define RANDOM_PARAMETERS
#endif

// Words. Blocks: amax is A of a two-level format, or given its decode factor. PER_TENSOR: amax is the tensor's,
// raw (where non-finite input makes NaN blocks) the largest bits in x, multiplier a given multiplier.
__device__ __forceinline__ bool is_bad(const float* raw) {
  return NAN_BLOCK && raw != nullptr && __float_as_uint(*raw) >= 0x7f800000u;
}

extern "C" __global__ void __launch_bounds__(THREADS)
quantize_scales(const T_IN* __restrict__ x, long long batch, long long rows, long long columns, long long batch_stride,
                long long row_stride, long long column_stride, long long block_rows, long long block_columns,
                void* scale, float* multipliers, const float* amax, const float* raw, const float* given,
                const float* multiplier, float* stored, float epsilon, float overflow) {
  const View v{x, batch, rows, columns, batch_stride, row_stride, column_stride, block_rows, block_columns};
  const Tensor tensor = tensor_level(amax, given, epsilon, overflow);
  const long long first = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (first == 0 && stored != nullptr) store_tensor_scale(amax, given, stored);
  if constexpr (PER_TENSOR) {
    if (first != 0) return;
    Block b{0.0f, 0u, false};
    if (multiplier != nullptr) {
      b.multiplier = *multiplier;
      b.stored = __float_as_uint(__fdiv_rn(1.0f, b.multiplier));
    } else {
      b = block_scale(__float_as_uint(*amax), is_bad(raw), tensor);
    }
    store_scale(scale, 0, b.stored);
    *multipliers = b.multiplier;
    return;
  }
  const long long blocks = batch * v.down() * v.across(), size = block_rows * block_columns;
  const int lane = threadIdx.x % LANES;
  // Whole groups of lanes enter and leave the loop together: LANES divides THREADS.
  for (long long k = first / LANES; k < blocks; k += (long long)gridDim.x * THREADS / LANES) {
    const long long b = k / (v.down() * v.across()), r0 = k / v.across() % v.down() * block_rows;
    const long long c0 = k % v.across() * block_columns;
    unsigned m = 0;
    for (long long e = lane; e < size; e += LANES) {
      const long long r = r0 + e / block_columns, c = c0 + e % block_columns;
      if (r < rows && c < columns) m = max(m, block_magnitude(v.at(b, r, c)));
    }
    m = lanes_max<LANES>(m);
    if (lane != 0) continue;
    const Block block = block_scale(m, tensor);
    store_scale(scale, k, block.stored);
    if constexpr (FAMILY == FLOAT_SCALE) multipliers[k] = block.multiplier;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
quantize_codes(const T_IN* __restrict__ x, long long batch, long long rows, long long columns, long long batch_stride,
               long long row_stride, long long column_stride, long long block_rows, long long block_columns,
               unsigned char* codes, long long pitch, long long allocated, const void* scale, const float* multipliers,
               const float* amax, const float* raw, const float* given RANDOM_PARAMETERS) {
#if ROUNDING
  const Random random = random_stream(key, stream, step);
#endif
  const View v{x, batch, rows, columns, batch_stride, row_stride, column_stride, block_rows, block_columns};
  Tensor tensor;
  if constexpr (!LEVELS) tensor = tensor_level(amax, given, 0.0f, 0.0f);
  const long long code_rows = PACK == 2 ? (rows + 1) / 2 : rows, code_columns = PACK == 1 ? (columns + 1) / 2 : columns;
  const long long down = v.down(), across = v.across();
  for (long long i = (long long)blockIdx.x * THREADS + threadIdx.x; i < allocated * pitch; i += (long long)gridDim.x * THREADS) {
    const long long line = i / pitch, column = i - line * pitch;
    unsigned byte = 0;
    if (column < code_columns && line < batch * code_rows) {
      const long long b = line / code_rows, row = line - b * code_rows;
#pragma unroll
      for (int k = 0; k < (PACK ? 2 : 1); ++k) {
        const long long r = PACK == 2 ? 2 * row + k : row, c = PACK == 1 ? 2 * column + k : column;
        if (r >= rows || c >= columns) continue;  // the unused nibble of an odd length
        Block block{0.0f, 0u, false};
        if constexpr (PER_TENSOR) {
          block.multiplier = *multipliers;
          block.bad = is_bad(raw);
        } else {
          const long long at = (b * down + r / block_rows) * across + c / block_columns;
          if constexpr (FAMILY == FLOAT_SCALE) {
            const float stored = static_cast<const float*>(scale)[at];
            block.multiplier = multipliers[at];
            block.bad = NAN_BLOCK && stored != stored;
          } else {
            const unsigned stored = static_cast<const StoredCode<Scale>*>(scale)[at];
            block.multiplier = LEVELS ? multipliers[at] : multiplier_of(stored, tensor);
            block.bad = NAN_BLOCK && stored == Scale::NAN_CODE;
          }
        }
#if ROUNDING
        const long long e = transposed ? c * rows + r : (b * rows + r) * columns + c;
        const unsigned number = ROUNDING == 1 ? random.number((unsigned long long)e) : 0u;
        byte |= random_code(v.at(b, r, c), block, number) << 4 * k;
#else
        byte |= code_of(v.at(b, r, c), block) << 4 * k;
#endif
      }
    }
    codes[i] = (unsigned char)byte;
  }
}
