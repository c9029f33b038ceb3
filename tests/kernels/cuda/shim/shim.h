// Runs CUDA kernels on the CPU, one thread block at a time: every thread is a fiber, and barriers and shuffles
// switch between them. A barrier that some thread never reaches is found and reported. Slow; for small shapes.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __restrict__
#define __grid_constant__

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace shim {
struct Barrier { int count = 0; unsigned generation = 0; };
struct Fiber { ucontext_t context; std::unique_ptr<char[]> stack; bool done; uint3 index; };
static std::vector<Fiber> fibers;
static std::vector<Barrier> warps;
static std::vector<uint64_t> slots;
static Barrier block;
static ucontext_t scheduler;
static size_t current, moved;

inline void yield() { swapcontext(&fibers[current].context, &scheduler); threadIdx = fibers[current].index; }
inline void wait(Barrier& b, int size) {
  unsigned generation = b.generation;
  if (++b.count == size) { b.count = 0; ++b.generation; ++moved; return; }
  while (b.generation == generation) yield();
}
inline int lanes() { return (int)std::min<size_t>(32, fibers.size() - current / 32 * 32); }
template <class T, class U> inline T bits(U u) {
  static_assert(sizeof(T) == sizeof(U), "equal sizes");
  T t;
  std::memcpy(&t, &u, sizeof t);
  return t;
}
template <class T> inline T exchange(T value, int from) {
  static_assert(sizeof(T) <= 8, "a register");
  std::memcpy(&slots[current], &value, sizeof value);
  wait(warps[current / 32], lanes());
  T got;
  std::memcpy(&got, &slots[current / 32 * 32 + from % 32], sizeof got);
  wait(warps[current / 32], lanes());
  return got;
}

// Calls f(args...) with each argument read from its address; sizes[i] must be what the kernel declares.
template <class... A, size_t... I>
inline bool call(void (*f)(A...), void** args, const long* sizes, std::index_sequence<I...>, bool check) {
  bool right[] = {true, sizes[I] == (long)sizeof(std::remove_cv_t<std::remove_reference_t<A>>)...};
  if (check) return std::all_of(std::begin(right), std::end(right), [](bool r) { return r; });
  f(*static_cast<std::remove_cv_t<std::remove_reference_t<A>>*>(args[I])...);
  return true;
}
struct Job { void (*run)(void*); void* data; };
static Job job;
inline void enter() { job.run(job.data); fibers[current].done = true; ++moved; swapcontext(&fibers[current].context, &scheduler); }

inline int run_block() {
  constexpr size_t STACK = 256 << 10;
  block = Barrier();
  warps.assign((fibers.size() + 31) / 32, Barrier());
  slots.assign(fibers.size() + 31, 0);
  for (size_t t = 0; t < fibers.size(); ++t) {
    Fiber& f = fibers[t];
    f.done = false;
    f.index = {(unsigned)(t % blockDim.x), (unsigned)(t / blockDim.x % blockDim.y), (unsigned)(t / blockDim.x / blockDim.y)};
    if (!f.stack) f.stack.reset(new char[STACK]);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = nullptr;
    makecontext(&f.context, enter, 0);
  }
  for (size_t alive = fibers.size(); alive;) {
    moved = 0;
    for (current = 0; current < fibers.size(); ++current) {
      if (fibers[current].done) continue;
      threadIdx = fibers[current].index;
      swapcontext(&scheduler, &fibers[current].context);
      alive -= fibers[current].done;
    }
    if (!moved) return 2;  // every thread waits: a barrier that not all threads reach
  }
  return 0;
}

template <class... A>
inline int launch(void (*f)(A...), void** args, const long* sizes, int count, const unsigned* grid, const unsigned* blocks) {
  if (count != (int)sizeof...(A) || !call(f, args, sizes, std::index_sequence_for<A...>{}, true)) return 1;
  struct Bound { void (*f)(A...); void** args; const long* sizes; } bound{f, args, sizes};
  job = {[](void* p) {
           Bound* b = static_cast<Bound*>(p);
           call(b->f, b->args, b->sizes, std::index_sequence_for<A...>{}, false);
         }, &bound};
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {blocks[0], blocks[1], blocks[2]};
  fibers = std::vector<Fiber>((size_t)blocks[0] * blocks[1] * blocks[2]);
  for (unsigned z = 0; z < grid[2]; ++z)
    for (unsigned y = 0; y < grid[1]; ++y)
      for (unsigned x = 0; x < grid[0]; ++x) {
        blockIdx = {x, y, z};
        if (int error = run_block()) return error;
      }
  return 0;
}
}  // namespace shim

// Barriers and warps
inline void __syncthreads() { shim::wait(shim::block, (int)shim::fibers.size()); }
inline void __syncwarp(unsigned = 0xffffffffu) { shim::wait(shim::warps[shim::current / 32], shim::lanes()); }
template <class T> inline T __shfl_xor_sync(unsigned, T v, int k, int = 32) { return shim::exchange(v, (int)(shim::current % 32) ^ k); }
template <class T> inline T __shfl_sync(unsigned, T v, int lane, int = 32) { return shim::exchange(v, lane); }
template <class T> inline T __shfl_down_sync(unsigned, T v, int k, int = 32) {
  int lane = (int)(shim::current % 32);
  return shim::exchange(v, lane + k < 32 ? lane + k : lane);
}
template <class T> inline T __shfl_up_sync(unsigned, T v, int k, int = 32) {
  int lane = (int)(shim::current % 32);
  return shim::exchange(v, lane >= k ? lane - k : lane);
}
template <class T> inline unsigned __match_any_sync(unsigned, T v) {
  unsigned peers = 0;
  for (int lane = 0; lane < shim::lanes(); ++lane) peers |= (unsigned)(shim::exchange(v, lane) == v) << lane;
  return peers;
}
inline int __any_sync(unsigned, int v) {
  int any = 0;
  for (int lane = 0; lane < shim::lanes(); ++lane) any |= shim::exchange(v, lane);
  return any != 0;
}
template <class T> inline T atomicMax(T* p, T v) { T old = *p; *p = std::max(old, v); return old; }
template <class T> inline T atomicAdd(T* p, T v) { T old = *p; *p = old + v; return old; }
template <class T> inline T atomicOr(T* p, T v) { T old = *p; *p = old | v; return old; }
template <class T> inline T atomicCAS(T* p, T expected, T v) { T old = *p; if (old == expected) *p = v; return old; }
template <class T> inline T __ldg(const T* p) { return *p; }

// Bits and arithmetic, one IEEE operation each (compile with -ffp-contract=off)
inline unsigned __float_as_uint(float f) { return shim::bits<unsigned>(f); }
inline float __uint_as_float(unsigned u) { return shim::bits<float>(u); }
inline int __float_as_int(float f) { return shim::bits<int>(f); }
inline float __int_as_float(int i) { return shim::bits<float>(i); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmaf_rd(float a, float b, float c) {
  volatile float x = a, y = b, z = c;
  std::fesetround(FE_DOWNWARD);
  volatile float sum = std::fma(x, y, z);
  std::fesetround(FE_TONEAREST);
  return sum;
}
inline float __fmaf_rz(float a, float b, float c) {
  volatile float x = a, y = b, z = c;
  std::fesetround(FE_TOWARDZERO);
  volatile float sum = std::fma(x, y, z);
  std::fesetround(FE_TONEAREST);
  return sum;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline void sincospi(double x, double* s, double* c) { *s = std::sin(M_PI * x), *c = std::cos(M_PI * x); }
inline void sincospif(float x, float* s, float* c) { *s = (float)std::sin(M_PI * x), *c = (float)std::cos(M_PI * x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline float __saturatef(float x) { return x > 0.0f ? std::min(x, 1.0f) : 0.0f; }  // NaN is 0
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t both = (uint64_t)b << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) r |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return r;
}
inline unsigned __vmaxu2(unsigned a, unsigned b) {
  return std::max(a & 0xffff0000u, b & 0xffff0000u) | std::max(a & 0xffffu, b & 0xffffu);
}
inline unsigned __vminu2(unsigned a, unsigned b) {
  return std::min(a & 0xffff0000u, b & 0xffff0000u) | std::min(a & 0xffffu, b & 0xffffu);
}
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
template <class F, class X> inline F shim_toward_zero(X x) {
  F y = (F)x;
  return std::isfinite((double)x) && std::fabs((long double)y) > std::fabs((long double)x) ? std::nextafter(y, (F)0) : y;
}
inline float __double2float_rz(double x) { return shim_toward_zero<float>(x); }
inline float __ll2float_rz(long long x) { return shim_toward_zero<float>(x); }
inline float __ull2float_rz(unsigned long long x) { return shim_toward_zero<float>(x); }
using std::max;
using std::min;
