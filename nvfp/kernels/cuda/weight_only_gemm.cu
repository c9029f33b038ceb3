// y [M, N] = x [M, K] w [N, K]^T for up to 8 TILES rows of x, w prepacked (weight_only_gemm_pack.cu): the bytes of w are
// read once, and everything else is small beside them.
//
// The rows of w are the 16 rows of a tensor core's left operand, those of x the 8 columns of its right one. A block takes
// ROWS tiles of w; its warps share out the units (16 bytes a lane and tile), each with UNROLL of them on their way. Codes
// become 16-bit floats by rotations, masks and one product with a power of two or, VALUES, with the block scale; other
// block scales multiply the float32 sum of 32 columns. At the end the sums of the warps are added in the order of the
// warps. With more than one block along K (gridDim.y) `weight_only_gemm_sum` adds those of the blocks in their order.
//
// Macros: ELEMENT, SCALE (rows), HOME and TURNS (kernels/_weight_only.py), ALONG (0: no blocks), VALUES, SHRINK, T_X, T_OUT,
// TILES, ROWS, WARPS, UNROLL, BLOCKS (of an SM).
#include "encode.cuh"
#include "mma.cuh"
#include "weight_only.cuh"

constexpr int SUMS = 128;  // float32 sums of a tile of w and 8 rows of x

// Bits of where pair P goes home from a word turned left by `turn`, to a float of `more` bits further left (but the sign).
__device__ constexpr unsigned mask_of(int p, int turn, int more) {
  unsigned mask = 0;
  for (int bit = 0; bit < BITS; ++bit) {
    const int to = bit == BITS - 1 ? home(bit) : home(bit) + more;
    if ((turn_of(p, bit) + to - home(bit)) % 32 == turn) mask |= 0x10001u << to;
  }
  return mask;
}

template <int P, int MORE, int TURN = 0>
__device__ __forceinline__ unsigned bring_home(unsigned word) {
  constexpr unsigned MASK = mask_of(P, TURN, MORE);
  unsigned found = 0;
  if constexpr (MASK != 0) found = (TURN == 0 ? word : word << TURN % 32 | word >> (32 - TURN) % 32) & MASK;
  if constexpr (TURN < 31) found |= bring_home<P, MORE, TURN + 1>(word);
  return found;
}

// The two codes of pair P as numbers of T_X over 2^LIFT<T>; `scale` (VALUES): see lifted_scales.
template <class T>
constexpr int LIFT = Half16<T>::BIAS - Element::BIAS;
template <int P>
__device__ __forceinline__ unsigned numbers(unsigned word, unsigned scale) {
  constexpr bool WIDE = Half16<T_X>::BIAS == 127;
  if constexpr (Element::EXPONENT == 5) {
    const unsigned pair = bring_home<P, 0>(word);
    if constexpr (!WIDE) return pair;
    else return narrow2(Half16<__half>::widen(pair & 0xffffu), Half16<__half>::widen(pair >> 16));
  } else {
    const unsigned pair = bring_home<P, WIDE ? 0 : 3>(word);
    if constexpr (VALUES) return multiply2<T_X>(pair, scale);
    else return WIDE ? multiply2<T_X>(pair, POWERS2<T_X>(LIFT<T_X>)) : pair;
  }
}
// What is left to multiply the sums by, as a power of two.
constexpr int LEFT = VALUES ? SHRINK : Half16<T_X>::BIAS == 127 || Element::EXPONENT == 5 ? 0 : LIFT<__half>;

// What a lane holds of one unit.
struct Slot {
  uint4 codes[ROWS];
  unsigned scales[ROWS][SCALE_WORDS];
  uint4 x[TILES * GROUPS];  // X_AHEAD
};

// Where a lane reads: from the first of the units that it has not yet asked for, in steps of WARPS units.
struct Place {
  const uint4* codes[ROWS];
  const unsigned char* scale[ROWS];
  const T_X* x[TILES];
  int unit;
};

__device__ __forceinline__ void load_x(const Place& p, int steps, uint4* x) {
#pragma unroll
  for (int i = 0; i < TILES; ++i)
#pragma unroll
    for (int c = 0; c < GROUPS; ++c)
      x[i * GROUPS + c] = __ldg(reinterpret_cast<const uint4*>(p.x[i] + (steps * WARPS * GROUPS + c) * 32));
}

__device__ __forceinline__ void load(const Place& p, int steps, Slot& s) {
#pragma unroll
  for (int r = 0; r < ROWS; ++r) s.codes[r] = load_once(p.codes[r] + steps * WARPS * 32);
  if constexpr (ALONG != 0) {
    const int span = SPAN == UNIT ? steps * WARPS : (p.unit + steps * WARPS) / (SPAN / UNIT);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) load_scales(p.scale[r] + span * (8 * SUBS * LANE_SCALES), s.scales[r]);
  }
  if constexpr (X_AHEAD) load_x(p, steps, s.x);
}

__device__ __forceinline__ void advance(Place& p, int steps) {
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    p.codes[r] += steps * WARPS * 32;
    if constexpr (SPAN == UNIT) p.scale[r] += steps * WARPS * (8 * SUBS * LANE_SCALES);
  }
#pragma unroll
  for (int i = 0; i < TILES; ++i) p.x[i] += steps * WARPS * UNIT;
  p.unit += steps * WARPS;
}

// The scales of rows g and g + 8 of set c times 2^(LIFT - SHRINK), each in both halves of a register. The bits of an E4M3
// scale are those of a 16-bit float over 2^120 or 2^8; in one step its product could leave the range.
__device__ __forceinline__ void lifted_scales(unsigned word, int c, unsigned (&scale)[2]) {
  constexpr bool WIDE = Half16<T_X>::BIAS == 127;
  const unsigned high = c == 0 ? __byte_perm(word, 0, 0x1404) : __byte_perm(word, 0, 0x3424);  // into the high bytes
  unsigned both = (high & 0x80008000u) | (high >> (WIDE ? 4 : 1) & (WIDE ? 0x07f007f0u : 0x3f803f80u));
  both = multiply2<T_X>(both, POWERS2<T_X>(WIDE ? 120 : 8));
  both = multiply2<T_X>(both, POWERS2<T_X>(LIFT<T_X> - SHRINK));
  scale[0] = __byte_perm(both, 0, 0x1010), scale[1] = __byte_perm(both, 0, 0x3232);
}

__device__ __forceinline__ void consume(const Place& p, int steps, const Slot& s, float (&sums)[ROWS][TILES][4]) {
  uint4 x[TILES * GROUPS];
  if constexpr (!X_AHEAD) load_x(p, steps, x);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const unsigned words[4] = {s.codes[r].x, s.codes[r].y, s.codes[r].z, s.codes[r].w};
#pragma unroll
    for (int c = 0; c < GROUPS; ++c) {
      unsigned scale[2] = {0, 0};
      if constexpr (VALUES) lifted_scales(s.scales[r][0], c, scale);
      unsigned a[2][4];
      // Words of row g, words of row g + 8; pairs 0 to 3 of each.
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned first = words[GROUPS == 2 ? 2 * c + half : 2 * half], second = words[GROUPS == 2 ? 0 : 2 * half + 1];
        if constexpr (GROUPS == 2) {
          a[0][half] = numbers<0>(first, scale[half]), a[0][half + 2] = numbers<1>(first, scale[half]);
          a[1][half] = numbers<2>(first, scale[half]), a[1][half + 2] = numbers<3>(first, scale[half]);
        } else {
          a[0][half] = numbers<0>(first, scale[half]), a[0][half + 2] = numbers<1>(first, scale[half]);
          a[1][half] = numbers<0>(second, scale[half]), a[1][half + 2] = numbers<1>(second, scale[half]);
        }
      }
#pragma unroll
      for (int i = 0; i < TILES; ++i) {
        const uint4 b = X_AHEAD ? s.x[i * GROUPS + c] : x[i * GROUPS + c];
        if constexpr (ALONG == 0 || VALUES) {
          multiply_add<T_X>(sums[r][i], a[0], b.x, b.y);
          multiply_add<T_X>(sums[r][i], a[1], b.z, b.w);
        } else {
          float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
          multiply_add<T_X>(part, a[0], b.x, b.y);
          multiply_add<T_X>(part, a[1], b.z, b.w);
          const float s0 = float_scale(s.scales[r], c, 0), s1 = float_scale(s.scales[r], c, 1);
          sums[r][i][0] = __fmaf_rn(part[0], s0, sums[r][i][0]), sums[r][i][1] = __fmaf_rn(part[1], s0, sums[r][i][1]);
          sums[r][i][2] = __fmaf_rn(part[2], s1, sums[r][i][2]), sums[r][i][3] = __fmaf_rn(part[3], s1, sums[r][i][3]);
        }
      }
    }
  }
}

// fl(fl(sum times the factors of the row) + bias), rounded once more to T_OUT.
__device__ __forceinline__ T_OUT finished(float sum, float factor, const T_OUT* bias, int n) {
  const float product = __fmul_rn(__fmul_rn(sum, __uint_as_float((unsigned)(127 + LEFT) << 23)), factor);
  return store<T_OUT>(bias == nullptr ? product : __fadd_rn(product, load_float(bias[n])));
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
weight_only_gemm(const uint4* __restrict__ codes, const unsigned char* __restrict__ scale, const float* __restrict__ factor,
                 const T_X* __restrict__ x, long long x_pitch, T_OUT* __restrict__ y, long long y_pitch,
                 const T_OUT* __restrict__ bias, float* __restrict__ partial, int m, int n, int tiles, int units) {
  __shared__ float shared[WARPS][ROWS * TILES][SUMS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int start = (int)((long long)units * blockIdx.y / gridDim.y), stop = (int)((long long)units * (blockIdx.y + 1) / gridDim.y);
  Place p;
  p.unit = start + warp;
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const long long tile = min((int)blockIdx.x * ROWS + r, tiles - 1);
    p.codes[r] = codes + (tile * units + p.unit) * 32 + lane;
    p.scale[r] = scale + (tile * ((units * UNIT + SPAN - 1) / SPAN) + (SPAN == UNIT ? p.unit : 0)) * (8 * SUBS * LANE_SCALES) +
                 (lane / 4 * SUBS + lane % 4 * SUBS / 4) * LANE_SCALES;
  }
#pragma unroll
  for (int i = 0; i < TILES; ++i)  // a column without a row of x repeats the last one and is dropped
    p.x[i] = x + min(lane / 4 + 8 * i, m - 1) * x_pitch + (lane % 4 + p.unit * (UNIT / 8)) * 8;
  float sums[ROWS][TILES][4] = {};
  Slot slots[UNROLL];
  int left = (stop - p.unit + WARPS - 1) / WARPS;  // units of this warp
#pragma unroll
  for (int i = 0; i < UNROLL; ++i)
    if (i < left) load(p, i, slots[i]);
#pragma unroll 1
  for (; left >= 2 * UNROLL; left -= UNROLL, advance(p, UNROLL)) {
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
      consume(p, i, slots[i], sums);
      load(p, i + UNROLL, slots[i]);
    }
  }
#pragma unroll 1
  for (; left > 0; left -= UNROLL, advance(p, UNROLL)) {
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
      if (i < left) consume(p, i, slots[i], sums);
      if (i + UNROLL < left) load(p, i + UNROLL, slots[i]);
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int i = 0; i < TILES; ++i)
      *reinterpret_cast<float4*>(&shared[warp][r * TILES + i][lane * 4]) = make_float4(sums[r][i][0], sums[r][i][1], sums[r][i][2], sums[r][i][3]);
  __syncthreads();
  for (int at = threadIdx.x; at < ROWS * TILES * SUMS; at += WARPS * 32) {
    // Neighbouring threads take neighbouring rows of w.
    const int row = at % 16, column = at / 16 % 8, i = at / SUMS % TILES, r = at / SUMS / TILES;
    const int place = (row % 8 * 4 + column / 2) * 4 + row / 8 * 2 + column % 2;
    float sum = shared[0][r * TILES + i][place];
#pragma unroll
    for (int k = 1; k < WARPS; ++k) sum = __fadd_rn(sum, shared[k][r * TILES + i][place]);
    const int to_m = i * 8 + column, to_n = (blockIdx.x * ROWS + r) * 16 + row;
    if (to_m >= m || to_n >= n) continue;
    if (gridDim.y > 1) partial[((long long)blockIdx.y * m + to_m) * n + to_n] = sum;
    else y[to_m * y_pitch + to_n] = finished(sum, factor[to_n], bias, to_n);
  }
}

// The sums of `parts` blocks along K, added in their order.
extern "C" __global__ void __launch_bounds__(256)
weight_only_gemm_sum(const float* __restrict__ partial, const float* __restrict__ factor, T_OUT* __restrict__ y,
                     long long y_pitch, const T_OUT* __restrict__ bias, int parts, int m, int n) {
  const int at = blockIdx.x * 256 + threadIdx.x;
  if (at >= m * n) return;
  float sum = partial[at];
#pragma unroll 4
  for (int k = 1; k < parts; ++k) sum = __fadd_rn(sum, partial[(long long)k * m * n + at]);
  y[at / n * y_pitch + at % n] = finished(sum, factor[at % n], bias, at % n);
}
