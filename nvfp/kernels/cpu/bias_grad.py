"""CPU twin of `kernels.bias_grad`, in the order of summation that its contract states."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.bias_grad import GROUP, LANES, TILE, tiles_of
from nvfp.kernels.cpu._halves import narrow, widen
from nvfp.kernels.cpu._njit import inline, njit
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.cpu._rows import add_rows
from nvfp.kernels.cpu._tiles import GRAIN, TILE as HELD

_GROUPS = TILE // GROUP  # 2**5
_LEVELS = 6  # of the tree over them


@inline
def _add(x: np.ndarray, to: np.ndarray) -> None:
    for n in range(to.size):
        to[n] += x[n]


@njit
def _add_groups(x: np.ndarray, first: int, levels: np.ndarray, partial: np.ndarray, last: bool) -> None:
    """Add rows x [M, N] that start with group number ``first``, and store the sums of the tiles that they complete.

    ``levels[l + 1]`` holds the sum of 2**l groups while bit l of the number of groups in the tile is set.
    """
    groups = -(-x.shape[0] // GROUP)
    for g in range(groups):
        k, cur = (first + g) % _GROUPS, levels[0]
        for m in range(g * GROUP, min((g + 1) * GROUP, x.shape[0])):
            if m == g * GROUP:
                cur[:] = x[m]
            else:
                _add(x[m], cur)
        level = 0
        while k >> level & 1:  # levels[level + 1] + cur
            _add(levels[level + 1], cur)
            level += 1
        levels[level + 1, :] = cur
        if k == _GROUPS - 1:
            partial[(first + g) // _GROUPS, :] = cur
        elif last and g == groups - 1:  # beyond are zeros
            for upper in range(level + 1, _LEVELS):
                if (k + 1) >> upper & 1:
                    _add(levels[upper + 1], cur)
            partial[(first + g) // _GROUPS, :] = cur


@njit
def _halve(sums: np.ndarray) -> None:
    """Add neighbours of ``sums`` [2**k, N] into the first of each two, these again, ... until row 0 holds all."""
    apart = 1
    while apart < sums.shape[0]:
        for i in range(0, sums.shape[0], 2 * apart):
            _add(sums[i + apart], sums[i])
        apart *= 2


def bias_grad(dy: Any, *, dtype: np.dtype | None = None, out: Any | None = None) -> Any:
    """See `nvfp.kernels.bias_grad.bias_grad`; dy [M, N]."""
    rows, columns = dy.shape
    db = np.empty(columns, dy.dtype if dtype is None else dtype) if out is None else out
    if not columns:
        return db
    partial = np.empty((tiles_of(rows), columns), np.float32)
    step = max(1, HELD // columns // GROUP) * GROUP

    def work(start: int, stop: int) -> None:
        levels = np.empty((_LEVELS + 1, columns), np.float32)
        end = min(stop * TILE, rows)
        for m in range(start * TILE, end, step):
            upto = min(m + step, end)
            _add_groups(widen(dy[m:upto]), m // GROUP, levels, partial, upto == rows)

    run_chunks(work, len(partial), max(1, GRAIN // (TILE * columns)))
    lanes = np.zeros((LANES, columns), np.float32)
    for k in range(len(partial)):
        add_rows(partial[k : k + 1], lanes[k % LANES])
    _halve(lanes)
    narrow(lanes[0], db)
    return db
