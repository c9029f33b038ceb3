// NVIDIA's conversion routines, compiled for the host: an oracle of element casts. Arrays in, codes out.
#include <cstdint>

#include <cuda_runtime_api.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>

extern "C" {

void to_fp8(const float* x, uint8_t* out, int64_t n, int e5m2, int saturate) {
  auto format = e5m2 ? __NV_E5M2 : __NV_E4M3;
  auto overflow = saturate ? __NV_SATFINITE : __NV_NOSAT;
  for (int64_t i = 0; i < n; i++) out[i] = __nv_cvt_float_to_fp8(x[i], overflow, format);
}

void to_fp6(const float* x, uint8_t* out, int64_t n, int e3m2) {
  auto format = e3m2 ? __NV_E3M2 : __NV_E2M3;
  for (int64_t i = 0; i < n; i++) out[i] = __nv_cvt_float_to_fp6(x[i], format, cudaRoundNearest);
}

void to_fp4(const float* x, uint8_t* out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = __nv_cvt_float_to_fp4(x[i], __NV_E2M1, cudaRoundNearest);
}

void to_e8m0_up(const float* x, uint8_t* out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = __nv_cvt_float_to_e8m0(x[i], __NV_SATFINITE, cudaRoundPosInf);
}
}
