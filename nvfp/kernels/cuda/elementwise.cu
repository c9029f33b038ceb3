// elementwise: one op of `elementwise_table` over operands of any types and strides, broadcast.
//
// Values widen to the compute type, EXPR gives the result, which rounds once to T_OUT. With -fmad=false every
// operation of EXPR is the one that the CPU does; libm functions are CUDA's own (a few ulp).
// Parallelisation: a thread takes UNROLL packs of PER neighbours of the last collapsed axis (up to 16 bytes per
// load). It loads all before it stores, and an element is read and written by one thread, so the output may
// be one of the operands: hence no __restrict__ and no read-only path.
// Bytes moved: each operand once (a broadcast one from the caches), the output once.
//
// Macros: ARITY, EXPR (of a, b, c), T_ACC, ARG_A ARG_B ARG_C (parameters: `const element*`, or T_ACC for a scalar),
// T_OUT, RANK, PER, UNROLL, INDEX (unsigned type that can count the packs).
#include "convert.cuh"
#include "vec.cuh"

typedef T_ACC T;
constexpr int THREADS = 256;
template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;
template <class A> constexpr bool is_half = same<A, __half> || same<A, __nv_bfloat16>;

// What the table's expressions use. Overloads on integers are exact; the float forms are NumPy's, step by step.
namespace nv {
typedef long long i64;
typedef unsigned long long u64;

template <class A> __device__ __forceinline__ A maximum(A a, A b) { return a >= b || a != a ? a : b; }
template <class A> __device__ __forceinline__ A minimum(A a, A b) { return a <= b || a != a ? a : b; }
template <class A> __device__ __forceinline__ A sign(A a) { return a != a ? a : A((a > A(0)) - (a < A(0))); }
__device__ __forceinline__ u64 sign(u64 a) { return a != 0; }
__device__ __forceinline__ float abs(float a) { return fabsf(a); }
__device__ __forceinline__ double abs(double a) { return fabs(a); }
__device__ __forceinline__ int abs(int a) { return a; }  // of bools
__device__ __forceinline__ i64 abs(i64 a) { return a < 0 ? (i64)(0 - (u64)a) : a; }
__device__ __forceinline__ u64 abs(u64 a) { return a; }

__device__ __forceinline__ float floor(float a) { return floorf(a); }
__device__ __forceinline__ double floor(double a) { return ::floor(a); }
__device__ __forceinline__ float ceil(float a) { return ceilf(a); }
__device__ __forceinline__ double ceil(double a) { return ::ceil(a); }
__device__ __forceinline__ float trunc(float a) { return truncf(a); }
__device__ __forceinline__ double trunc(double a) { return ::trunc(a); }
__device__ __forceinline__ float round(float a) { return rintf(a); }
__device__ __forceinline__ double round(double a) { return rint(a); }
template <class A> __device__ __forceinline__ A floor(A a) { return a; }
template <class A> __device__ __forceinline__ A ceil(A a) { return a; }
template <class A> __device__ __forceinline__ A trunc(A a) { return a; }
template <class A> __device__ __forceinline__ A round(A a) { return a; }

// Python's division: the quotient rounds down, the remainder has the divisor's sign.
template <class A>
__device__ __forceinline__ A remainder(A a, A b) {
  A mod = fmod(a, b);
  if (b == A(0)) return mod;  // NaN
  if (mod == A(0)) return copysign(A(0), b);
  return (b < A(0)) != (mod < A(0)) ? mod + b : mod;
}
template <class A>
__device__ __forceinline__ A floor_divide(A a, A b) {
  if (b == A(0)) return a / b;
  A mod = fmod(a, b), div = (a - mod) / b;
  if (mod != A(0) && (b < A(0)) != (mod < A(0))) div -= A(1);
  if (div == A(0)) return copysign(A(0), a / b);
  A down = nv::floor(div);
  return div - down > A(0.5) ? down + A(1) : down;
}
__device__ __forceinline__ i64 floor_divide(i64 a, i64 b) {
  if (b == 0) return 0;
  if (b == -1) return (i64)(0 - (u64)a);  // the hardware traps nothing, C++ leaves INT64_MIN / -1 undefined
  i64 q = a / b;
  return q * b != a && (a < 0) != (b < 0) ? q - 1 : q;
}
__device__ __forceinline__ i64 remainder(i64 a, i64 b) {
  if (b == 0 || b == -1) return 0;
  i64 r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
__device__ __forceinline__ u64 floor_divide(u64 a, u64 b) { return b == 0 ? 0 : a / b; }
__device__ __forceinline__ u64 remainder(u64 a, u64 b) { return b == 0 ? 0 : a % b; }

__device__ __forceinline__ float power(float a, float b) { return powf(a, b); }
__device__ __forceinline__ double power(double a, double b) { return pow(a, b); }
__device__ __forceinline__ u64 power(u64 a, u64 b) {
  u64 result = 1;
  for (; b != 0; b >>= 1, a *= a)
    if (b & 1) result *= a;
  return result;
}
__device__ __forceinline__ i64 power(i64 a, i64 b) {
  if (b >= 0) return (i64)power((u64)a, (u64)b);
  return a == 1 || (a == -1 && !(b & 1)) ? 1 : a == -1 ? -1 : 0;
}

// Shifts by 64 or more, or by a negative count, shift everything out.
template <class A>
__device__ __forceinline__ A left_shift(A a, A b) { return (u64)b < 64 ? A((u64)a << b) : A(0); }
__device__ __forceinline__ u64 right_shift(u64 a, u64 b) { return b < 64 ? a >> b : 0; }
__device__ __forceinline__ i64 right_shift(i64 a, i64 b) { return (u64)b < 64 ? a >> b : a < 0 ? -1 : 0; }

template <class A>
__device__ __forceinline__ A sigmoid(A a) {
  A t = exp(-nv::abs(a));
  return (a >= A(0) ? A(1) : t) / (A(1) + t);
}
template <class A>
__device__ __forceinline__ A logaddexp(A a, A b) {
  if (a == b) return a + A(0.69314718055994530942);  // also infinities of one sign
  A d = a - b;
  if (d > A(0)) return a + log1p(exp(-d));
  return d <= A(0) ? b + log1p(exp(d)) : d;  // NaN
}
}  // namespace nv

template <class A>
__device__ __forceinline__ T widen(A x) {
  if constexpr (same<T, float> || is_half<A>) return (T)load_float(x);
  else return (T)x;
}

template <class R>
__device__ __forceinline__ T_OUT narrow(R r) {
  if constexpr (same<T_OUT, bool>) return r != R(0);
  else if constexpr (is_half<T_OUT>) return store<T_OUT>((float)r);  // R is float or bool; float64 goes through cast
  else return (T_OUT)r;
}

template <class A>
__device__ __forceinline__ void fetch(T (&v)[PER], const A* p, long long at, long long step) {
  if (PER > 1 && step == 1) {
    const Vec<A, PER> x = *reinterpret_cast<const Vec<A, PER>*>(p + at);
#pragma unroll
    for (int j = 0; j < PER; ++j) v[j] = widen(x.at[j]);
  } else {  // one element, or one for the whole pack
    const T x = widen(p[at]);
#pragma unroll
    for (int j = 0; j < PER; ++j) v[j] = x;
  }
}
__device__ __forceinline__ void fetch(T (&v)[PER], T x, long long, long long) {
#pragma unroll
  for (int j = 0; j < PER; ++j) v[j] = x;
}
template <class A>
__device__ __forceinline__ T one(const A* p, long long at) { return widen(p[at]); }
__device__ __forceinline__ T one(T x, long long) { return x; }

__device__ __forceinline__ T_OUT compute(const T a, const T b, const T c) { return narrow(EXPR); }

// Lengths of the collapsed axes (the last one in packs) and strides in elements of each operand and the output.
struct Walk {
  long long shape[RANK];
  long long strides[ARITY + 1][RANK];

  __device__ __forceinline__ void offsets(INDEX pack, long long (&at)[ARITY + 1]) const {
#pragma unroll
    for (int k = 0; k <= ARITY; ++k) at[k] = 0;
#pragma unroll
    for (int d = RANK - 1; d >= 0; --d) {
      const INDEX length = (INDEX)shape[d], q = d > 0 ? pack / length : 0, i = pack - q * length;
#pragma unroll
      for (int k = 0; k <= ARITY; ++k) at[k] += (long long)i * strides[k][d] * (d == RANK - 1 ? PER : 1);
      pack = q;
    }
  }
};

#if ARITY == 1
#define OPERANDS ARG_A x0
#define NAMES x0
#elif ARITY == 2
#define OPERANDS ARG_A x0, ARG_B x1
#define NAMES x0, x1
#else
#define OPERANDS ARG_A x0, ARG_B x1, ARG_C x2
#define NAMES x0, x1, x2
#endif

struct Pack {
  T a[PER], b[PER], c[PER];  // those that EXPR does not name cost nothing
  long long at[ARITY + 1];

  __device__ __forceinline__ void load(OPERANDS, const Walk& walk, INDEX i) {
    walk.offsets(i, at);
    fetch(a, x0, at[0], walk.strides[0][RANK - 1]);
#if ARITY > 1
    fetch(b, x1, at[1], walk.strides[1][RANK - 1]);
#endif
#if ARITY > 2
    fetch(c, x2, at[2], walk.strides[2][RANK - 1]);
#endif
  }
  __device__ __forceinline__ void store_to(T_OUT* out) const {
    Vec<T_OUT, PER> y;
#pragma unroll
    for (int j = 0; j < PER; ++j) y.at[j] = compute(a[j], ARITY > 1 ? b[j] : a[j], ARITY > 2 ? c[j] : a[j]);
    *reinterpret_cast<Vec<T_OUT, PER>*>(out + at[ARITY]) = y;
  }
};

// The last pack, of fewer elements, one by one.
__device__ __forceinline__ void rest(OPERANDS, T_OUT* out, const Walk& walk, INDEX i, int count) {
  long long at[ARITY + 1];
  walk.offsets(i, at);
  for (int j = 0; j < count; ++j) {
    T a = one(x0, at[0] + j * walk.strides[0][RANK - 1]), b = a, c = a;
#if ARITY > 1
    b = one(x1, at[1] + j * walk.strides[1][RANK - 1]);
#endif
#if ARITY > 2
    c = one(x2, at[2] + j * walk.strides[2][RANK - 1]);
#endif
    out[at[ARITY] + j * walk.strides[ARITY][RANK - 1]] = compute(a, b, c);
  }
}

// `packs` whole packs, then `tail` elements (only where RANK is 1).
extern "C" __global__ void __launch_bounds__(THREADS)
elementwise(OPERANDS, T_OUT* out, const Walk walk, INDEX packs, int tail) {
  const INDEX stride = (INDEX)gridDim.x * (THREADS * UNROLL);
  INDEX first = (INDEX)blockIdx.x * (THREADS * UNROLL) + threadIdx.x;
  for (; first + (UNROLL - 1) * THREADS < packs; first += stride) {
    Pack pack[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) pack[u].load(NAMES, walk, first + u * THREADS);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) pack[u].store_to(out);
  }
  for (; first < packs; first += THREADS) {  // at most UNROLL - 1 turns
    Pack pack;
    pack.load(NAMES, walk, first);
    pack.store_to(out);
  }
  if (PER > 1 && tail != 0 && blockIdx.x == 0 && threadIdx.x == 0) rest(NAMES, out, walk, packs, tail);
}
