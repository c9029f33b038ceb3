"""CPU twin of `kernels.transpose`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvfp.kernels.cpu._njit import njit
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.cpu._strided import copy_rows

_TILE = 32  # bytes: a tile of 64 x 64 nibbles reads and writes whole cache lines


def transpose(x: Any, *, packed: bool, columns: int, out: Any | None) -> Any:
    """See `nvfp.kernels.transpose.transpose`."""
    *batch, m, width = x.shape
    if out is None:
        out = np.empty((*batch, columns, -(-m // 2) if packed else m), x.dtype)
    if not packed:
        copy_rows(np.swapaxes(x, -1, -2), out)
    elif x.size:
        source = np.array(x, order="C").reshape(math.prod(batch), m, width)  # Numba wants it writeable
        target = out.reshape(math.prod(batch), columns, -(-m // 2))
        strips = -(-m // (2 * _TILE))
        run_chunks(lambda start, stop: _nibbles(source, target, strips, start, stop), len(source) * strips)
    return out


@njit
def _nibbles(source: Any, target: Any, strips: int, start: int, stop: int) -> None:
    """Transpose strips of 64 rows: byte (row pair, column pair) holds a 2 x 2 square of codes."""
    _, m, width = source.shape
    columns = target.shape[1]
    for item in range(start, stop):
        x, y = source[item // strips], target[item // strips]
        low = item % strips * _TILE
        high = min(low + _TILE, (m + 1) // 2)
        for left in range(0, width, _TILE):
            for i in range(low, high):
                for c in range(left, min(left + _TILE, width)):
                    a = x[2 * i, c]
                    b = x[2 * i + 1, c] if 2 * i + 1 < m else np.uint8(0)
                    y[2 * c, i] = (a & 15) | (b & 15) << 4
                    if 2 * c + 1 < columns:
                        y[2 * c + 1, i] = a >> 4 | b & 0xF0
