// Philox4x32-10: the words behind every random draw, dropout and stochastic rounding. `kernels/cpu/_philox.py` is
// the same on the CPU.
#pragma once

// The four words at a counter under a key.
__device__ __forceinline__ uint4 philox(uint4 c, unsigned k0, unsigned k1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned high0 = __umulhi(0xD2511F53u, c.x), low0 = 0xD2511F53u * c.x;
    const unsigned high1 = __umulhi(0xCD9E8D57u, c.z), low1 = 0xCD9E8D57u * c.z;
    c = {high1 ^ c.y ^ k0, low1, high0 ^ c.w ^ k1, low0};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// The words of elements 4 * group to 4 * group + 3 of call `stream` (4 * ordinal + lane) at a step.
__device__ __forceinline__ uint4 philox_group(unsigned long long group, unsigned stream, unsigned step,
                                              unsigned long long key) {
  return philox({(unsigned)group, (unsigned)(group >> 32), stream, step}, (unsigned)key, (unsigned)(key >> 32));
}
