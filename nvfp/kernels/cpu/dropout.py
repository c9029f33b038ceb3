"""CPU twin of `kernels.dropout`: Philox words per tile, then one vectorized pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nvfp.kernels.cpu._halves import narrow, widen
from nvfp.kernels.cpu._njit import njit
from nvfp.kernels.cpu._philox import fill_words
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.cpu._tiles import GRAIN, TILE
from nvfp.kernels.dropout import LANE, factor, threshold

_SHIFT = np.uint32(8)
_ZERO = np.float32(0.0)


@njit
def _tile(x: np.ndarray, words: np.ndarray, limit: np.uint32, scale: np.float32, y: np.ndarray) -> None:
    for i in range(y.size):
        y[i] = x[i] * scale if np.uint32(words[i] >> _SHIFT) >= limit else _ZERO


@njit
def _add_tile(x: np.ndarray, residual: np.ndarray, y: np.ndarray) -> None:
    for i in range(y.size):
        y[i] = x[i] + residual[i]


def dropout(
    x: Any,
    p: float,
    *,
    key: int,
    ordinal: int,
    step: Any,
    residual: Any | None = None,
    offset: int = 0,
    out: Any | None = None,
) -> tuple[Any, Any]:
    """See `nvfp.kernels.dropout.dropout`."""
    y = np.empty(x.shape, x.dtype) if out is None else out
    flat, target = x.reshape(-1), y.reshape(-1)
    added = None if residual is None else residual.reshape(-1)
    stream, at_step = np.uint32(4 * ordinal + LANE), np.uint32(int(step) & 0xFFFFFFFF)
    limit, scale = np.uint32(threshold(p)), factor(p)

    def work(start: int, stop: int) -> None:
        for a in range(start, stop, TILE):
            b = min(a + TILE, stop)
            first = (offset + a) // 4
            words = np.empty((-(-(offset + b) // 4) - first, 4), np.uint32)
            fill_words(words, np.uint64(first), stream, at_step, np.uint64(key))
            mine = words.reshape(-1)[offset + a - 4 * first :][: b - a]
            values = np.empty(b - a, np.float32)
            _tile(widen(flat[a:b]), mine, limit, scale, values)
            if added is not None:
                dropped = np.empty(b - a, x.dtype)  # rounded before the sum, as the unfused pair does
                narrow(values, dropped)
                _add_tile(widen(dropped), widen(added[a:b]), values)
            narrow(values, target[a:b])

    run_chunks(work, target.size, GRAIN)
    return y, step.copy()


def dropout_vjp(
    dy: Any, p: float, *, key: int, ordinal: int, step: Any, offset: int = 0, out: Any | None = None
) -> Any:
    """See `nvfp.kernels.dropout.dropout_vjp`."""
    return dropout(dy, p, key=key, ordinal=ordinal, step=step, offset=offset, out=out)[0]


def advance_steps(steps: Sequence[Any]) -> None:
    """See `nvfp.kernels.dropout.advance_steps`."""
    for step in steps:
        step += 1
