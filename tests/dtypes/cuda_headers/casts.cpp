// NVIDIA's conversion routines, compiled for the host: an oracle of element casts. Arrays in, arrays out.
#include <cstdint>
#include <cstring>

#include <cuda_runtime_api.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>

template <class To, class From>
static To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "one value for the other");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

#define EACH(expression) \
  for (int64_t i = 0; i < n; i++) out[i] = (expression)

// to_<format>_<source>: codes of float32 numbers, or of the bits of 16-bit ones by the routines for those.
#define CASTS(source, type, value, routine)                                                                  \
  void to_fp8_##source(const type* x, uint8_t* out, int64_t n, int e5m2, int saturate) {                     \
    auto format = e5m2 ? __NV_E5M2 : __NV_E4M3;                                                              \
    auto overflow = saturate ? __NV_SATFINITE : __NV_NOSAT;                                                  \
    EACH(__nv_cvt_##routine##_to_fp8(value, overflow, format));                                              \
  }                                                                                                          \
  void to_fp6_##source(const type* x, uint8_t* out, int64_t n, int e3m2) {                                   \
    auto format = e3m2 ? __NV_E3M2 : __NV_E2M3;                                                              \
    EACH(__nv_cvt_##routine##_to_fp6(value, format, cudaRoundNearest));                                      \
  }                                                                                                          \
  void to_fp4_##source(const type* x, uint8_t* out, int64_t n) {                                             \
    EACH(__nv_cvt_##routine##_to_fp4(value, __NV_E2M1, cudaRoundNearest));                                   \
  }

extern "C" {

CASTS(float32, float, x[i], float)
CASTS(bfloat16, uint16_t, bits<__nv_bfloat16_raw>(x[i]), bfloat16raw)
CASTS(float16, uint16_t, bits<__half_raw>(x[i]), halfraw)

void to_e8m0_float32(const float* x, uint8_t* out, int64_t n, int up, int saturate) {
  auto overflow = saturate ? __NV_SATFINITE : __NV_NOSAT;
  EACH(__nv_cvt_float_to_e8m0(x[i], overflow, up ? cudaRoundPosInf : cudaRoundZero));
}

// from_<format>: the bits of a float16 (of a bfloat16 for E8M0) that holds the value of each code.
void from_fp8(const uint8_t* x, uint16_t* out, int64_t n, int e5m2) {
  EACH(bits<uint16_t>(__nv_cvt_fp8_to_halfraw(x[i], e5m2 ? __NV_E5M2 : __NV_E4M3)));
}

void from_fp6(const uint8_t* x, uint16_t* out, int64_t n, int e3m2) {
  EACH(bits<uint16_t>(__nv_cvt_fp6_to_halfraw(x[i], e3m2 ? __NV_E3M2 : __NV_E2M3)));
}

void from_fp4(const uint8_t* x, uint16_t* out, int64_t n) {
  EACH(bits<uint16_t>(__nv_cvt_fp4_to_halfraw(x[i], __NV_E2M1)));
}

void from_e8m0(const uint8_t* x, uint16_t* out, int64_t n) { EACH(bits<uint16_t>(__nv_cvt_e8m0_to_bf16raw(x[i]))); }
}
