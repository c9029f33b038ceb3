"""Launching the kernels of `include/norm.cuh`: which threads take which part of a row."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from nvfp.kernels.bias_grad import chunk_rows
from nvfp.kernels.cuda._dense import BFLOAT16, FLOAT32, by_value
from nvfp.kernels.cuda._launch import Grid, launch, multiprocessors
from nvfp.kernels.cuda._loader import Defines, Instance, Kernel, kernel
from nvfp.kernels.cuda._memory import aligned
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp

_FORWARD, _BACKWARD, _COLUMNS, _FINISH, STATISTICS = 1, 2, 3, 4, 5  # PASS
_BLOCK = {False: 128, True: 256}  # threads to fill with several rows where a warp takes one; backward adds them up
MOST_BLOCKS = 2**30
_SPREAD = 32  # = norm.cuh's SPREAD
_NULL = np.int64(0)


@dataclass(frozen=True)
class Plan:
    """How a row is dealt out.

    Attributes:
        width: elements of a vector.
        lanes: threads that share a row.
        chunks: vectors that each of them holds; 0: the row is too long to be held.
        rows: rows of a block.
        blocks: resident blocks per multiprocessor that registers are kept for.
    """

    width: int
    lanes: int
    chunks: int
    rows: int
    blocks: int

    @property
    def threads(self) -> tuple[int, int]:
        """The shape of a block."""
        return self.lanes, self.rows


@lru_cache(maxsize=1024)
def plan(backward: bool, columns: int, itemsize: int, width: int, centered: bool = True) -> Plan:
    """Return how rows of ``columns`` elements are dealt out.

    A thread holds at most 64 bytes of a row forward, and 16 elements backward, where it also holds as many
    of dy, of the next row and of two float32 sums (32 elements of 16 bits where 512 threads do not hold a
    row otherwise, then without the next one).

    Example:
        >>> plan(False, 4096, 2, 8)
        Plan(width=8, lanes=128, chunks=4, rows=1, blocks=8)
    """
    vectors = columns // width
    if not backward:
        # 40, 48 or 64 registers a thread; light: half as much to hold, and more threads
        light = not centered and 512 < vectors <= 1024
        most = 2 if light else max(4, 16 // width)
        dealt = _deal(vectors, width, most, 1024, _BLOCK[backward]) or Plan(width, 512, 0, 1, 1)
        threads = 1536 if light or dealt.lanes <= 16 else 1280 if dealt.lanes > 128 and width > 1 else 1024
        return replace(dealt, blocks=max(1, threads // (dealt.lanes * dealt.rows)))
    found = _deal(vectors, width, 8 if width == 1 else 16 // width, 512, _BLOCK[backward])
    if found is None and width == 8:
        found = _deal(vectors, width, 32 // width, 512, _BLOCK[backward])
    if found is None:
        return Plan(width, 512, 0, 1, 1)
    threads = 768 if found.chunks * width <= 8 and found.chunks <= 4 else 512  # 80 or 128 registers each
    return Plan(width, found.lanes, found.chunks, found.rows, max(1, threads // (found.lanes * found.rows)))


def _deal(vectors: int, width: int, most: int, threads: int, block: int) -> Plan | None:
    """Deal vectors to at most so many threads, at most ``most`` to each, with few threads idle at the end."""
    if vectors <= 16:
        lanes = 8 if vectors <= 8 else 16
        return Plan(width, lanes, 1, _BLOCK[True] // lanes, 1)
    top = max(1, min(most, -(-vectors // 32)))
    choices = [(max(1, -(-vectors // (32 * c))) * 32, c) for c in range(top, max(1, top // 2) - 1, -1)]
    fitting = [(lanes, chunks) for lanes, chunks in choices if lanes <= threads]
    if not fitting:
        return None
    lanes, chunks = min(fitting, key=lambda both: both[0] * both[1])
    return Plan(width, lanes, chunks, max(1, block // lanes), 1)


def _width(columns: int, itemsize: int, *arrays: Any) -> int:
    """Elements that move at once in rows of ``columns``: 16 bytes' worth where rows and addresses allow it."""
    width = 16 // itemsize
    while width > 1 and (columns % width or not all(aligned(a, min(16, width * a.dtype.itemsize)) for a in arrays)):
        width //= 2
    return width


def _or_null(array: Any | None) -> Any:
    """An array, or the null pointer as a kernel argument."""
    return _NULL if array is None else array


def defines(kind: int, x: np.dtype, parameter: np.dtype, p: Plan) -> Defines:
    known = (("PASS", kind), ("T_IN", ctype(x)), ("T_PARAM", ctype(parameter)), ("W", p.width), ("LANES", p.lanes))
    return (*known, ("ROWS", p.rows), ("CHUNKS", p.chunks), ("MIN_BLOCKS", p.blocks))


def _finish(parameter: np.dtype) -> Defines:
    return (("PASS", _FINISH), ("T_OUT", ctype(parameter)))


_SIZES = np.dtype([("rows", "i8"), ("columns", "i4"), ("length", "f4"), ("eps", "f4"), ("shift", "f4")])


def sizes(rows: int, columns: int, eps: float, zero_centered: bool) -> Any:
    """Return norm_value.cuh's NormSizes as a kernel argument."""
    return by_value(np.array([(rows, columns, max(columns, 1), eps, zero_centered)], _SIZES))


@dataclass(slots=True, eq=False)
class Forward:
    """A forward call, decided: all of its launch but addresses. Calling it runs it.

    Attributes:
        kernel: its handle.
        grid: its grid.
        threads: its block.
        sizes: its last argument.
        rows: of the statistics.
        centered: layer_norm, which has a beta and a mean.
    """

    kernel: Kernel
    grid: Grid
    threads: tuple[int, int]
    sizes: Any
    rows: int
    centered: bool

    def __call__(self, x: Any, weight: Any, bias: Any | None, out: Any | None, *added: Any) -> tuple[Any, ...]:
        """Return y and the statistics. ``added``: the residual and where its sum with x goes, or nothing."""
        y = cp.empty(x.shape, x.dtype) if out is None else out
        rstd = cp.empty((self.rows,), FLOAT32)
        if not self.centered:
            launch(self.kernel, self.grid, self.threads, (x, weight, y, rstd, self.sizes, *added))
            return y, rstd
        mean = cp.empty((self.rows,), FLOAT32)
        launch(self.kernel, self.grid, self.threads, (x, weight, bias, y, mean, rstd, self.sizes, *added))
        return y, mean, rstd


def forward(
    stem: str, x: Any, weight: Any, bias: Any | None, out: Any | None, eps: float, zero_centered: bool, *added: Any
) -> Forward:
    """Return the call of ``<stem>`` on such arrays.

    Args:
        stem: ``"layer_norm"`` or ``"rms_norm"``.
        x: [..., columns], contiguous.
        weight: gamma, contiguous.
        bias: beta or None, contiguous.
        out: y, contiguous, or None: it is made.
        eps: added to the variance.
        zero_centered: whether gamma counts from 1.
        added: what the call gets as such.
    """
    columns, centered = x.shape[-1], stem == "layer_norm"
    rows, size = math.prod(x.shape[:-1]), x.dtype.itemsize
    given = [array for array in (x, out, weight, bias, *added) if array is not None]
    p = plan(False, columns, size, _width(columns, size, *given), centered)
    if added:  # twice as much to hold
        p = replace(p, blocks=max(1, p.blocks * 5 // 8))
    blocks = min(-(-rows // p.rows), multiprocessors() * 2 * p.blocks if p.chunks == 1 else MOST_BLOCKS)
    macros = (*defines(_FORWARD, x.dtype, weight.dtype, p), *((("RESIDUAL", 1),) if added else ()))
    code = kernel(f"{stem}.cu", stem, macros)
    return Forward(code, (blocks,), p.threads, sizes(rows, columns, eps, zero_centered), rows, centered)


def vjp(
    stem: str,
    dy: Any,
    x: Any,
    weight: Any,
    stats: tuple[Any, ...],
    zc: bool,
    needs: tuple[bool, bool, bool],
    add: Any | None,
) -> tuple[Any, Any, Any]:
    """Launch ``<stem>_vjp`` and what follows; return (dx, dweight, dbias), None where not needed.

    Args:
        stem: ``"layer_norm"`` or ``"rms_norm"``.
        dy: gradient of y [rows, columns].
        x: input of the forward pass.
        weight: gamma.
        stats: rstd, for layer_norm after mean.
        zc: whether gamma counts from 1.
        needs: which of x, weight and bias need a gradient.
        add: another gradient of x, which is added to dx, or None.
    """
    rows, columns = x.shape
    size = x.dtype.itemsize
    dx = cp.empty(x.shape, x.dtype) if needs[0] else None
    more = () if add is None or dx is None else (add,)
    p = plan(True, columns, size, _width(columns, size, x, dy, weight, *more))
    sums = needs[1] or needs[2]
    chunk = chunk_rows(rows)
    many = min(-(-rows // p.rows), multiprocessors() * p.blocks) if p.chunks else -(-rows // chunk)
    partial = cp.empty((len(stats), many, columns), FLOAT32) if sums else None
    macros = (*defines(_BACKWARD, x.dtype, weight.dtype, p), *(("ADD", 1) for _ in more))
    dims = (np.int64(rows), np.int32(columns))
    if p.chunks or needs[0]:
        grid = (many,) if p.chunks else (min(rows, MOST_BLOCKS),)
        ends = (np.float32(max(columns, 1)), np.float32(zc))
        args = (dy, x, weight, *stats, _or_null(dx), _or_null(partial), *dims, *ends, *more)
        launch(kernel(f"{stem}.cu", f"{stem}_vjp", macros), grid, p.threads, args)
    if not sums:
        return dx, None, None
    if not p.chunks:
        launch(
            kernel(f"{stem}.cu", f"{stem}_columns", defines(_COLUMNS, x.dtype, weight.dtype, p)),
            (-(-columns // (p.lanes * p.width)), many),
            (p.lanes,),
            (dy, x, *stats, partial, *dims, np.int64(chunk)),
        )
    made = [cp.empty((columns,), weight.dtype) if need else None for need in needs[1:]]
    launch(
        kernel(f"{stem}.cu", f"{stem}_finish", _finish(weight.dtype)),
        (-(-columns // _SPREAD), 2 if needs[2] else 1),
        (_SPREAD, _SPREAD),
        (partial, *map(_or_null, made[: len(stats)]), np.int64(many), np.int64(columns)),
    )
    return dx, made[0], made[1]


def instances(stem: str) -> list[Instance]:
    """The instances that CI compiles: bfloat16 rows of 4096 with parameters of bfloat16 (backward: float32)."""
    source = f"{stem}.cu"
    there, back = plan(False, 4096, 2, 8), plan(True, 4096, 2, 8)
    found = [
        Instance(source, f"{stem}_vjp", defines(_BACKWARD, BFLOAT16, FLOAT32, back)),
        Instance(source, stem, defines(_FORWARD, BFLOAT16, BFLOAT16, there)),
    ]
    # Both finish with the same code.
    return [*found, Instance(source, f"{stem}_finish", _finish(FLOAT32))] if stem == "layer_norm" else found
