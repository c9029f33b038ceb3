"""CPU twin of `kernels.softmax`: rows over threads; hidden columns behind the last visible one are not computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nvfp.kernels.cpu._exp import exp32
from nvfp.kernels.cpu._halves import narrow, widen
from nvfp.kernels.cpu._njit import inline, njit
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.cpu._rows import row_max, row_sum
from nvfp.kernels.cpu._tiles import GRAIN, TILE
from nvfp.kernels.softmax import visible

_FLOAT32 = np.dtype(np.float32)
_NO_MASK = np.zeros(1, np.uint8)
_NO_ROOM = np.zeros(0, np.float32)


class Mask(NamedTuple):
    """A mask as kernels read it: byte ``flat[starts[row] + step * column]``; step -1 says that there is none.

    Attributes:
        flat: its bytes.
        starts: int64, where each row starts.
        step: 1, or 0 where one byte holds for a whole row.
    """

    flat: np.ndarray
    starts: np.ndarray
    step: int


def mask_rows(mask: np.ndarray | None, shape: tuple[int, ...]) -> Mask:
    """Return a broadcast mask for rows [prod(shape[:-1])] without expanding it."""
    if mask is None or 0 in shape:
        return Mask(_NO_MASK, np.zeros(1, np.int64), -1)
    own = np.ascontiguousarray(mask)
    width = own.shape[-1]
    at = np.arange(own.size // width, dtype=np.int64).reshape(own.shape[:-1]) * width
    starts = np.ascontiguousarray(np.broadcast_to(at, shape[:-1])).reshape(-1)
    return Mask(own.view(np.uint8).reshape(-1), starts, int(width > 1 or shape[-1] == 1))


def sinks_of(sink: Any | None) -> np.ndarray:
    """Return the extra logits of a softmax as kernels read them: -inf for none."""
    return np.full(1, -np.inf, np.float32) if sink is None else np.asarray(sink, np.float32).reshape(-1)


@inline
def _has_nan(row: np.ndarray) -> bool:
    found = False
    for c in range(row.size):
        found |= row[c] != row[c]
    return found


@njit
def softmax_rows(
    x: np.ndarray, y: np.ndarray, lse: np.ndarray, scale: np.float32, row: int, rows: int, first: int, more: int,
    mask: np.ndarray, starts: np.ndarray, step: int, sinks: np.ndarray, tops: np.ndarray,
) -> None:  # fmt: skip
    """Softmax of x [n, C] into y, which may be x; row t is row ``(row + t) % rows`` of its matrix.

    ``first`` and ``more`` are those of `nvfp.kernels.softmax.Visible`; ``starts`` has an entry for each row of x.
    ``sinks`` has one for each matrix (going round; -inf: none); ``tops`` takes the largest value of each row, if it has
    room.
    """
    columns = x.shape[1]
    scratch = np.empty(columns, np.float32)
    for t in range(x.shape[0]):
        seen = min(columns, max(0, first + (row + t) % rows * more))
        source, target, values = x[t], y[t], scratch[:seen]
        for c in range(seen):
            values[c] = source[c] * scale
        if step >= 0:
            for c in range(seen):
                if mask[starts[t] + step * c]:
                    values[c] = np.float32(-np.inf)
        top = row_max(values) if seen else np.float32(-np.inf)
        if tops.size:
            tops[t] = top
        sink = sinks[(row + t) // rows % sinks.size]
        top = max(top, sink)
        if top == np.float32(-np.inf) and not _has_nan(values):
            target[:] = np.float32(0)
            lse[t] = top
            continue
        for c in range(seen):
            values[c] = exp32(values[c] - top)
        total = row_sum(values) + exp32(sink - top)
        lse[t] = np.float32(float(top) + math.log(total))
        inverse = np.float32(1.0 / total)
        for c in range(seen):
            target[c] = values[c] * inverse
        target[seen:] = np.float32(0)
        if total != total:  # a row that became NaN stays 0 where it is hidden
            for c in range(seen):
                if source[c] * scale == np.float32(-np.inf) or (step >= 0 and mask[starts[t] + step * c]):
                    target[c] = np.float32(0)


@njit
def softmax_vjp_rows(y: np.ndarray, dy: np.ndarray, dx: np.ndarray, scale: np.float32) -> None:
    """``scale y (dy - sum y dy)`` of each row; where y is 0, dy counts as 0. dx may be y or dy."""
    columns = y.shape[1]
    scratch = np.empty(columns, np.float32)
    zero = np.float32(0)
    for t in range(y.shape[0]):
        p, d, target = y[t], dy[t], dx[t]
        for c in range(columns):
            product = p[c] * d[c]
            scratch[c] = zero if p[c] == zero else product
        total = np.float32(row_sum(scratch))
        for c in range(columns):
            value = p[c] * scale * (d[c] - total)
            scratch[c] = zero if p[c] == zero else value
        for c in range(columns):
            target[c] = scratch[c]


def _over_rows(rows: int, columns: int, work: Callable[[int, int], None]) -> None:
    """Call ``work(a, b)`` for tiles of rows that together hold about `TILE` values."""
    step = max(1, TILE // max(1, columns))

    def chunk(start: int, stop: int) -> None:
        for a in range(start, stop, step):
            work(a, min(a + step, stop))

    run_chunks(chunk, rows, max(1, GRAIN // max(1, columns)))


def softmax(
    x: Any, *, scale: float, mask: Any | None, causal: str | None, dtype: np.dtype, out: Any | None,
    sink: Any | None = None, tops: Any | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """See `nvfp.kernels.softmax.softmax`; x [..., R, C], contiguous, mask of as many axes."""
    *batch, rows, columns = x.shape
    many = math.prod(batch) * rows
    y = np.empty(x.shape, dtype) if out is None else out
    lse = np.empty(many, np.float32)
    flat, result = x.reshape(many, columns), y.reshape(many, columns)
    seen, hidden, factor = visible(causal, rows, columns), mask_rows(mask, x.shape), np.float32(scale)
    direct = dtype == _FLOAT32
    sinks = sinks_of(sink)
    highest = _NO_ROOM if tops is None else tops.reshape(-1)

    def work(a: int, b: int) -> None:
        values = result[a:b] if direct else np.empty((b - a, columns), np.float32)
        starts = hidden.starts[a:b] if hidden.step >= 0 else hidden.starts
        softmax_rows(
            widen(flat[a:b]), values, lse[a:b], factor, a, *seen, hidden.flat, starts, hidden.step, sinks,
            highest[a:b],
        )  # fmt: skip
        if not direct:
            narrow(values, result[a:b])

    _over_rows(many, columns, work)
    return y, lse


def softmax_vjp(y: Any, dy: Any, *, scale: float, dtype: np.dtype, out: Any | None) -> Any:
    """See `nvfp.kernels.softmax.softmax_vjp`; y and dy [rows, C], contiguous."""
    dx = np.empty(y.shape, dtype) if out is None else out
    rows, columns = y.shape
    direct, factor = dtype == _FLOAT32, np.float32(scale)

    def work(a: int, b: int) -> None:
        values = dx[a:b] if direct else np.empty((b - a, columns), np.float32)
        softmax_vjp_rows(widen(y[a:b]), widen(dy[a:b]), values, factor)
        if not direct:
            narrow(values, dx[a:b])

    _over_rows(rows, columns, work)
    return dx
