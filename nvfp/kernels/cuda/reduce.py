"""`reduce` on CUDA: rows or columns, in as many stages as the length needs; other layouts are copied first."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from nvfp.kernels.cast import cast
from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._launch import launch
from nvfp.kernels.cuda._layout import Shape, collapse, element_strides
from nvfp.kernels.cuda._loader import Defines, Instance, Kernel, kernel
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.reduce import Reduction, reduced_count

_THREADS = 256
_OPS = {"sum": 0, "mean": 0, "sumsq": 0, "prod": 1, "max": 2, "min": 3, "all": 4, "any": 5, "argmax": 6, "argmin": 7}
_EMPTY: dict[str, Any] = {"sum": 0, "sumsq": 0, "prod": 1, "mean": float("nan"), "all": True, "any": False}
_BOOL, _INT32, _INT64 = np.dtype(np.bool_), np.dtype(np.int32), np.dtype(np.int64)
_ROWS = 16  # per thread of reduce_columns
_LARGEST_GRID = 2**31 - 1


class Layout(NamedTuple):
    """An array as [batch, n, columns], ``n`` reduced: of rows if there is one column, else of columns.

    Strides count elements; neighbours along ``n`` (rows) or ``columns`` are adjacent.
    """

    batch: int
    n: int
    columns: int
    batch_stride: int
    row_stride: int


class Task(NamedTuple):
    """What every stage of one reduction shares."""

    op: str
    accumulator: np.dtype
    elements: int  # of one result

    @property
    def position(self) -> bool:
        """Whether partial results carry positions."""
        return self.op in ("argmax", "argmin")


class Stage(NamedTuple):
    """One launch: results are [batch, segments] or [batch, segments, columns]."""

    kernel: Kernel
    grid: tuple[int, ...]
    block: tuple[int, ...]
    numbers: tuple[Any, ...]  # arguments behind the arrays
    segments: int


def reduce(
    op: Reduction,
    x: Any,
    *,
    axes: tuple[int, ...],
    shape: tuple[int, ...],
    dtype: np.dtype,
    compute: np.dtype,
    out: Any | None = None,
) -> Any:
    """Compute `kernels.reduce` over ``axes``; ``compute`` is the dtype that accumulates."""
    y = out if out is not None and out.flags.c_contiguous else cp.empty(shape, dtype)
    count = reduced_count(x.shape, axes)
    if y.size and count == 0:
        elementwise("copy", _EMPTY[op], out=y)
    elif y.size:
        layout = layout_of(x.shape, element_strides(x), axes)
        if layout is None:
            kept = tuple(a for a in range(x.ndim) if a not in axes)
            x = cast(x.transpose(kept + axes), x.dtype)
            layout = Layout(y.size, count, 1, count, 1)
        _run(Task(op, _INT32 if compute == _BOOL else compute, count), x, 0, layout, y, first=True)
    if out is None or out is y:
        return y
    return elementwise("copy", y, out=out)


@lru_cache(maxsize=4096)
def layout_of(shape: Shape, strides: Shape, axes: tuple[int, ...]) -> Layout | None:
    """Return how the kernels can walk an array with no length of 0, or None if it must be copied first.

    Args:
        shape: lengths.
        strides: in elements.
        axes: the reduced axes, sorted.

    Example:
        >>> layout_of((4, 5, 6), (30, 6, 1), (2,))
        Layout(batch=20, n=6, columns=1, batch_stride=6, row_stride=1)
        >>> layout_of((4, 5, 6), (30, 6, 1), (1,))
        Layout(batch=4, n=5, columns=6, batch_stride=30, row_stride=6)
        >>> layout_of((4, 5, 6), (30, 6, 1), (0, 2)) is None
        True
    """
    kept = tuple(a for a in range(len(shape)) if a not in axes)
    outer, (outer_strides,) = collapse(tuple(shape[a] for a in kept), tuple(strides[a] for a in kept))
    inner, (inner_strides,) = collapse(tuple(shape[a] for a in axes), tuple(strides[a] for a in axes))
    if len(inner) > 1:
        return None
    if (inner_strides[0] == 1 or inner == (1,)) and len(outer) == 1:
        return Layout(outer[0], inner[0], 1, outer_strides[0], 1)
    if outer_strides[-1] != 1 or len(outer) > 2:
        return None
    batch, batch_stride = (outer[0], outer_strides[0]) if len(outer) == 2 else (1, 0)
    if batch * -(-inner[0] // _ROWS) * -(-outer[-1] // 32) > _LARGEST_GRID:  # blocks that `_columns` might need
        return None
    return Layout(batch, inner[0], outer[-1], batch_stride, inner_strides[0])


def _power(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << (max(1, n) - 1).bit_length()


def _shape_of_rows(n: int) -> tuple[int, int, int]:
    """Lanes, steps and warps that take a row of ``n``, or a segment of it."""
    if n <= 256:
        return (1 if n <= 8 else 8 if n <= 64 else 32), 1, 1
    if n <= 2048:
        return 32, _power(-(-n // 256)), 1
    return 32, min(8, _power(-(-n // 2048))), 8


def _run(task: Task, x: Any, indices: Any, layout: Layout, y: Any, *, first: bool) -> None:
    """Launch stages until one segment is left; ``indices`` are the positions of partial results (0: none)."""
    plan = (_rows if layout.columns == 1 else _columns)(task, layout, x.dtype, y.dtype, _memory.address(x) % 16, first)
    if plan.segments == 1:
        launch(plan.kernel, plan.grid, plan.block, (x, indices, y, 0, *plan.numbers))
        return
    shape = (layout.batch, plan.segments, layout.columns)
    to, positions = cp.empty(shape, task.accumulator), cp.empty(shape, _INT64) if task.position else 0
    launch(plan.kernel, plan.grid, plan.block, (x, indices, to, positions, *plan.numbers))
    after = layout._replace(n=plan.segments, batch_stride=plan.segments * layout.columns, row_stride=layout.columns)
    _run(task, to, positions, after, y, first=False)


def _defines(task: Task, source: np.dtype, result: np.dtype, first: bool, last: bool) -> Defines:
    return (
        ("T_IN", ctype(source)),
        ("T_ACC", ctype(task.accumulator)),
        ("T_OUT", ctype(result if last else task.accumulator)),
        ("OP", _OPS[task.op]),
        ("SQUARE", int(task.op == "sumsq" and first)),
        ("FIRST", int(first)),
        ("LAST", int(last)),
        ("MEAN", int(task.op == "mean" and last)),
    )


@lru_cache(maxsize=4096)
def _rows(task: Task, layout: Layout, source: np.dtype, result: np.dtype, phase: int, first: bool) -> Stage:
    """Plan a stage over rows; ``phase`` is the input's address modulo 16."""
    lanes, steps, warps = _shape_of_rows(layout.n)
    segments = -(-layout.n // (8 * lanes * steps * warps))
    unit = min(16, 8 * source.itemsize)
    whole = phase % unit == 0 and (layout.batch == 1 or layout.batch_stride * source.itemsize % unit == 0)
    defines = _defines(task, source, result, first, segments == 1)
    size = (("LANES", lanes), ("STEPS", steps), ("WARPS", warps), ("ALIGNED", int(whole)))
    results = layout.batch * segments
    numbers = tuple(map(np.int64, (results, segments, layout.n, layout.batch_stride, task.elements)))
    grid = (-(-results * lanes * warps // _THREADS),)
    return Stage(kernel("reduce.cu", "reduce_rows", (*defines, *size)), grid, (_THREADS,), numbers, segments)


@lru_cache(maxsize=4096)
def _columns(task: Task, layout: Layout, source: np.dtype, result: np.dtype, phase: int, first: bool) -> Stage:
    """Plan a stage over columns."""
    per = _pack(task, layout, source, phase)
    packs = layout.columns // per
    depth = min(_power(-(-layout.n // _ROWS)), _THREADS // min(32, _power(packs)))  # threads along n
    wide = _THREADS // depth
    segments, tiles = -(-layout.n // (_ROWS * depth)), -(-packs // wide)
    defines = _defines(task, source, result, first, segments == 1)
    split = (np.uint32(segments), np.uint32(tiles))  # the grid is their multiple
    steps = (layout.n, layout.columns, layout.batch_stride, layout.row_stride, task.elements)
    numbers = (*split, *map(np.int64, steps))
    run = kernel("reduce.cu", "reduce_columns", (*defines, ("PER", per)))
    return Stage(run, (layout.batch * segments * tiles,), (wide, depth), numbers, segments)


def _pack(task: Task, layout: Layout, source: np.dtype, phase: int) -> int:
    """Columns per thread: up to 4, 16 bytes of input and 32 of partial results, dividing rows into aligned packs."""
    size = source.itemsize
    per = min(4, 16 // size, 32 // (16 if task.position else task.accumulator.itemsize))
    strides = (layout.columns, layout.row_stride, layout.batch_stride)
    while per > 1 and not (phase % (per * size) == 0 and all(s % per == 0 for s in strides)):
        per //= 2
    return per


def instances() -> list[Instance]:
    """What CI compiles: a long bf16 sum, bf16 columns, and a position."""
    bf16, f32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
    total, position = Task("sum", f32, 1 << 20), Task("argmax", f32, 1024)
    stages = (
        _rows(total, Layout(1, 1 << 20, 1, 1 << 20, 1), bf16, bf16, 0, True),
        _columns(total, Layout(1, 128, 1024, 0, 1024), bf16, bf16, 0, True),
        _rows(position, Layout(64, 1024, 1, 1024, 1), f32, _INT64, 0, True),
    )
    return [stage.kernel.instance for stage in stages]
