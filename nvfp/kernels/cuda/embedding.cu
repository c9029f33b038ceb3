// embedding: rows of a table by index. embedding_vjp: rows of dy summed by index, without atomics on floats.
//
// The gradient in four steps, each repeating its bits:
//  1. a stable radix sort of the positions by id, 8 bits a pass (one pass for up to 256 rows, two for 65536): per
//     chunk of positions a histogram (`_count`), a scan of each digit over the chunks (`_scan`), and placement by one
//     warp per chunk in order (`_place`). Ids out of range are left out in the first pass.
//  2. `_starts`: where each row's run begins in the sorted list, by bisection.
//  3. `_walk`: the sorted list is cut into pieces of equal length; a block adds one piece from front to back. A run
//     inside one piece is finished there; the parts of a longer run go to `partial` (slot 0: begun in an earlier
//     piece; slot 1: begun here and going on).
//  4. `_rows`: each row adds its parts in order of the pieces; a row without ids gets zeros.
// Pieces (a power of two long) bound the work of a block, so a single id named a million times is no slower than a million ids.
// Bytes moved: dy once, plus 16 bytes per id and pass.
//
// Macros: T_ROW, T_ID (int or long long), W for `embedding`; SORT, T_ID for steps 1 and 2; T_IN, T_OUT, W for 3 and 4.
// W: columns per thread, 16 bytes of T_ROW or T_IN where all rows start at multiples of 16 bytes, else 1.
#include "convert.cuh"
#include "vec.cuh"

constexpr int THREADS = 128;

#ifdef T_ROW
extern "C" __global__ void __launch_bounds__(THREADS)
embedding(const T_ROW* __restrict__ table, const T_ID* __restrict__ ids, long long count, long long rows, long long width,
          T_ROW* __restrict__ y) {
  for (long long t = blockIdx.x; t < count; t += gridDim.x) {
    const long long id = ids[t];
    const bool known = id >= 0 && id < rows;
    for (long long h = threadIdx.x * (long long)W; h < width; h += THREADS * W) {
      Vec<T_ROW, W> v;
      if (known) {
        v = load_vec<T_ROW, W>(table + id * width + h);
      } else {
#pragma unroll
        for (int j = 0; j < W; ++j) v.at[j] = store<T_ROW>(__uint_as_float(0x7fc00000u));
      }
      store_vec(y + t * width + h, v);
    }
  }
}
#endif

#ifdef SORT
constexpr int DIGITS = 256;
constexpr int AHEAD = 8;  // entries that a lane loads before it places them
constexpr unsigned ALL = 0xffffffffu;

// The key of entry i, or -1 if it takes no part: from `ids` in the first pass, from `keys` (n_valid of them) later.
__device__ __forceinline__ int key_at(const T_ID* ids, const int* keys, long long i, long long end, int rows) {
  if (i >= end) return -1;
  if (ids == nullptr) return keys[i];
  const long long id = ids[i];
  return id >= 0 && id < rows ? (int)id : -1;
}

// histogram[digit * chunks + chunk]
extern "C" __global__ void __launch_bounds__(DIGITS)
embedding_count(const T_ID* ids, const int* keys, const int* valid, long long count, long long chunk, int rows,
                int shift, int* histogram) {
  __shared__ int bins[DIGITS];
  bins[threadIdx.x] = 0;
  __syncthreads();
  const long long n = ids == nullptr ? *valid : count, first = blockIdx.x * chunk;
  const long long end = first + chunk < n ? first + chunk : n;
  for (long long i = first + threadIdx.x; i < end; i += DIGITS) {
    const int key = key_at(ids, keys, i, end, rows);
    if (key >= 0) atomicAdd(&bins[(key >> shift) & (DIGITS - 1)], 1);  // integers: any order gives the same
  }
  __syncthreads();
  histogram[threadIdx.x * (long long)gridDim.x + blockIdx.x] = bins[threadIdx.x];
}

__device__ __forceinline__ int warp_scan(int x) {  // inclusive
#pragma unroll
  for (int k = 1; k < 32; k *= 2) {
    const int other = __shfl_up_sync(ALL, x, k);
    if (threadIdx.x % 32 >= k) x += other;
  }
  return x;
}

// Block d: the exclusive prefix of digit d's row of the histogram, in place, and its total.
extern "C" __global__ void __launch_bounds__(DIGITS) embedding_scan(int* histogram, long long chunks, int* totals) {
  __shared__ int ends[DIGITS / 32];
  int* row = histogram + blockIdx.x * chunks;
  int before = 0;
  for (long long base = 0; base < chunks; base += DIGITS) {
    const long long i = base + threadIdx.x;
    const int x = i < chunks ? row[i] : 0;
    int sum = warp_scan(x);
    if (threadIdx.x % 32 == 31) ends[threadIdx.x / 32] = sum;
    __syncthreads();
    int all = 0;
    for (int w = 0; w < DIGITS / 32; ++w) {
      if (w < threadIdx.x / 32) sum += ends[w];
      all += ends[w];
    }
    if (i < chunks) row[i] = before + sum - x;
    before += all;
    __syncthreads();
  }
  if (threadIdx.x == 0) totals[blockIdx.x] = before;
}

// One warp per chunk: entries go, in order, behind those of the same digit in earlier chunks and of lower digits.
extern "C" __global__ void __launch_bounds__(32)
embedding_place(const T_ID* ids, const int* keys, const int* order, int* valid, long long count, long long chunk,
                int rows, int shift, const int* histogram, const int* totals, int* keys_out, int* order_out) {
  __shared__ int next[DIGITS + 1];  // the last one: lanes that take no part
  constexpr int EACH = DIGITS / 32;
  const int lane = threadIdx.x;
  int mine[EACH], sum = 0;
#pragma unroll
  for (int k = 0; k < EACH; ++k) sum += mine[k] = totals[lane * EACH + k];
  const int through = warp_scan(sum);
  int before = through - sum;
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const int digit = lane * EACH + k;
    next[digit] = before + histogram[digit * (long long)gridDim.x + blockIdx.x];
    before += mine[k];
  }
  if (lane == 0) next[DIGITS] = 0;
  const long long n = ids == nullptr ? *valid : count, first = blockIdx.x * chunk;
  const long long end = first + chunk < n ? first + chunk : n;
  if (ids != nullptr && blockIdx.x == 0 && lane == 31) *valid = through;
  __syncwarp();
  for (long long base = first; base < end; base += 32 * AHEAD) {
    int key[AHEAD], from[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const long long i = base + 32 * k + lane;
      key[k] = key_at(ids, keys, i, end, rows);
      from[k] = ids == nullptr && i < end ? order[i] : (int)i;
    }
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      const int digit = key[k] >= 0 ? (key[k] >> shift) & (DIGITS - 1) : DIGITS;
      const unsigned peers = __match_any_sync(ALL, digit);
      const int rank = __popc(peers & ((1u << lane) - 1u)), place = next[digit] + rank;
      __syncwarp();  // all have read before the first of each digit moves it on
      if (rank == 0) next[digit] += __popc(peers);
      __syncwarp();
      if (key[k] >= 0) {
        keys_out[place] = key[k];
        order_out[place] = from[k];
      }
    }
  }
}

// starts[r] = number of sorted keys below r, for r = 0 .. rows.
extern "C" __global__ void __launch_bounds__(THREADS)
embedding_starts(const int* __restrict__ keys, const int* __restrict__ valid, int rows, int* __restrict__ starts) {
  const int n = *valid;
  for (long long r = blockIdx.x * (long long)THREADS + threadIdx.x; r <= rows; r += (long long)gridDim.x * THREADS) {
    int low = 0, high = n;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (keys[middle] < r) low = middle + 1;
      else high = middle;
    }
    starts[r] = low;
  }
}
#endif

#ifdef T_IN
constexpr int ROWS = 8;  // of a block of `embedding_rows`: most have no ids, and take no more time than their zeros

template <class O>
__device__ __forceinline__ void put(O* p, const float (&x)[W]) {
  Vec<O, W> v;
#pragma unroll
  for (int j = 0; j < W; ++j) v.at[j] = store<O>(x[j]);
  store_vec(p, v);
}

extern "C" __global__ void __launch_bounds__(THREADS)
embedding_walk(const T_IN* __restrict__ dy, const int* __restrict__ keys, const int* __restrict__ order,
               const int* __restrict__ valid, long long width, int piece, T_OUT* __restrict__ dtable,
               float* __restrict__ partial) {
  constexpr int UNROLL = 8;  // rows of dy in flight
  __shared__ int key_of[THREADS], row_of[THREADS];
  const long long n = *valid, first = blockIdx.x * (long long)piece;
  const long long last = first + piece < n ? first + piece : n;
  const long long h = (blockIdx.y * (long long)THREADS + threadIdx.x) * W;
  if (first >= last) return;
  int key = keys[first];
  bool open = first > 0 && keys[first - 1] == key;  // the run began in an earlier piece
  float total[W] = {};
  auto flush = [&](bool goes_on) {
    if (!open && !goes_on) put(dtable + key * width + h, total);
    else put(partial + (2LL * blockIdx.x + (open ? 0 : 1)) * width + h, total);
  };
  for (long long base = first; base < last; base += THREADS) {
    const int here = (int)(last - base < THREADS ? last - base : THREADS);
    __syncthreads();  // the former ones have been used
    if (threadIdx.x < here) {
      key_of[threadIdx.x] = keys[base + threadIdx.x];
      row_of[threadIdx.x] = order[base + threadIdx.x];
    }
    __syncthreads();
    for (int i = 0; i < here && h < width; i += UNROLL) {
      Vec<T_IN, W> v[UNROLL];
#pragma unroll
      for (int k = 0; k < UNROLL; ++k)  // behind the end: loaded again, not added
        v[k] = load_vec<T_IN, W>(dy + row_of[i + k < here ? i + k : here - 1] * width + h);
#pragma unroll
      for (int k = 0; k < UNROLL; ++k) {
        if (i + k >= here) break;
        if (key_of[i + k] != key) {
          flush(false);
          key = key_of[i + k];
          open = false;
#pragma unroll
          for (int j = 0; j < W; ++j) total[j] = 0.0f;
        }
#pragma unroll
        for (int j = 0; j < W; ++j) total[j] += load_float(v[k].at[j]);
      }
    }
  }
  if (h < width) flush(last < n && keys[last] == key);
}

extern "C" __global__ void __launch_bounds__(THREADS)
embedding_rows(const int* __restrict__ starts, long long rows, long long width, int piece,
               const float* __restrict__ partial, T_OUT* __restrict__ dtable) {
  const long long h = (blockIdx.y * (long long)THREADS + threadIdx.x) * W;
  const int shift = 31 - __clz(piece);  // a division for each row would cost as much as its zeros
  if (h >= width) return;
  for (long long r0 = blockIdx.x * (long long)ROWS; r0 < rows; r0 += gridDim.x * (long long)ROWS) {
    int bound[ROWS + 1];
#pragma unroll
    for (int k = 0; k <= ROWS; ++k) bound[k] = starts[r0 + k < rows ? r0 + k : rows];
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
      const int start = bound[k], end = bound[k + 1];
      const int first = start >> shift, last = end > start ? (end - 1) >> shift : first;
      if (r0 + k >= rows || (end > start && first == last)) continue;  // `_walk` has written it
      float total[W] = {};
      if (end > start) {
        for (int p = first; p <= last; ++p) {
          const Vec<float, W> v = load_vec<float, W>(partial + (2LL * p + (p == first ? 1 : 0)) * width + h);
#pragma unroll
          for (int j = 0; j < W; ++j) total[j] += v.at[j];
        }
      }
      put(dtable + (r0 + k) * width + h, total);
    }
  }
}
#endif
