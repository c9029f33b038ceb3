// quantize, scales of two-level formats with one A per row, or by 4-over-6: the device twin of nvfp/dtypes/levels.py.
// quantize.cu's quantize_codes (LEVELS=1) makes the codes from what is written here.
//
// `quantize_lines` takes one warp per line along the block axis and writes its A and its tensor scale;
// `quantize_levels` one thread per block: its maximum, then both candidates, each with its sum of errors in the order of
// the elements. No shared memory, no barriers. Every operation is one float32 operation in a fixed order.
// Bytes moved per element: sizeof(T_IN) in, once by each kernel (4-over-6 rereads its block from the caches).
//
// Macros: T_IN, those of format.cuh, LAST (1: blocks along the columns, 0: along the rows), SEARCH (0 none, 1 sums of |d|,
// 2 of d * d), PRODUCT (float32 bits of largest element * bound of the scales), PER_ROW, ACROSS (length of a block across
// the axis).
#include "quantize_view.cuh"

__device__ __forceinline__ float product() { return __uint_as_float(PRODUCT); }
__device__ __forceinline__ float encode_factor(float a) { return usable(a) ? capped(__fdiv_rn(product(), a)) : 1.0f; }
__device__ __forceinline__ float decode_factor(float a) {
  return (__float_as_uint(a) & 0x7fffffffu) < 0x7f800000u ? __fdiv_rn(a, product()) : 1.0f;
}

extern "C" __global__ void __launch_bounds__(THREADS)
quantize_lines(const T_IN* __restrict__ x, long long batch, long long rows, long long columns, long long batch_stride,
               long long row_stride, long long column_stride, float* amax, float* stored) {
  const View v{x, batch, rows, columns, batch_stride, row_stride, column_stride, 1, 1};
  const long long across = LAST ? rows : columns, length = LAST ? columns : rows;
  const int lane = threadIdx.x % 32;
  for (long long line = ((long long)blockIdx.x * THREADS + threadIdx.x) / 32; line < batch * across; line += (long long)gridDim.x * THREADS / 32) {
    const long long b = line / across, k = line % across;
    unsigned m = 0;
    for (long long i = lane; i < length; i += 32) m = max(m, counted<NAN_BLOCK>(LAST ? v.at(b, k, i) : v.at(b, i, k)));
    m = lanes_max<32>(m);
    if (lane != 0) continue;
    amax[line] = __uint_as_float(m);
    stored[line] = decode_factor(__uint_as_float(m));
  }
}

// Where a block lies: its batch, and its first row and column.
struct Corner { long long b, r, c; };

template <int N> constexpr int LOG2 = 1 + LOG2<N / 2>;
template <> constexpr int LOG2<1> = 0;
constexpr int LEVELS_ACROSS = LOG2<ACROSS>;

// The sum of errors of a block under one scale: those of a line in the order of its elements, those of the lines
// pairwise, k with k + ACROSS / 2, then + ACROSS / 4 ... Lines come in bit-reversed order, so that a binary counter of
// partial sums holds what waits for its partner: registers, where an array of all lines would be local memory.
__device__ __forceinline__ float error(const View& v, const Corner& o, float multiplier, float s, float a) {
  const long long along = LAST ? v.block_columns : v.block_rows;
  float waiting[LEVELS_ACROSS + 1], sum = 0.0f;
#pragma unroll 1
  for (int n = 0; n < ACROSS; ++n) {
    int k = 0;
#pragma unroll
    for (int level = 0; level < LEVELS_ACROSS; ++level) k = 2 * k + (n >> level & 1);
    sum = 0.0f;
    for (long long i = 0; i < along; ++i) {
      const long long r = o.r + (LAST ? k : i), c = o.c + (LAST ? i : k);
      if (r >= v.rows || c >= v.columns) continue;
      const float y = v.at(o.b, r, c), q = decode<Element>(encode<Element, true>(__fmul_rn(y, multiplier)));
      const float d = __fadd_rn(__fdiv_rn(__fmul_rn(__fmul_rn(q, s), a), product()), -y);
      sum = __fadd_rn(sum, SEARCH == 1 ? fabsf(d) : __fmul_rn(d, d));
    }
    bool carried = true;
#pragma unroll
    for (int level = 0; level < LEVELS_ACROSS; ++level) {
      if (carried && (n >> level & 1)) {
        sum = __fadd_rn(waiting[level], sum);
      } else if (carried) {
        waiting[level] = sum;
        carried = false;
      }
    }
  }
  return sum;
}

// Three blocks per multiprocessor: without that bound NVRTC 13.5 keeps to 64 registers and spills.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
quantize_levels(const T_IN* __restrict__ x, long long batch, long long rows, long long columns, long long batch_stride,
                long long row_stride, long long column_stride, long long block_rows, long long block_columns,
                void* scale, float* multipliers, const float* amax, const float* given, float* stored) {
  const View v{x, batch, rows, columns, batch_stride, row_stride, column_stride, block_rows, block_columns};
  const long long first = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (!PER_ROW && first == 0) *stored = given != nullptr ? *given : decode_factor(*amax);
  const long long blocks = batch * v.down() * v.across();
  for (long long k = first; k < blocks; k += (long long)gridDim.x * THREADS) {
    const Corner o{k / (v.down() * v.across()), k / v.across() % v.down() * block_rows, k % v.across() * block_columns};
    unsigned m = 0;
    for (long long e = 0; e < block_rows * block_columns; ++e) {
      const long long r = o.r + e / block_columns, c = o.c + e % block_columns;
      if (r < rows && c < columns) m = max(m, block_magnitude(v.at(o.b, r, c)));
    }
    float a, factor;
    if (PER_ROW || amax != nullptr) {
      a = PER_ROW ? amax[LAST ? o.b * rows + o.r : o.b * columns + o.c] : *amax;
      factor = encode_factor(a);
    } else {
      a = __fmul_rn(*given, product());
      factor = s_enc_from_tensor_scale(*given);
    }
    const float s_dec = __fdiv_rn(1.0f, factor), b = __uint_as_float(m);
    unsigned code = 0;
    float multiplier = 0.0f;
    if (NAN_BLOCK && m >= 0x7f800000u) {
      code = Scale::NAN_CODE;
    } else if constexpr (SEARCH == 0) {
      code = two_level_code<Scale>(b, __fmul_rn(factor, __fdiv_rn(1.0f, largest<Element>())));
      multiplier = two_level_multiplier<Scale>(code, s_dec);
    } else {
      const float base = __fmul_rn(__fdiv_rn(b, largest<Element>()), factor);
      code = encode<Scale, true>(capped(base));
      multiplier = two_level_multiplier<Scale>(code, s_dec);
      const unsigned four = encode<Scale, true>(capped(__fmul_rn(1.5f, base)));
      const float by_four = two_level_multiplier<Scale>(four, s_dec);
      if (error(v, o, by_four, decode<Scale>(four), a) < error(v, o, multiplier, decode<Scale>(code), a)) {
        code = four;
        multiplier = by_four;
      }
    }
    store_scale(scale, k, code);
    multipliers[k] = multiplier;
  }
}
