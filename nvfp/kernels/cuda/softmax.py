"""CUDA twin of `kernels.softmax`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from nvfp.kernels._dense import contiguous
from nvfp.kernels.cast import cast
from nvfp.kernels.cuda._dense import BFLOAT16, FLOAT32, row_vector
from nvfp.kernels.cuda._launch import launch, multiprocessors
from nvfp.kernels.cuda._layout import Shape, collapse, strided_argument
from nvfp.kernels.cuda._loader import Defines, Instance, kernel
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.softmax import visible

_SOURCE = "softmax.cu"
_MOST_THREADS = 512  # = online.cuh's MOST_THREADS
_WARPS = 4  # rows of a block where a warp takes a row
_PER_SM = 32
_HELD = 32  # elements of a row that a thread holds in registers; backward as many of dy
_BOOL = np.dtype(np.bool_)


def _vector(columns: int, *arrays: Any) -> int:
    """Elements per access: the same for all dtypes, so that sums have one order and results differ by rounding only."""
    return row_vector(columns, 2, *arrays)


@dataclass(frozen=True)
class Plan:
    """How a row is dealt out: threads per row, accesses that each of them holds (0: too many), rows per block."""

    threads: int
    chunks: int
    rows: int

    def shape(self, rows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Grid and block for ``rows`` rows."""
        blocks = -(-rows // self.rows)
        few = min(blocks, multiprocessors() * _PER_SM) if blocks > _PER_SM else blocks
        return (few,), (self.threads, self.rows)


@lru_cache(maxsize=1024)
def plan(columns: int, per: int) -> Plan:
    """Return the plan for rows of ``columns``: few threads first, at most 8 accesses each.

    A thread holds up to `_HELD` elements where one warp takes a row, so that no barrier is needed, and where 512
    threads do; else half as many, so that more threads share a row.

    Example:
        >>> plan(2048, 8)
        Plan(threads=128, chunks=2, rows=1)
    """
    vectors = -(-columns // per)
    for threads in (32, 64, 128, 256, _MOST_THREADS):
        held = _HELD if threads in (32, _MOST_THREADS) else _HELD // 2
        if vectors <= threads * min(8, held // per):
            chunks = 1 << (max(1, -(-vectors // threads)) - 1).bit_length()
            return Plan(threads, chunks, _WARPS if threads == 32 else 1)
    return Plan(_MOST_THREADS, 0, 1)


def _mask(mask: Any, shape: Shape) -> tuple[Any, Any, int]:
    """Return a mask, its row strides as ``Strided<3>``, and its stride along the columns."""
    rows, strides = _row_strides(mask, shape)
    if len(rows) > 3:  # more axes that do not merge than the kernel walks
        mask = cast(cp.broadcast_to(mask, shape), _BOOL)
        rows, strides = _row_strides(mask, shape)
    missing = 3 - len(rows)
    step = 0 if mask.shape[-1] == 1 else mask.strides[-1]
    return mask, strided_argument((1,) * missing + rows, (0,) * missing + strides), step


def _row_strides(mask: Any, shape: Shape) -> tuple[Shape, Shape]:
    """The axes before the last with the strides of a broadcast mask, merged where they can be (bytes are items)."""
    strides = tuple(0 if n == 1 else s for n, s in zip(mask.shape[:-1], mask.strides[:-1], strict=True))
    rows, (merged,) = collapse(shape[:-1], strides)
    return rows, merged


def _forward(come: np.dtype, go: np.dtype, masked: bool, sunk: bool, per: int, p: Plan) -> Defines:
    known = (("T_IN", ctype(come)), ("T_OUT", ctype(go)), ("MASKED", int(masked)), ("SINK", int(sunk)))
    return (*known, ("PER", per), ("CHUNKS", p.chunks))


def _backward(y: np.dtype, dy: np.dtype, go: np.dtype, per: int, p: Plan) -> Defines:
    return (("T_Y", ctype(y)), ("T_DY", ctype(dy)), ("T_OUT", ctype(go)), ("PER", per), ("CHUNKS", p.chunks))


def softmax(
    x: Any, *, scale: float, mask: Any | None, causal: str | None, dtype: np.dtype, out: Any | None,
    sink: Any | None = None, tops: Any | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """See `nvfp.kernels.softmax.softmax`; x [..., R, C], contiguous, mask of as many axes."""
    *batch, matrix, columns = x.shape
    rows = math.prod(batch) * matrix
    y = cp.empty(x.shape, dtype) if out is None else out
    lse = cp.empty(rows, FLOAT32)
    if rows == 0:
        return y, lse
    if mask is not None and columns == 0:
        mask = None
    at, step = _NO_MASK_AT, 0
    if mask is not None:
        mask, at, step = _mask(mask, x.shape)
    per = _vector(columns, x, y)
    seen, p = visible(causal, matrix, columns), plan(columns, per)
    number = isinstance(sink, float)
    sinks = None if number or sink is None else contiguous(sink)
    launch(
        kernel(_SOURCE, "softmax", _forward(x.dtype, dtype, mask is not None, sink is not None, per, p)),
        *p.shape(rows),
        (
            x, y, lse, mask, at, np.int64(step), np.int64(rows), np.int64(columns), np.int64(matrix),
            np.int64(seen.first), np.int64(seen.step), np.float32(scale), tops, sinks,
            np.int64(1 if sinks is None else sinks.size), np.float32(sink if number else 0.0),
        ),
    )  # fmt: skip
    return y, lse


_NO_MASK_AT = strided_argument((1, 1, 1), (0, 0, 0))


def softmax_vjp(y: Any, dy: Any, *, scale: float, dtype: np.dtype, out: Any | None) -> Any:
    """See `nvfp.kernels.softmax.softmax_vjp`; y and dy [rows, C], contiguous."""
    dx = cp.empty(y.shape, dtype) if out is None else out
    rows, columns = y.shape
    if rows == 0 or columns == 0:
        return dx
    per = _vector(columns, y, dy, dx)
    p = plan(columns, per)
    launch(
        kernel(_SOURCE, "softmax_vjp", _backward(y.dtype, dy.dtype, dtype, per, p)),
        *p.shape(rows),
        (y, dy, dx, np.int64(rows), np.int64(columns), np.float32(scale)),
    )
    return dx


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    p = plan(2048, 8)
    return [
        Instance(_SOURCE, "softmax", _forward(FLOAT32, BFLOAT16, True, False, 8, p)),
        Instance(_SOURCE, "softmax_vjp", _backward(BFLOAT16, FLOAT32, BFLOAT16, 8, p)),
    ]
