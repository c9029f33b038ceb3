// rope: pairs of the first R elements of the last axis turn by the angles of their position; the rest passes through.
//
// Parallelisation: blockIdx.x is a position, blockIdx.y a share of its heads (of all batches). A block computes the
// sines and cosines of up to PAIRS pairs of its position once, in shared memory, while the first loads are in flight; a
// thread keeps those of its PIECE pairs in registers and turns them in one head after the other, FLIGHT heads loaded at
// a time. y may be x: a thread reads a pair before it writes it.
// Bytes moved: 2 * sizeof(T_IN) per element; strides are free, so a slice of a fused buffer needs no copy.
//
// Macros: T_IN; WIDTH (elements of one load: 16 bytes' worth or 1 pair: 1); INTERLEAVED (0: pairs are halves apart).
#include "pack.cuh"
#include "trig.cuh"

constexpr int THREADS = 256, PAIRS = 256, FLIGHT = 4;
// What a thread takes at a time: PIECE pairs; interleaved ones lie side by side, so WIDTH elements are WIDTH / 2 pairs.
constexpr int PIECE = INTERLEAVED && WIDTH > 1 ? WIDTH / 2 : WIDTH;

struct Layout {
  long long x[4], y[4];  // strides in elements
};

// y_a = x_a ca + x_b ab, y_b = x_b cb + x_a ba
struct Turn {
  float ca, cb, ab, ba;
};
__device__ __forceinline__ void turn(const Turn& t, float& a, float& b) {
  const float u = a, v = b;
  a = fmaf(u, t.ca, v * t.ab);
  b = fmaf(v, t.cb, u * t.ba);
}

// PIECE pairs of a head, the first of which is number `pair`: read, then turned and written.
struct Piece {
  static constexpr int TOGETHER = WIDTH > 1 && INTERLEAVED;
  Words<T_IN, WIDTH> first, second;  // interleaved ones are all in `first`

  __device__ __forceinline__ void load(const T_IN* x, long long step, int pair, int half) {
    if constexpr (TOGETHER) {
      first = load_words<T_IN, WIDTH>(x + 2 * pair);
    } else if constexpr (WIDTH > 1) {
      first = load_words<T_IN, WIDTH>(x + pair);
      second = load_words<T_IN, WIDTH>(x + pair + half);
    } else {
      first = load_words<T_IN, WIDTH>(x + (INTERLEAVED ? 2 * pair : pair) * step);
      second = load_words<T_IN, WIDTH>(x + (INTERLEAVED ? 2 * pair + 1 : pair + half) * step);
    }
  }
  __device__ __forceinline__ void keep(T_IN* y, long long step, int pair, int half, const Turn (&turns)[PIECE]) const {
    float a[WIDTH], b[WIDTH];
    unpack(first, a);
    if constexpr (TOGETHER) {
#pragma unroll
      for (int j = 0; j < PIECE; ++j) turn(turns[j], a[2 * j], a[2 * j + 1]);
      keep_words(y + 2 * pair, pack<T_IN, WIDTH>(a));
    } else {
      unpack(second, b);
#pragma unroll
      for (int j = 0; j < PIECE; ++j) turn(turns[j], a[j], b[j]);
      const long long at = WIDTH > 1 ? pair : (INTERLEAVED ? 2 * pair : pair) * step;
      const long long other = WIDTH > 1 ? pair + half : (INTERLEAVED ? 2 * pair + 1 : pair + half) * step;
      keep_words(y + at, pack<T_IN, WIDTH>(a));
      keep_words(y + other, pack<T_IN, WIDTH>(b));
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, 2)
rope(const T_IN* x, const float* freqs, T_IN* y, const __grid_constant__ Layout at, int batches, int heads, int width,
     int rotated, int inverse) {
  __shared__ float sines[2][PAIRS], cosines[2][PAIRS];
  const long long position = blockIdx.x;
  const int half = rotated / 2;
  const unsigned items = (unsigned)batches * (unsigned)heads;
  const float* angles = freqs + position * rotated;
  x += position * at.x[1];
  y += position * at.y[1];
  auto offset = [&](unsigned item, const long long (&strides)[4]) {
    const unsigned b = item / (unsigned)heads;
    return b * strides[0] + (item - b * (unsigned)heads) * strides[2];
  };
  for (int first = 0; first < half; first += PAIRS) {
    const int pairs = half - first < PAIRS ? half - first : PAIRS, pieces = pairs / PIECE;
    const int together = THREADS / pieces, slot = threadIdx.x / pieces;  // heads of a turn, and the thread's own
    const int own = (threadIdx.x - slot * pieces) * PIECE, pair = first + own;
    const unsigned step = gridDim.y * together;
    unsigned item = slot < together ? blockIdx.y * together + slot : items;
    Piece held[FLIGHT];
    auto load = [&]() {
#pragma unroll
      for (int k = 0; k < FLIGHT; ++k)
        if (item + k * step < items) held[k].load(x + offset(item + k * step, at.x), at.x[3], pair, half);
    };
    load();
    __syncthreads();  // the former angles have been used
    for (int i = threadIdx.x; i < 2 * pairs; i += THREADS) {
      const int second = i >= pairs, other = first + i - second * pairs;
      const int angle = INTERLEAVED ? 2 * other + second : other + second * half;
      sincos32(angles[angle], sines[second][other - first], cosines[second][other - first]);
    }
    __syncthreads();
    if (item >= items) continue;
    Turn turns[PIECE];
#pragma unroll
    for (int j = 0; j < PIECE; ++j) {
      const float a = sines[0][own + j], b = sines[1][own + j];
      turns[j] = {cosines[0][own + j], cosines[1][own + j], inverse ? b : -a, inverse ? -a : b};
    }
    while (true) {
#pragma unroll
      for (int k = 0; k < FLIGHT; ++k)
        if (item + k * step < items) held[k].keep(y + offset(item + k * step, at.y), at.y[3], pair, half, turns);
      item += FLIGHT * step;
      if (item >= items) break;
      load();
    }
  }
  const unsigned long long rest = (width - rotated) / WIDTH, all = items * rest, stride = gridDim.y * THREADS;
  for (unsigned long long i = blockIdx.y * THREADS + threadIdx.x; i < all; i += FLIGHT * stride) {
    Words<T_IN, WIDTH> held[FLIGHT];
    T_IN* to[FLIGHT];
#pragma unroll
    for (int k = 0; k < FLIGHT; ++k) {
      const unsigned long long n = i + k * stride;
      if (n >= all) break;
      const unsigned item = (unsigned)(n / rest);
      const long long element = rotated + (long long)(n - item * rest) * WIDTH;
      held[k] = load_words<T_IN, WIDTH>(x + offset(item, at.x) + element * (WIDTH > 1 ? 1 : at.x[3]));
      to[k] = y + offset(item, at.y) + element * (WIDTH > 1 ? 1 : at.y[3]);
    }
#pragma unroll
    for (int k = 0; k < FLIGHT; ++k)
      if (i + k * stride < all) keep_words(to[k], held[k]);
  }
}
