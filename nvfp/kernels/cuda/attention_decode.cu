// attention_decode: softmax(scale q k^T) v of few queries over a cache of pages, with the lengths on the device;
// attention_decode_merge: the splits of its keys brought together; attention_append: new keys and values to their pages.
//
// Parallelisation: a block takes one batch entry, one group of heads, ROWS of its rows (a row is one query of one head;
// the heads of a group share the keys it reads) and one of gridDim.x splits of the keys. LANES threads hold a key, PER of
// its elements each, FLIGHT keys of keys and values loaded before the first is used; every such team keeps a running
// maximum, the sum of exp and its part of the output, and the teams meet in a fixed tree at the end. No atomics: every
// call repeats its bits, for the same number of splits.
// Bytes moved: each visible key and value once per block of rows, (Dv + 2) floats per row and split.
//
// Macros: T_IN; WIDTH (elements of one load: 16 bytes' worth or 1); LANES and ROWS for `attention_decode` alone.
#include "online.cuh"
#include "pack.cuh"

// Lengths and, for q, strides in elements. A page holds `page` tokens of all groups: [page, groups, depth or values].
struct Layout {
  long long q[3];  // of batch entry, query, head
  int queries, heads, groups, depth, values, pages, page, causal, left;
  float scale;
};

#ifdef LANES
constexpr int PER = 16, LOADS = PER / WIDTH, WARPS = 4, THREADS = 32 * WARPS, FLIGHT = ROWS > 1 ? 1 : 2;
constexpr bool AHEAD = ROWS > 1;  // the next turn's loads go out before this one is computed
constexpr int BLOCKS = sizeof(T_IN) == 2 && WIDTH > 1 ? (ROWS > 1 ? 3 : 5) : 2;  // at least, per multiprocessor
constexpr int TEAMS = 32 / LANES;  // keys of a warp at a time

// PER elements of a head as float32, 0 from `length` on.
struct Part {
  Words<T_IN, WIDTH> held[LOADS];

  __device__ __forceinline__ void load(const T_IN* x, int first, int length, bool any) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      held[i] = {};
      if (any && first + i * WIDTH < length) held[i] = load_words<T_IN, WIDTH>(x + first + i * WIDTH);
    }
  }
  // The compiler must not widen once and for all, which would take the registers that the next turn's loads need.
  __device__ __forceinline__ void stay() {
#if defined(__CUDA_ARCH__)
#pragma unroll
    for (int i = 0; i < LOADS; ++i)
#pragma unroll
      for (int j = 0; j < Words<T_IN, WIDTH>::COUNT; ++j) asm volatile("" : "+r"(held[i].at[j]));
#endif
  }
  __device__ __forceinline__ void values(float (&x)[PER]) const {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      float part[WIDTH];
      unpack(held[i], part);
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) x[i * WIDTH + j] = part[j];
    }
  }
};

// What a team has seen of one row.
struct State {
  float top, sum, out[PER];
};
__device__ __forceinline__ void meet(State& a, float top, float sum, const float (&out)[PER]) {
  const float most = a.top > top ? a.top : top, base = base_of(most);
  const float own = exp_below(a.top - base), other = exp_below(top - base);
  a.sum = a.sum * own + sum * other;
#pragma unroll
  for (int j = 0; j < PER; ++j) a.out[j] = a.out[j] * own + out[j] * other;
  a.top = most;
}

// Where a token of the batch entry lies: its page is looked up when it changes.
struct Place {
  const int* table;
  int page, size;
  long long token;  // of the cache
  int in_page;

  __device__ __forceinline__ void set(int key) {
    page = key / size;
    in_page = key - page * size;
    token = (long long)table[page] * size + in_page;
  }
  __device__ __forceinline__ void step(int keys, bool more) {
    in_page += keys;
    token += keys;
    if (in_page < size || !more) return;
    page += in_page / size;
    in_page %= size;
    token = (long long)table[page] * size + in_page;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_decode(const T_IN* __restrict__ q, const T_IN* __restrict__ keys, const T_IN* __restrict__ values,
                 const int* __restrict__ table, const int* __restrict__ starts, const int* __restrict__ fresh,
                 const __grid_constant__ Layout at, T_IN* out, float* partial) {
  __shared__ float tops[WARPS][ROWS], sums[WARPS][ROWS], outs[WARPS][ROWS][LANES * PER];
  const int share = at.heads / at.groups, rows = share * at.queries;
  const int group = blockIdx.y % at.groups, first_row = blockIdx.y / at.groups * ROWS;
  const long long entry = blockIdx.z;
  const int start = starts[entry], count = fresh[entry];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, team = lane / LANES, element = lane % LANES * PER;

  // The keys first .. last - 1 that each row sees, and those that any of them does.
  int first[ROWS], last[ROWS], low = 0x7fffffff, high = 0;
  Part query[ROWS];  // as it came: half of the registers, where it has 16 bits
  State state[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const int row = first_row + r, index = row / share, head = group * share + row % share;
    const bool real = row < rows && index < count;
    last[r] = !real ? 0 : at.causal ? start + index + 1 : start + count;
    first[r] = real && at.left >= 0 && start + index > at.left ? start + index - at.left : 0;
    if (last[r] > first[r]) low = low < first[r] ? low : first[r];
    high = high > last[r] ? high : last[r];
    query[r].load(q + entry * at.q[0] + index * at.q[1] + head * at.q[2], element, at.depth, real);
    state[r] = {-INF, 0.0f, {}};
  }
  if (low > high) low = high;

  constexpr int STEP = WARPS * TEAMS * FLIGHT;  // keys of the block per turn
  int chunk = (high - low + (int)gridDim.x - 1) / (int)gridDim.x;
  chunk = (chunk + STEP - 1) / STEP * STEP;
  // A split beyond the keys stays empty; 64 bits, as lengths near 2^31 would wrap.
  const long long wanted = low + (long long)blockIdx.x * chunk;
  const int begin = wanted < high ? (int)wanted : high, end = high - begin < chunk ? high : begin + chunk;
  const long long key_row = (long long)at.groups * at.depth, value_row = (long long)at.groups * at.values;
  const T_IN* own_keys = keys + (long long)group * at.depth;
  const T_IN* own_values = values + (long long)group * at.values;

  Place place = {table + entry * at.pages, 0, at.page, 0, 0};
  int key = begin + warp * TEAMS + team;
  if (key < end) place.set(key);
  Part k[FLIGHT], v[FLIGHT];
  auto load = [&](int at_key) {
#pragma unroll
    for (int f = 0; f < FLIGHT; ++f) {
      const bool there = at_key + f * WARPS * TEAMS < end;
      k[f].load(own_keys + place.token * key_row, element, at.depth, there);
      v[f].load(own_values + place.token * value_row, element, at.values, there);
      place.step(WARPS * TEAMS, at_key + (f + 1) * WARPS * TEAMS < end);
    }
  };
  if (AHEAD) load(key);
  for (int turn = begin; turn < end; turn += STEP) {
    if (!AHEAD) load(key);
    Part next_k, next_v;
    if (AHEAD) {
      const bool there = key + STEP < end;
      next_k.load(own_keys + place.token * key_row, element, at.depth, there);
      next_v.load(own_values + place.token * value_row, element, at.values, there);
      place.step(WARPS * TEAMS, key + 2 * STEP < end);
    }
#pragma unroll
    for (int f = 0; f < FLIGHT; ++f) {
      float x[PER], scores[ROWS];
      k[f].values(x);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        float even = 0.0f, odd = 0.0f, y[PER];
        query[r].stay();
        query[r].values(y);
#pragma unroll
        for (int j = 0; j < PER; j += 2) {
          even = fmaf(y[j], x[j], even);
          odd = fmaf(y[j + 1], x[j + 1], odd);
        }
        scores[r] = even + odd;
      }
#pragma unroll
      for (int s = LANES / 2; s > 0; s /= 2)
#pragma unroll
        for (int r = 0; r < ROWS; ++r) scores[r] += __shfl_xor_sync(ALL, scores[r], s);
      v[f].values(x);
      const int now = key + f * WARPS * TEAMS;
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        if (now < first[r] || now >= last[r] || now >= end) continue;
        const float score = scores[r] * at.scale;
        State& own = state[r];
        if (score > own.top) {  // seldom after the first keys
          const float less = exp_below(own.top - score);
          own.sum *= less;
#pragma unroll
          for (int j = 0; j < PER; ++j) own.out[j] *= less;
          own.top = score;
        }
        const float weight = exp_below(score - base_of(own.top));
        own.sum += weight;
#pragma unroll
        for (int j = 0; j < PER; ++j) own.out[j] = fmaf(weight, x[j], own.out[j]);
      }
    }
    if (AHEAD) k[0] = next_k, v[0] = next_v;
    key += STEP;
  }

#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int s = LANES; s < 32; s *= 2) {
      const float top = __shfl_xor_sync(ALL, state[r].top, s), sum = __shfl_xor_sync(ALL, state[r].sum, s);
      float other[PER];
#pragma unroll
      for (int j = 0; j < PER; ++j) other[j] = __shfl_xor_sync(ALL, state[r].out[j], s);
      meet(state[r], top, sum, other);  // the first team's result is the one that counts
    }
    if (lane < LANES) {
      if (lane == 0) tops[warp][r] = state[r].top, sums[warp][r] = state[r].sum;
#pragma unroll
      for (int j = 0; j < PER; ++j) outs[warp][r][element + j] = state[r].out[j];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS * at.values; i += THREADS) {
    const int r = i / at.values, e = i - r * at.values, row = first_row + r;
    if (row >= rows) break;
    float top = -INF, sum = 0.0f, value = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) top = fmaxf(top, tops[w][r]);
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const float factor = exp_below(tops[w][r] - base_of(top));
      sum += sums[w][r] * factor;
      value += outs[w][r][e] * factor;
    }
    const long long index = row / share, head = group * share + row % share;
    const long long line = (entry * at.queries + index) * at.heads + head;
    if (gridDim.x == 1) {
      out[line * at.values + e] = store<T_IN>(sum == 0.0f ? 0.0f : value / sum);
      continue;
    }
    float* to = partial + (line * gridDim.x + blockIdx.x) * (at.values + 2);
    to[2 + e] = value;
    if (e == 0) to[0] = top, to[1] = sum;
  }
}
#else

// A block per row (query of a head): the splits, each (maximum, sum of exp, output), in order.
constexpr int MOST_SPLITS = 64;
extern "C" __global__ void __launch_bounds__(128)
attention_decode_merge(const float* __restrict__ partial, int splits, int values, T_IN* out) {
  __shared__ float tops[MOST_SPLITS], sums[MOST_SPLITS];
  const long long line = blockIdx.x;
  const int stride = values + 2;
  const float* from = partial + line * splits * stride;
  for (int s = threadIdx.x; s < splits; s += blockDim.x) tops[s] = from[s * stride], sums[s] = from[s * stride + 1];
  __syncthreads();
  float top = -INF, sum = 0.0f;
  for (int s = 0; s < splits; ++s) top = fmaxf(top, tops[s]);
  const float base = base_of(top);
  for (int s = 0; s < splits; ++s) sum += sums[s] * exp_below(tops[s] - base);
  for (int e = threadIdx.x; e < values; e += blockDim.x) {
    float value = 0.0f;
#pragma unroll 8  // so many loads are in flight
    for (int s = 0; s < splits; ++s) value += from[s * stride + 2 + e] * exp_below(tops[s] - base);
    out[line * values + e] = store<T_IN>(sum == 0.0f ? 0.0f : value / sum);
  }
}

// Strides in elements: of batch entry, token, group.
struct Fresh {
  long long k[3], v[3];
  int tokens, groups, depth, values, pages, page;
};

// blockIdx.y is a batch entry; threads go over its tokens' keys and values, WIDTH elements at a time.
extern "C" __global__ void __launch_bounds__(256)
attention_append(const T_IN* __restrict__ k, const T_IN* __restrict__ v, T_IN* keys, T_IN* values,
                 const int* __restrict__ table, const int* __restrict__ starts, const int* __restrict__ fresh,
                 const __grid_constant__ Fresh at) {
  const long long entry = blockIdx.y;
  const int start = starts[entry], count = fresh[entry] < at.tokens ? fresh[entry] : at.tokens;
  const int of_key = at.groups * at.depth / WIDTH, of_token = of_key + at.groups * at.values / WIDTH;
  const long long all = (long long)count * of_token, stride = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += stride) {
    const int token = (int)(i / of_token), rest = (int)(i - (long long)token * of_token);
    const bool key = rest < of_key;
    const int length = key ? at.depth : at.values, element = (key ? rest : rest - of_key) * WIDTH;
    const int group = element / length, inside = element - group * length, position = start + token;
    const long long line = (long long)table[entry * at.pages + position / at.page] * at.page + position % at.page;
    const T_IN* from = key ? k + entry * at.k[0] + token * at.k[1] + group * at.k[2] + inside
                           : v + entry * at.v[0] + token * at.v[1] + group * at.v[2] + inside;
    T_IN* to = (key ? keys : values) + (line * at.groups + group) * length + inside;
    keep_words(to, load_words<T_IN, WIDTH>(from));
  }
}
#endif
