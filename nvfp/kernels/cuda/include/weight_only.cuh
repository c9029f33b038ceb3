// Prepacked weights (kernels/_weight_only.py says where codes and scales lie): their sizes from the macros ELEMENT, SCALE,
// HOME, TURNS and ALONG, and how a lane loads its part.
#pragma once
#include "encode.cuh"
#include "mma.cuh"
#include "pack.cuh"

using Element = Format<ELEMENT>;
using Scale = Format<SCALE>;
constexpr int BITS = Element::BITS;
constexpr int UNIT = BITS == 4 ? 64 : 32, GROUPS = UNIT / 32;      // columns of a unit, and sets of 32 in it
constexpr int SPAN = ALONG > UNIT ? ALONG : UNIT;                  // columns of one row of packed scales
constexpr int SUBS = ALONG > 0 && ALONG < 32 ? 32 / ALONG : 1;     // blocks in 32 columns
constexpr int SETS = ALONG > 0 && ALONG < UNIT ? GROUPS : 1;       // sets of 32 columns of a unit with scales of their own
constexpr bool FLOAT_SCALE = Scale::BITS == 32;
constexpr int SCALE_BYTES = Scale::BITS <= 8 ? 1 : Scale::BITS / 8;
constexpr int LANE_SCALES = 2 * SETS * SCALE_BYTES;                // bytes of scales of a lane
constexpr int SCALE_WORDS = LANE_SCALES > 4 ? LANE_SCALES / 4 : 1;

constexpr int HOMES[] = {HOME}, TURN_LIST[] = {TURNS};
__device__ constexpr int home(int bit) { return HOMES[bit]; }
__device__ constexpr int turn_of(int pair, int bit) { return TURN_LIST[pair * BITS + bit]; }
// Where bit `bit` of code `code` lies in a packed word.
__device__ constexpr int place_of(int code, int bit) { return (home(bit) + 16 * (code % 2) - turn_of(code / 2, bit) + 32) % 32; }

// 16 bytes that nobody reads again.
__device__ __forceinline__ uint4 load_once(const uint4* p) {
#ifdef __CUDA_ARCH__
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
#else
  return *p;
#endif
}

// The scales of a lane: rows g and g + 8, of one set of 32 columns or two.
__device__ __forceinline__ void load_scales(const unsigned char* p, unsigned (&words)[SCALE_WORDS]) {
  if constexpr (LANE_SCALES == 2) words[0] = __ldg(reinterpret_cast<const unsigned short*>(p));
  else if constexpr (LANE_SCALES == 4) words[0] = __ldg(reinterpret_cast<const unsigned*>(p));
  else if constexpr (LANE_SCALES == 8) *reinterpret_cast<uint2*>(words) = __ldg(reinterpret_cast<const uint2*>(p));
  else *reinterpret_cast<uint4*>(words) = __ldg(reinterpret_cast<const uint4*>(p));
}

// The scale of row g + 8 half in set c as a float. Of E8M0 a NaN is not told apart: it stands in the row's factor.
__device__ __forceinline__ float float_scale(const unsigned (&words)[SCALE_WORDS], int c, int half) {
  const int at = (SETS == 2 ? 2 * c : 0) + half;
  if constexpr (FLOAT_SCALE) {
    return __uint_as_float(words[at]);
  } else if constexpr (Scale::E8M0) {
    const unsigned bits = at == 3 ? words[0] >> 1 & 0x7f800000u : words[0] << (23 - 8 * at) & 0x7f800000u;
    return __uint_as_float(max(bits, 0x00400000u));
  } else {
    constexpr int PER = 4 / SCALE_BYTES;
    return decode<Scale>(words[at / PER] >> 8 * SCALE_BYTES * (at % PER) & Scale::MASK);
  }
}

// Two float32 rounded to bfloat16, the first in the low half.
__device__ __forceinline__ unsigned narrow2(float low, float high) {
#ifdef __CUDA_ARCH__
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  return Half16<__nv_bfloat16>::narrow(low) | Half16<__nv_bfloat16>::narrow(high) << 16;
#endif
}
