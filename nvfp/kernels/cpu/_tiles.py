"""Runs float32 kernels over arrays of float32, bfloat16 or float16, tile by tile.

16-bit values are widened per tile (exact), results are rounded once when a tile is written. A tile
fits into the L2 cache, so that the widened copy never travels to memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nvfp.kernels.cpu._halves import narrow, widen
from nvfp.kernels.cpu._pool import run_chunks

TILE = 1 << 15  # float32 values of one tile: 128 KiB
GRAIN = 2 * TILE  # fewer elements than this are not worth a thread
_FLOAT32 = np.dtype(np.float32)


def elementwise(kernel: Callable[..., Any], inputs: tuple[np.ndarray, ...], out: np.ndarray) -> None:
    """Call ``kernel(*inputs, out)`` over tiles of flat float32 arrays; ``out`` may be one of the inputs.

    Args:
        kernel: takes 1-D float32 arrays, the last of which it fills.
        inputs: C-contiguous, of one shape.
        out: C-contiguous, of that shape.
    """
    flat = [x.reshape(-1) for x in inputs]
    target = out.reshape(-1)
    # A kernel that may write what it reads cannot be vectorized, so in place goes through a tile too.
    direct = target.dtype == _FLOAT32 and not any(np.may_share_memory(x, target) for x in flat)

    def work(start: int, stop: int) -> None:
        for a in range(start, stop, TILE):
            b = min(a + TILE, stop)
            y = target[a:b] if direct else np.empty(b - a, np.float32)
            kernel(*(widen(x[a:b]) for x in flat), y)
            if not direct:
                narrow(y, target[a:b])

    run_chunks(work, target.size, GRAIN)
