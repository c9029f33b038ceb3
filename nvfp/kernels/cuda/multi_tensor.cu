// amax_history_update: delayed scaling for up to RECORDS modules in one launch (`kernels/multi_tensor.py`).
//
// Parallelisation: one block per tensor (blockIdx.x: record, blockIdx.y: column of its history). The table is a
// kernel argument, so nothing is copied to the device and a graph can capture the call. A module with more than
// COLUMNS tensors takes several records.

constexpr int THREADS = 128, COLUMNS = 4, RECORDS = 80;  // = multi_tensor.py's COLUMNS and RECORDS
constexpr float LARGEST = 0x1.fffffep+127f;

struct Record {
  float* history;  // [length, stride], at this record's first column
  float* scale;
  int length, stride, columns;
  float top[COLUMNS];  // fl32(fp8_max * 2^-margin)
  int unused;
};
struct Batch {
  Record at[RECORDS];
  int most_recent, unused;
};

// Largest value of a block; NaN is skipped (NaN if there is nothing else), as NumPy's fmax. All threads get it.
__device__ __forceinline__ float block_fmax(float x) {
  __shared__ float part[THREADS / 32];
#pragma unroll
  for (int k = 16; k > 0; k /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, k));
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  float top = part[0];
#pragma unroll
  for (int k = 1; k < THREADS / 32; ++k) top = fmaxf(top, part[k]);
  return top;
}

extern "C" __global__ void __launch_bounds__(THREADS) amax_history_update(const __grid_constant__ Batch batch) {
  const Record& r = batch.at[blockIdx.x];
  const int column = blockIdx.y, length = r.length;
  const long long stride = r.stride;
  if (column >= r.columns) return;
  float* history = r.history + column;
  const float newest = history[0];
  if (newest == 0.0f) return;  // the tensor was not seen in this step
  float largest = __uint_as_float(0x7fc00000u);
  for (int i = threadIdx.x; i < length; i += THREADS) largest = fmaxf(largest, history[i * stride]);
  const float amax = batch.most_recent ? newest : block_fmax(largest);
  if (threadIdx.x == 0 && amax > 0.0f && amax <= LARGEST) r.scale[column] = fminf(r.top[column] / amax, LARGEST);
  // new[i] = old[i + 1], new[length - 1] = old[0], new[0] = 0. A turn reads up to one element behind what it
  // writes, and the next turn reads only behind that, so one barrier per turn suffices.
  for (int base = 0; base < length; base += THREADS) {
    const int i = base + threadIdx.x;
    const float next = i < length - 1 ? history[(i + 1) * stride] : newest;
    __syncthreads();
    if (i < length) history[i * stride] = i == 0 ? 0.0f : next;
  }
}
