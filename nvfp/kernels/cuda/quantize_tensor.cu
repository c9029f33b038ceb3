// quantize, one float32 scale per tensor: codes = cast(fl(x * multiplier)), row copy, transposed copy, or both.
//
// GIVEN=1: the multiplier is a word of scaling state (delayed scaling), and the largest magnitude of x is recorded
// in the same pass. GIVEN=0: the multiplier follows from an amax word (current scaling). Either way its inverse,
// the decode factor, is stored beside the codes.
// Parallelisation: one block of threads per tile, see quantize_tile.cuh; codes are transposed as bytes.
// Bytes moved per element: sizeof(T_IN) in; per copy 1 (or 1/2) out.
#define TILE_COLUMNS (COL ? 64 : 256)
#define LAYOUT 0
#include "quantize_tile.cuh"

// Writes the codes of a tile; returns (with GIVEN) the largest magnitude in the thread's piece.
template <bool Whole>
__device__ __forceinline__ unsigned quantize_tile(Shared<unsigned char>& tile, const Source& source, const Origin& o,
                                                  const Target& row, const Target& col, const Block& b,
                                                  const Streams& random) {
  const int i = threadIdx.x / PIECES, j = threadIdx.x % PIECES * PIECE;
  const Vec<T_IN, PIECE> v = load_piece<Whole>(source, o.r + i, o.c + j);
  float f[PIECE];
#pragma unroll
  for (int k = 0; k < PIECE; ++k) f[k] = load_float(v.at[k]);
  const unsigned m = GIVEN ? piece_max(f) : 0u;
  const Codes codes = encode_piece(f, b, row_numbers(random, (o.r + i) * source.columns + o.c + j));
  if constexpr (ROW) store_piece<Whole>(row, o.r + i, o.c + j, codes);
  if constexpr (COL) {
    Vec<unsigned char, PIECE> bytes;
#pragma unroll
    for (int k = 0; k < PIECE; ++k) bytes.at[k] = (unsigned char)code_at(codes, k);
    tile.write(i, j, bytes);
    __syncthreads();
    const int tc = threadIdx.x % COLUMNS, tr = threadIdx.x / COLUMNS * PIECE;
    unsigned char column[PIECE];
    tile.column(tr, tc, column);
    store_piece<Whole>(col, o.c + tc, o.r + tr, gather_piece(column));
  }
  return m;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
quantize_tensor(const T_IN* __restrict__ x, long long rows, long long columns, long long stride, int aligned,
                unsigned char* row_codes, long long row_pitch, long long row_allocated, int row_aligned,
                unsigned char* col_codes, long long col_pitch, long long col_allocated, int col_aligned,
                const float* word, float epsilon, float* stored, float* row_recorded, float* col_recorded
                RANDOM_PARAMETERS) {
  __shared__ Shared<unsigned char> tile;
  const Source source{x, rows, columns, stride, aligned != 0};
  const Target row{row_codes, rows, columns, row_pitch, row_allocated, row_aligned != 0};
  const Target col{col_codes, columns, rows, col_pitch, col_allocated, col_aligned != 0};
  const Streams random RANDOM_STREAMS;
  const Origin o = tile_origin(columns);
  Block b{*word, 0u, false};
  if constexpr (!GIVEN) b.multiplier = fp32_multiplier<Element, POWER_OF_TWO>(*word, epsilon, __uint_as_float(0x7f7fffffu));
  if (blockIdx.x == 0 && threadIdx.x == 0) *stored = __fdiv_rn(1.0f, b.multiplier);

  unsigned m;
  if (tile_is_whole(source, o, row_aligned != 0, col_aligned != 0)) m = quantize_tile<true>(tile, source, o, row, col, b, random);
  else m = quantize_tile<false>(tile, source, o, row, col, b, random);
  if (GIVEN && (row_recorded != nullptr || col_recorded != nullptr)) {
    m = block_max<THREADS>(m);
    if (threadIdx.x == 0) {
      if (row_recorded != nullptr) record_max(row_recorded, m);
      if (col_recorded != nullptr) record_max(col_recorded, m);
    }
  }
}
