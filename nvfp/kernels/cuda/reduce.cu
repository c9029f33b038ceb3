// reduce: sums, products, extrema, their positions and logic over rows or columns.
//
// Sums and products of floats are balanced binary trees over the index: neighbours first, an odd one passes on. A
// missing element is the identity of the operation (-0 for sums), which changes nothing, so a tree node over an
// aligned block of a power of two has one value wherever blocks, warps and stages are cut. Hence the bits depend
// neither on the launch nor on the device, and further stages just continue the tree over the partial results.
//
// reduce_rows: x[row, i], elements of a row adjacent. A group of LANES x WARPS threads takes a segment of
//   8 * LANES * STEPS * WARPS elements: 8 neighbours per lane and step (the tree's lowest levels), then lanes, then
//   steps, then warps.
// reduce_columns: x[batch, i, column], columns adjacent. A thread takes PER columns of 16 rows; the block's y
//   direction continues the tree in shared memory.
// Bytes moved: sizeof(T_IN) per element once; partial results add 1/64 to 1/16384 of it.
//
// Macros: T_IN, T_ACC (float, double, int for bools, or a 64-bit integer), T_OUT (T_ACC while partial), OP, SQUARE,
// FIRST (x holds elements, not partial results), LAST (finish), MEAN; rows: LANES, STEPS, WARPS, ALIGNED;
// columns: PER.
#include "convert.cuh"
#include "vec.cuh"

#define SUM 0
#define PROD 1
#define MAX 2
#define MIN 3
#define ALL 4
#define ANY 5
#define ARGMAX 6
#define ARGMIN 7
#define POSITION (OP >= ARGMAX)

typedef T_IN In;
constexpr int THREADS = 256;
template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;
template <class A> constexpr bool is_half = same<A, __half> || same<A, __nv_bfloat16>;
[[maybe_unused]] constexpr bool FLOATING = same<T_ACC, float> || same<T_ACC, double>;

// Integer sums: a missing element is a zero that goes through `item` like the others. Choosing between its 64-bit
// square and zero instead makes ptxas 13.0 (sm_90a) clear the register pair with CS2R and predicate the multiply; it
// then lets the sum read the pair 5 cycles later, one too few when the multiply is off, and stale bits are added.
[[maybe_unused]] constexpr bool ZERO_IS_IDENTITY = !FLOATING && OP == SUM;

struct Item {
  T_ACC value;
#if POSITION
  long long index;  // -1: no element
#endif
};

template <class A>
__device__ __forceinline__ A limit(bool highest) {
  if constexpr (FLOATING) {
    const A infinity = (A)__int_as_float(0x7f800000);
    return highest ? infinity : -infinity;
  } else {
    const A lowest = same<A, unsigned long long> ? (A)0 : (A)(1ull << (8 * sizeof(A) - 1));
    return highest ? ~lowest : lowest;
  }
}

__device__ __forceinline__ Item identity() {
#if POSITION
  return {(T_ACC)0, -1};
#else
  switch (OP) {
    case PROD: case ALL: return {(T_ACC)1};
    case MAX: return {limit<T_ACC>(false)};
    case MIN: return {limit<T_ACC>(true)};
    case ANY: return {(T_ACC)0};
    default: return {FLOATING ? -(T_ACC)0 : (T_ACC)0};  // -0 + x is x, for x = -0 too
  }
#endif
}

__device__ __forceinline__ Item join(const Item& a, const Item& b) {
#if POSITION
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  bool first;  // whether a stays
  if (a.index < 0 || b.index < 0) first = b.index < 0;
  else if (a_nan || b_nan) first = a_nan && (!b_nan || a.index < b.index);
  else if (a.value == b.value) first = a.index < b.index;
  else first = OP == ARGMAX ? a.value > b.value : a.value < b.value;
  return first ? a : b;
#else
  const T_ACC p = a.value, q = b.value;
  switch (OP) {
    case PROD: return {p * q};
    case MAX: return {p >= q || p != p ? p : q};
    case MIN: return {p <= q || p != p ? p : q};
    case ALL: return {(T_ACC)(p != (T_ACC)0 && q != (T_ACC)0)};
    case ANY: return {(T_ACC)(p != (T_ACC)0 || q != (T_ACC)0)};
    default: return {p + q};
  }
#endif
}

// Number `at` of a reduction as an Item: an element, or a partial result whose position is indices[base + at * step].
template <class A>
__device__ __forceinline__ Item item(A x, long long at, const long long* indices, long long base, long long step = 1) {
  T_ACC value;
  if constexpr (FIRST && (OP == ALL || OP == ANY)) {
    if constexpr (is_half<A>) value = (T_ACC)(load_float(x) != 0.0f);
    else value = (T_ACC)(x != (A)0);
  } else if constexpr (is_half<A>) value = (T_ACC)load_float(x);
  else value = (T_ACC)x;
  if (SQUARE) value = value * value;
#if POSITION
  return {value, FIRST ? at : indices[base + at * step]};
#else
  return {value};
#endif
}

__device__ __forceinline__ Item from_lane(const Item& a, int mask) {
#if POSITION
  return {__shfl_xor_sync(0xffffffffu, a.value, mask), __shfl_xor_sync(0xffffffffu, a.index, mask)};
#else
  return {__shfl_xor_sync(0xffffffffu, a.value, mask)};
#endif
}

// Pairs neighbours of a[0..N-1], level by level.
template <int N>
__device__ __forceinline__ Item tree(Item (&a)[N]) {
#pragma unroll
  for (int k = 1; k < N; k *= 2)
#pragma unroll
    for (int j = 0; j + k < N; j += 2 * k) a[j] = join(a[j], a[j + k]);
  return a[0];
}

// Writes a finished or a partial result.
template <class A>
__device__ __forceinline__ void put(const Item& a, A* y, long long* positions, long long at, long long count) {
#if POSITION
  if (LAST) {
    y[at] = (A)a.index;
  } else {
    y[at] = (A)a.value;
    positions[at] = a.index;
  }
#else
  if constexpr (same<A, bool>) y[at] = a.value != (T_ACC)0;
  else if constexpr (MEAN && FLOATING) {
    const T_ACC mean = a.value / (T_ACC)count;
    if constexpr (is_half<A>) y[at] = store<A>((float)mean);  // T_ACC is float here
    else y[at] = (A)mean;
  } else if constexpr (MEAN) y[at] = (A)((double)a.value / (double)count);
  else if constexpr (is_half<A>) y[at] = store<A>((float)a.value);
  else y[at] = (A)a.value;
#endif
}

#ifdef LANES
constexpr bool ORDERED = FLOATING && (OP == SUM || OP == PROD);  // where the tree's shape shows in the result

// x[row * row_stride + i] for i < n; y[row * segments + segment].
extern "C" __global__ void __launch_bounds__(THREADS)
reduce_rows(const T_IN* __restrict__ x, const long long* __restrict__ indices, T_OUT* __restrict__ y,
            long long* __restrict__ positions, long long results, long long segments, long long n,
            long long row_stride, long long count) {
  constexpr int GROUP = LANES * WARPS, STEP = LANES * 8;
  static_assert(WARPS == 1 || LANES == 32, "several warps only of whole ones");
  const long long result = ((long long)blockIdx.x * THREADS + threadIdx.x) / GROUP;
  const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES % WARPS;
  const long long row = result / segments, segment = result - row * segments;
  const T_IN* from = x + row * row_stride;
  const long long start = (segment * WARPS + warp) * (STEPS * STEP) + lane * 8;
  // Threads without a result take part in the shuffles with nothing.
  const long long end = result < results ? n : 0;

  Item total[STEPS];
  constexpr int BATCH = STEPS * sizeof(T_IN) > 16 ? 16 / sizeof(T_IN) : STEPS;  // 128 bytes in flight per thread
#pragma unroll
  for (int b = 0; b < STEPS; b += BATCH) {
    const long long at = start + b * STEP;
    if (ALIGNED && at + (BATCH - 1) * STEP + 8 <= end) {
      Vec<T_IN, 8> v[BATCH];
#pragma unroll
      for (int s = 0; s < BATCH; ++s) v[s] = load_vec<T_IN, 8>(from + at + s * STEP);
#pragma unroll
      for (int s = 0; s < BATCH; ++s) {
        Item a[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) a[j] = item(v[s].at[j], at + s * STEP + j, indices, row * n);
        total[b + s] = tree(a);
      }
    } else {
#pragma unroll
      for (int s = 0; s < BATCH; ++s) {
        Item a[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const long long k = at + s * STEP + j;
          a[j] = ZERO_IS_IDENTITY ? item(k < end ? from[k] : In{}, k, indices, row * n)
                 : k < end        ? item(from[k], k, indices, row * n)
                                  : identity();
        }
        total[b + s] = tree(a);
      }
    }
  }
  if (!ORDERED) total[0] = tree(total);
#pragma unroll
  for (int s = 0; s < (ORDERED ? STEPS : 1); ++s)
#pragma unroll
    for (int k = 1; k < LANES; k *= 2) total[s] = join(total[s], from_lane(total[s], k));
  Item node = ORDERED ? tree(total) : total[0];

  if (WARPS > 1) {
    __shared__ Item part[THREADS / 32];
    if (lane == 0) part[threadIdx.x / 32] = node;
    __syncthreads();
    Item a[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; ++w) a[w] = part[threadIdx.x / GROUP * WARPS + w];
    node = tree(a);
  }
  if (threadIdx.x % GROUP == 0 && result < results) put(node, y, positions, result, count);
}
#endif

#ifdef PER
constexpr int ROWS = 16;

// Tree over N rows from `p` on, of which `left` exist.
template <int N>
__device__ __forceinline__ void rows_tree(Item (&a)[PER], const T_IN* p, long long stride, long long at, int left,
                                          const long long* indices, long long base, long long columns) {
  if constexpr (N == 1) {
    if (left > 0 || ZERO_IS_IDENTITY) {
      Vec<T_IN, PER> v;
      if (left > 0) {
        v = load_vec<T_IN, PER>(p);
      } else {
#pragma unroll
        for (int j = 0; j < PER; ++j) v.at[j] = In{};
      }
#pragma unroll
      for (int j = 0; j < PER; ++j) a[j] = item(v.at[j], at, indices, base + j, columns);
    } else {
#pragma unroll
      for (int j = 0; j < PER; ++j) a[j] = identity();
    }
  } else {
    Item b[PER];
    rows_tree<N / 2>(a, p, stride, at, left, indices, base, columns);
    rows_tree<N / 2>(b, p + N / 2 * stride, stride, at + N / 2, left - N / 2, indices, base, columns);
#pragma unroll
    for (int j = 0; j < PER; ++j) a[j] = join(a[j], b[j]);
  }
}

// x[batch * batch_stride + i * row_stride + column] for i < n; y[(batch * segments + segment) * columns + column].
// Four blocks per multiprocessor where the 16 rows of loads fit into 64 registers: more of them in flight.
extern "C" __global__ void __launch_bounds__(THREADS, PER * sizeof(Item) <= 16 && PER * sizeof(T_IN) <= 8 ? 4 : 2)
reduce_columns(const T_IN* __restrict__ x, const long long* __restrict__ indices, T_OUT* __restrict__ y,
               long long* __restrict__ positions, unsigned segments, unsigned tiles, long long n, long long columns,
               long long batch_stride, long long row_stride, long long count) {
  __shared__ Item part[PER][THREADS];
  const unsigned outer = blockIdx.x / tiles, tile = blockIdx.x - outer * tiles;
  const unsigned batch = outer / segments, segment = outer - batch * segments;
  const long long column = ((long long)tile * blockDim.x + threadIdx.x) * PER;
  const long long at = ((long long)segment * blockDim.y + threadIdx.y) * ROWS;
  const long long rest = column < columns ? n - at : 0;
  const int left = rest < ROWS ? (int)(rest < 0 ? 0 : rest) : ROWS;

  Item a[PER];
  const T_IN* p = x + batch * batch_stride + at * row_stride + column;
  const long long base = batch * n * columns + column;
  if (left == ROWS) rows_tree<ROWS>(a, p, row_stride, at, ROWS, indices, base, columns);
  else rows_tree<ROWS>(a, p, row_stride, at, left, indices, base, columns);

  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  if (blockDim.y > 1) {
#pragma unroll
    for (int j = 0; j < PER; ++j) part[j][thread] = a[j];
    for (int k = 1; k < blockDim.y; k *= 2) {
      __syncthreads();
      if (threadIdx.y % (2 * k) == 0 && threadIdx.y + k < blockDim.y) {
#pragma unroll
        for (int j = 0; j < PER; ++j) part[j][thread] = join(part[j][thread], part[j][thread + k * blockDim.x]);
      }
    }
#pragma unroll
    for (int j = 0; j < PER; ++j) a[j] = part[j][thread];  // of y = 0: written by this very thread
  }
  if (threadIdx.y == 0 && column < columns) {
#pragma unroll
    for (int j = 0; j < PER; ++j) put(a[j], y, positions, outer * columns + column + j, count);
  }
}
#endif
