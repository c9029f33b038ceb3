// The source of the generic quantize kernels: [batch, rows, columns] with blocks over the last two axes.
//
// Macros: T_IN, those of format.cuh.
#pragma once
#include "format.cuh"
#ifndef LEVELS
#define LEVELS 0
#endif

constexpr int THREADS = 256;

struct View {
  const T_IN* data;
  long long batch, rows, columns, batch_stride, row_stride, column_stride, block_rows, block_columns;

  __device__ __forceinline__ long long down() const { return (rows + block_rows - 1) / block_rows; }
  __device__ __forceinline__ long long across() const { return (columns + block_columns - 1) / block_columns; }
  __device__ __forceinline__ float at(long long b, long long r, long long c) const {
    return load_float(data[b * batch_stride + r * row_stride + c * column_stride]);
  }
};
