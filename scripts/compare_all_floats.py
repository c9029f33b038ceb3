"""Cast all 2^32 float32 patterns on the CPU and on a CUDA GPU and count the codes that differ.

    python scripts/compare_all_floats.py

Takes about a minute and a half on 16 cores and an H200. The CPU's codes are compared with the exact codec and with
other libraries by the tests; this shows that the GPU's are the same for every float32 there is.
"""

from __future__ import annotations

import sys
import time

import ml_dtypes
import numpy as np

from nvfp.kernels.cast import cast
from nvfp.optional import need

PATTERNS, PART = 1 << 32, 1 << 26
CASES = (
    (ml_dtypes.float8_e4m3fn, "saturate"),
    (ml_dtypes.float8_e4m3fn, "nonsat"),
    (ml_dtypes.float8_e5m2, "saturate"),
    (ml_dtypes.float8_e5m2, "nonsat"),
    (ml_dtypes.float4_e2m1fn, "saturate"),
)


def different_codes(dtype: np.dtype, overflow: str) -> int:
    """Return how many of all float32 patterns the two devices cast to different codes."""
    cupy = need("cupy", extra="cuda13")
    total = 0
    for first in range(0, PATTERNS, PART):
        host = np.arange(PART, dtype=np.uint32) + np.uint32(first)
        gpu = cast(cupy.asarray(host).view(np.float32), dtype, overflow=overflow).get()
        total += int(np.count_nonzero(gpu != cast(host.view(np.float32), dtype, overflow=overflow)))
    return total


def main() -> int:
    """Print a line for each case; the exit code is 1 if any code differs."""
    total = 0
    for element, overflow in CASES:
        began, dtype = time.perf_counter(), np.dtype(element)
        found = different_codes(dtype, overflow)
        total += found
        print(f"{dtype} {overflow}: {PATTERNS} patterns, {found} codes differ, {time.perf_counter() - began:.0f} s")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
