// Reductions over a warp and a block. Maxima are taken on the bits of non-negative floats as unsigned
// integers: exact, order-free, and NaN > inf > every number, so the caller decides what a NaN means.
#pragma once

__device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// The magnitude as amax counts it: NaN (and with finite=true infinity) is 0.
template <bool FINITE>
__device__ __forceinline__ unsigned counted(float x) {
  unsigned a = magnitude(x);
  return a > (FINITE ? 0x7f7fffffu : 0x7f800000u) ? 0u : a;
}

// Maximum over aligned groups of WIDTH lanes (a power of two); every lane gets it.
template <int WIDTH>
__device__ __forceinline__ unsigned lanes_max(unsigned m) {
#pragma unroll
  for (int k = WIDTH / 2; k > 0; k /= 2) {
    unsigned other = __shfl_xor_sync(0xffffffffu, m, k);
    m = m > other ? m : other;
  }
  return m;
}

// Maximum over a block of THREADS threads (a multiple of 32); thread 0 gets it. All threads must call.
template <int THREADS>
__device__ __forceinline__ unsigned block_max(unsigned m) {
  __shared__ unsigned part[THREADS / 32];
  m = lanes_max<32>(m);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = m;
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 1; i < THREADS / 32; ++i) m = m > part[i] ? m : part[i];
  }
  return m;
}

// word = max(word, m) for a float word held as bits; NaN and negative old values are replaced. Whatever the
// order of the blocks, the result is the same.
__device__ __forceinline__ void record_max(float* word, unsigned m) {
  unsigned* bits = reinterpret_cast<unsigned*>(word);
  unsigned old = *reinterpret_cast<volatile unsigned*>(bits);
  while (old < m || old > 0x7f800000u) {
    unsigned seen = atomicCAS(bits, old, m);
    if (seen == old) return;
    old = seen;
  }
}
