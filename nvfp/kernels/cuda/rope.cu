// rope: pairs of the first R elements of the last axis turn by the angles of their position; the rest passes through.
//
// Parallelisation: blockIdx.x is a position, blockIdx.y a share of the batches. A block computes the coefficients of
// up to PAIRS pairs of its position once, in shared memory, and applies them to all heads of its batches, WIDTH
// elements of a head at a time. y may be x: a thread reads a pair before it writes it.
// Bytes moved: 2 * sizeof(T_IN) per element; strides are free, so a slice of a fused buffer needs no copy.
//
// Macros: T_IN; WIDTH (elements of one load: 16 bytes' worth or 1 pair: 1); INTERLEAVED (0: pairs are halves apart).
#include "convert.cuh"
#include "own.cuh"
#include "trig.cuh"

constexpr int THREADS = 256, PAIRS = 256;
// What a thread takes at a time: PIECE pairs; interleaved ones lie side by side, so WIDTH elements are WIDTH / 2 pairs.
constexpr int PIECE = INTERLEAVED && WIDTH > 1 ? WIDTH / 2 : WIDTH;

struct Layout {
  long long x[4], y[4];  // strides in elements
};

// y_a = x_a ca + x_b ab, y_b = x_b cb + x_a ba
struct Turn {
  float ca, cb, ab, ba;
};
__device__ __forceinline__ void turn(const Turn& t, T_IN& a, T_IN& b) {
  const float u = load_float(a), v = load_float(b);
  a = store<T_IN>(fmaf(u, t.ca, v * t.ab));
  b = store<T_IN>(fmaf(v, t.cb, u * t.ba));
}

// Reads, turns and writes PIECE pairs, the first of which is number `pair` of the head at x and y.
__device__ __forceinline__ void piece(const T_IN* x, T_IN* y, long long sx, long long sy, int pair, int half,
                                      const Turn* turns) {
  if constexpr (WIDTH > 1 && INTERLEAVED) {
    Vec<T_IN, WIDTH> v = load_own<T_IN, WIDTH>(x + 2 * pair);
#pragma unroll
    for (int j = 0; j < PIECE; ++j) turn(turns[j], v.at[2 * j], v.at[2 * j + 1]);
    store_vec(y + 2 * pair, v);
  } else if constexpr (WIDTH > 1) {
    Vec<T_IN, WIDTH> a = load_own<T_IN, WIDTH>(x + pair), b = load_own<T_IN, WIDTH>(x + pair + half);
#pragma unroll
    for (int j = 0; j < PIECE; ++j) turn(turns[j], a.at[j], b.at[j]);
    store_vec(y + pair, a);
    store_vec(y + pair + half, b);
  } else {
    const long long first = INTERLEAVED ? 2 * pair : pair, second = INTERLEAVED ? first + 1 : first + half;
    T_IN a = x[first * sx], b = x[second * sx];
    turn(turns[0], a, b);
    y[first * sy] = a;
    y[second * sy] = b;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
rope(const T_IN* x, const float* freqs, T_IN* y, const __grid_constant__ Layout at, int batches, int heads, int width,
     int rotated, int inverse) {
  __shared__ Turn turns[PAIRS];
  const long long position = blockIdx.x;
  const int half = rotated / 2;
  const float* angles = freqs + position * rotated;
  x += position * at.x[1];
  y += position * at.y[1];
  for (int first = 0; first < half; first += PAIRS) {
    const int pairs = half - first < PAIRS ? half - first : PAIRS, pieces = pairs / PIECE;
    __syncthreads();  // the former coefficients have been used
    for (int i = threadIdx.x; i < pairs; i += THREADS) {
      const int a = INTERLEAVED ? 2 * (first + i) : first + i, b = INTERLEAVED ? a + 1 : a + half;
      float sine_a, sine_b;
      Turn t;
      sincos32(angles[a], sine_a, t.ca);
      sincos32(angles[b], sine_b, t.cb);
      t.ab = inverse ? sine_b : -sine_a;
      t.ba = inverse ? -sine_a : sine_b;
      turns[i] = t;
    }
    __syncthreads();
    for (long long b = blockIdx.y; b < batches; b += gridDim.y) {
      for (int i = threadIdx.x; i < heads * pieces; i += THREADS) {
        const int head = i / pieces, pair = (i - head * pieces) * PIECE;
        piece(x + b * at.x[0] + head * at.x[2], y + b * at.y[0] + head * at.y[2], at.x[3], at.y[3], first + pair,
              half, turns + pair);
      }
    }
  }
  const int rest = (width - rotated) / WIDTH;
  for (long long b = blockIdx.y; b < batches; b += gridDim.y) {
    for (int i = threadIdx.x; i < heads * rest; i += THREADS) {
      const int head = i / rest;
      const long long element = rotated + (i - head * rest) * WIDTH;
      const T_IN* from = x + b * at.x[0] + head * at.x[2];
      T_IN* to = y + b * at.y[0] + head * at.y[2];
      if constexpr (WIDTH > 1) {
        store_vec(to + element, load_own<T_IN, WIDTH>(from + element));
      } else {
        to[element * at.y[3]] = from[element * at.x[3]];
      }
    }
  }
}
