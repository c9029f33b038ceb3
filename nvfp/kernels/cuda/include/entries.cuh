// Tables of tensors that a kernel gets by value, so that nothing is copied to the device and a graph can capture the
// call. Blocks are dealt out to the tensors in order.
#pragma once

// The number of the tensor that a block belongs to: the last entry whose `first_block` is not behind it.
template <class Batch>
__device__ __forceinline__ int entry_of(const Batch& batch, unsigned block) {
  int low = 0, high = batch.count - 1;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (batch.at[middle].first_block <= (int)block) low = middle;
    else high = middle - 1;
  }
  return low;
}

#ifdef T_P
// The table of an update rule (`_entries.py`): parameters of T_P, gradients of T_G.
constexpr int THREADS = 256, PER_THREAD = 4, TURNS = 4;
constexpr int CHUNK = THREADS * PER_THREAD * TURNS;  // elements of one block
constexpr int ENTRIES = 64;

struct Entry {
  T_P* p;
  const T_G* g;
  float *m, *v, *w;  // state and w, the float32 master copy; null where a parameter has none
  long long n;
  int first_block, unused;
};
struct Batch {
  Entry at[ENTRIES];
  int count, flag;
};

// Calls four(i) where a thread may take elements i to i + 3 of the block's tensor at once, else one(k) for each of them.
template <class Four, class One>
__device__ __forceinline__ void walk(const Entry& e, Four four, One one) {
  const unsigned long long state = (unsigned long long)e.m | (unsigned long long)e.v | (unsigned long long)e.w;
  const bool aligned = state % 16 == 0 && (unsigned long long)e.p % (4 * sizeof(T_P)) == 0 &&
                       (unsigned long long)e.g % (4 * sizeof(T_G)) == 0;
  const long long start = (long long)((int)blockIdx.x - e.first_block) * CHUNK + threadIdx.x * PER_THREAD;
#pragma unroll 1
  for (int turn = 0; turn < TURNS; ++turn) {
    const long long i = start + turn * (THREADS * PER_THREAD);
    if (aligned && i + PER_THREAD <= e.n) {
      four(i);
    } else {
      for (long long k = i; k < e.n && k < i + PER_THREAD; ++k) one(k);
    }
  }
}
#endif
