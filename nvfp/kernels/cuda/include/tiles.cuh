// The scale layout that tensor cores read (nvfp/dtypes/scale_layout.py): tiles of 128 rows x 4 columns.
#pragma once

__device__ __forceinline__ long long tile_offset(long long r, long long c, long long columns) {
  const long long tile = r / 128 * ((columns + 3) / 4) + c / 4;
  return tile * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4;
}
