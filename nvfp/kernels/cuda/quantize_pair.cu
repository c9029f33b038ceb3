// quantize, 1 x 16 or 1 x 32 blocks along the columns of a matrix (column copy, stored transposed) and, in the same
// pass, along its rows (row copy): MX, NVFP4 and their kin. It makes NVFP4's row copies alone too, for its table of
// multipliers; others come from quantize_block1d.cu.
//
// Parallelisation: one block of threads per tile of 128 x 128, see quantize_tile128.cuh. A warp holds 16 rows x 128
// columns (BLOCK 16) or 32 rows x 64 columns, so that quantization blocks lie within it: a row block is a piece, or two
// in neighbouring lanes; the maxima of column blocks are shared out by shuffles, each lane making the scales of OWN
// columns, and their multipliers go through shared memory. Where a multiplier follows from the 8-bit scale alone,
// the 128 of them are tabulated while the loads are in flight: a division each would be dear. Scales are gathered in
// shared memory and leave as words.
// Rotated columns (ROTATE) and random numbers of NVFP4's take another way from the rows on: quantize_turned.cuh.
// Bytes moved per element: sizeof(T_IN) in; per copy 1 or 1/2 out, and one scale per BLOCK elements.
//
// Macros: those of quantize_turned.cuh but ACROSS, BLOCK (16 or 32).
#if BLOCK == 16
#define ACROSS 8
#else
#define ACROSS 4
#endif
#include "quantize_turned.cuh"
#include "quantize_input.cuh"

constexpr int LANES = BLOCK / PIECE;        // that share a row block
constexpr int BLOCKS = ROWS / BLOCK;        // of a row or column of the tile
constexpr int OWN_ROWS = HELD / LANES;      // rows whose scales a thread makes
constexpr int PITCH = PIECE + 4;            // multipliers of a piece; the gap spreads pieces over the banks
constexpr bool TABLE = FAMILY == TWO_LEVEL && Steps::ORDER == MULTIPLY && Scale::BITS == 8 && Scale::SIGN && Scale::NAN_CODE < 128;
static_assert(BLOCK % PIECE == 0 && BLOCK == DOWN * HELD && OWN == OWN_ROWS, "blocks lie in a warp");
// What a side's scales follow from.
struct Level {
  float per_element[2], decode_factor[2];
  float multiplier[2][TABLE ? 128 : 1];
};

struct alignas(16) Tile {
  Transposed codes;
  Exchange exchange[TURNED ? WARPS : 1];
  float multiplier[COL && !TURNED ? WARPS : 1][ACROSS * PITCH];  // of the warp's columns
  StoredScale row[ROW ? ROWS : 1][BLOCKS];
  StoredScale col[COL ? BLOCKS : 1][COLUMNS];
  Level level;
  Sums sums;
};

// The scales of N of the thread's blocks.
template <int N>
struct Scales {
  float multiplier[N];
  unsigned stored[N];
};

// Fills what both sides read, a side by half of the threads; barriers of the block are inside.
__device__ __forceinline__ void set_level(Level& level, const Side& row, const Side& col, bool same) {
  if constexpr (TABLE) {
    const int side = threadIdx.x / 128, k = threadIdx.x % 128;
    const bool wanted = side == 0 || !same;
    if (wanted && k == 0) {
      const bool first = ROW && side == 0;
      const Tensor t = tensor_level(first ? row.amax : col.amax, first ? row.given : col.given, 0.0f, 0.0f);
      level.per_element[side] = t.per_element;
      level.decode_factor[side] = t.decode_factor;
    }
    __syncthreads();
    if (wanted) {
      const bool bad = NAN_BLOCK && k == (int)Scale::NAN_CODE;
      level.multiplier[side][k] = marked({two_level_multiplier<Scale>(k, level.decode_factor[side]), 0u, bad});
    }
    __syncthreads();
  }
}

// What two_level_code rounds; the scale of a NaN block is NaN: 0 * inf is.
__device__ __forceinline__ float wanted(float amax, float per_element) {
  const float x = __fmul_rn(amax, per_element);
  return NAN_BLOCK ? __fmaf_rn(amax, 0.0f, x) : x;
}

// From the bits of the maxima.
template <int N>
__device__ __forceinline__ Scales<N> scales_of(const unsigned (&m)[N], const Level& level, int side, const Side& s, float epsilon,
                                               float overflow) {
  Scales<N> scales;
  if constexpr (TABLE) {
    const float per_element = level.per_element[side];
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      const float x0 = wanted(__uint_as_float(m[j]), per_element), x1 = wanted(__uint_as_float(m[j + 1]), per_element);
      const unsigned both = encode2<Scale, true>(x0, x1);
      scales.stored[j] = both & 255u;
      scales.stored[j + 1] = both >> 8;
    }
#pragma unroll
    for (int j = 0; j < N; ++j) scales.multiplier[j] = level.multiplier[side][scales.stored[j]];
  } else {
    const Tensor t = tensor_level(s.amax, s.given, epsilon, overflow);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const Block b = block_scale(m[j], t);
      scales.multiplier[j] = marked(b);
      scales.stored[j] = b.stored;
    }
  }
  return scales;
}

// From the maxima of the thread's rows those of their blocks. With two lanes to a block the lower one keeps the first two
// rows, the upper one the others.
__device__ __forceinline__ void row_maxima(const unsigned (&rows)[HELD], unsigned (&own)[OWN]) {
  unsigned m[HELD / PER];
#pragma unroll
  for (int i = 0; i < HELD / PER; ++i) {
    m[i] = rows[PER * i];
    if constexpr (PER == 2) {  // two rows in a word
      const unsigned next = rows[PER * i + 1];
      m[i] = max_words(__byte_perm(m[i], next, 0x5410), __byte_perm(m[i], next, 0x7632));
    }
  }
  if constexpr (LANES == 2) {
#pragma unroll
    for (int i = 0; i < HELD / PER / 2; ++i) m[i] = halved(m[i], m[i + HELD / PER / 2], threadIdx.x & 1, 1);
  }
#pragma unroll
  for (int j = 0; j < OWN; ++j) own[j] = widened(m[j / PER] >> j % PER * 16);
}

// Whether one of the warp's blocks has a NaN multiplier.
template <int N>
__device__ __forceinline__ bool has_nan(const Scales<N>& s) {
  bool found = false;
#pragma unroll
  for (int j = 0; j < N; ++j) found |= s.multiplier[j] != s.multiplier[j];
  return FILLS && __any_sync(ALL, found);
}

// Codes and scales of the thread's rows.
template <bool Whole>
__device__ __forceinline__ void write_rows(Tile& tile, const Side& row, const Scales<OWN>& s, Values (&v)[HELD], long long r, long long c,
                                           const Source& source, const Streams& random) {
  const int first = group_of_thread() * HELD, upper = LANES == 2 ? threadIdx.x & 1 : 0;
  const bool filled = has_nan(s);
  unsigned char* to = code_address(row.target, r, c);
#pragma unroll
  for (int j = 0; j < OWN; ++j) tile.row[first + upper * OWN + j][piece_of_thread() / LANES] = (StoredScale)s.stored[j];
#pragma unroll
  for (int k = 0; k < HELD; ++k, to += row.target.pitch) {
    renew(v[k]);
    float multiplier = s.multiplier[k % OWN];
    if constexpr (LANES == 2) multiplier = __shfl_sync(ALL, multiplier, (threadIdx.x % 32 & ~1u) + k / OWN);
    store_piece<Whole>(row.target, to, r + k, c, encode_values(v[k], multiplier, filled, row_numbers<Whole>(random, (r + k) * source.columns + c)));
  }
}

// Scales of the thread's columns.
__device__ __forceinline__ void put_column_scales(Tile& tile, const Scales<OWN>& s) {
  const int piece = piece_of_thread(), c = own_columns();
#pragma unroll
  for (int j = 0; j < OWN; ++j) {
    tile.multiplier[threadIdx.x / 32][piece % ACROSS * PITCH + c + j] = s.multiplier[j];
    tile.col[group_of_thread() * HELD / BLOCK][piece * PIECE + c + j] = (StoredScale)s.stored[j];
  }
}

// Codes of the thread's columns, once their multipliers are there. A barrier of the block is inside.
template <bool Whole>
__device__ __forceinline__ void write_columns(Tile& tile, const Origin& o, const Side& col, Values (&v)[HELD], bool filled,
                                              long long r, long long c, const Source& source, const Streams& random) {
  Numbers numbers[HELD];
#pragma unroll
  for (int k = 0; k < HELD; ++k) numbers[k] = col_numbers<Whole>(random, (r + k) * source.columns + c);
  __syncwarp();
  const float* multipliers = tile.multiplier[threadIdx.x / 32] + piece_of_thread() % ACROSS * PITCH;
#pragma unroll
  for (int i = 0; i < PIECE; i += 4) {
    const float4 m = *reinterpret_cast<const float4*>(multipliers + i);
#pragma unroll
    for (int k = 0; k < HELD && i == 0; ++k) renew(v[k]);
    encode_columns(tile.codes, v, i, m.x, m.y, filled, numbers);
    encode_columns(tile.codes, v, i + 2, m.z, m.w, filled, numbers);
  }
  __syncthreads();
  store_columns<Whole>(tile.codes, col.target, o);
}

// Scales and codes of the thread's columns where it holds them whole, a pair at a time. A barrier of the block is inside.
template <bool Whole>
__device__ __forceinline__ void turn_columns(Tile& tile, const Origin& o, const Side& col, int side, const Values (&v)[HELD], long long r,
                                             long long c, const Source& source, const Streams& random) {
  const int warp = threadIdx.x / 32, first = threadIdx.x % 32 * OWN;
  Exchange& exchange = tile.exchange[warp];
  unsigned numbers[DEEP] = {};
#if ROUNDING == 1
  turn_numbers<Whole>(exchange, numbers, random.col, r, c, source.columns);
#endif
  put_rows(exchange, v);
  __syncwarp();
#pragma unroll
  for (int p = 0; p < 2; ++p) {
    unsigned word[DEEP], own[2];
    take_pair(exchange, p, word);
    pair_maxima(word, own);
    const Scales<2> s = scales_of(own, tile.level, side, col, 0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < 2; ++i) tile.col[warp][first + p + 2 * i] = (StoredScale)s.stored[i];
    put_pair(tile.codes, word, s.multiplier, has_nan(s), numbers, p);
  }
  __syncthreads();
  store_columns<Whole>(tile.codes, col.target, o);
}

// Stores the tile's scales: half of the threads a row of one copy each.
__device__ __forceinline__ void write_scales(const Tile& tile, const Origin& o, const Side& row, const Side& col) {
  const int k = threadIdx.x % 128;
  StoredScale x[BLOCKS];
  if (threadIdx.x < 128) {
    if constexpr (ROW) {
#pragma unroll
      for (int i = 0; i < BLOCKS; ++i) x[i] = tile.row[k][i];
      store_scales<BLOCK>(row, o.r + k, o.c, x);
    }
  } else if constexpr (COL) {
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i) x[i] = tile.col[i][k];
    store_scales<BLOCK>(col, o.c + k, o.r, x);
  }
}

template <bool Whole>
__device__ __forceinline__ void quantize_tile(Tile& tile, const Source& source, const Origin& o, const Side& row,
                                              const Side& col, const Streams& random, float epsilon, float overflow, const Input& input, float* partial) {
  const long long r = o.r + group_of_thread() * HELD, c = o.c + piece_of_thread() * PIECE;
  const bool same = !ROW || !COL || (col.amax == row.amax && col.given == row.given);
  Values v[HELD];
  if constexpr (!Whole) set_level(tile.level, row, col, same);  // (the registers of slow loads)
  input.template load<Whole>(v, source, r, c);
  if constexpr (Whole) set_level(tile.level, row, col, same);
  sum_columns(tile.sums, v, source, o, partial);
  unsigned rows[HELD], columns[WORDS_HELD], own[OWN];
  thread_maxima(v, rows, columns);
  bool filled = false;
  if constexpr (COL && !TURNED) {
    column_maxima(columns, own);
    const Scales<OWN> scales = scales_of(own, tile.level, same ? 0 : 1, col, epsilon, overflow);
    put_column_scales(tile, scales);
    filled = has_nan(scales);
  }
  if constexpr (ROW) {
    row_maxima(rows, own);
    write_rows<Whole>(tile, row, scales_of(own, tile.level, 0, row, epsilon, overflow), v, r, c, source, random);
  }
  if constexpr (TURNED) turn_columns<Whole>(tile, o, col, same ? 0 : 1, v, r, c, source, random);
  else if constexpr (COL) write_columns<Whole>(tile, o, col, v, filled, r, c, source, random);
  else __syncthreads();
  write_scales(tile, o, row, col);
}

extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE)
quantize_pair(const T_IN* __restrict__ x, long long rows, long long columns, long long stride, int aligned,
              unsigned char* row_codes, long long row_pitch, long long row_allocated, int row_aligned, void* row_scale,
              const float* row_amax, const float* row_given, float* row_stored,
              unsigned char* col_codes, long long col_pitch, long long col_allocated, int col_aligned, void* col_scale,
              const float* col_amax, const float* col_given, float* col_stored, float epsilon, float overflow
              RANDOM_PARAMETERS INPUT_PARAMETERS BIAS_PARAMETERS) {
  __shared__ Tile tile;
  const Source source{x, rows, columns, stride, aligned != 0};
  const Side row{{row_codes, rows, columns, row_pitch, row_allocated, row_aligned != 0}, row_scale, row_amax, row_given, row_stored};
  const long long col_rows = ROTATE ? (rows + DEEP - 1) / DEEP * DEEP : rows;  // whole groups
  const Side col{{col_codes, columns, col_rows, col_pitch, col_allocated, col_aligned != 0}, col_scale, col_amax, col_given, col_stored};
  const Streams random RANDOM_STREAMS;
  const Input input INPUT_ARGUMENTS;
  const long long index = input.tile(source, blockIdx.x);
  const Origin o = tile_origin(columns, (unsigned)index);
  if (index < 0) {
  } else if (tile128_is_whole(source, o, row.target, col.target)) {
    quantize_tile<true>(tile, source, o, row, col, random, epsilon, overflow, input, BIAS_ARGUMENT);
  } else {
    quantize_tile<false>(tile, source, o, row, col, random, epsilon, overflow, input, BIAS_ARGUMENT);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (ROW) store_tensor_scale(row_amax, row_given, row_stored);
    if (COL) store_tensor_scale(col_amax, col_given, col_stored);
  }
}
