"""`elementwise` on CUDA: one kernel per op, types, rank and pack width; any strides.

Operands are read in place, but for large transposed ones: those are turned by tiles first (`_transpose`), as a row of
the output would touch a whole sector for each of their elements.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from nvfp.kernels.cast import cast
from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._launch import launch
from nvfp.kernels.cuda._layout import Shape, collapse
from nvfp.kernels.cuda._loader import Defines, Instance, Kernel, kernel
from nvfp.kernels.cuda._transpose import SMALL
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.elementwise_table import OPS

_THREADS = 256
_WIDEST = 8  # elements of a pack
_BOOL, _INT32 = np.dtype(np.bool_), np.dtype(np.int32)
_LARGEST_GRID = 2**31 - 1


# What the launch of an array depends on: dtype, shape, strides in bytes, address modulo 16.
View = tuple[np.dtype, Shape, Shape, int]


class _Plan(NamedTuple):
    kernel: Kernel
    grid: tuple[int, ...]
    scalar: type[np.generic]  # type of scalar arguments
    rest: tuple[Any, ...]  # arguments behind the arrays
    turned: tuple[bool, ...] = ()  # which operands to turn first; none where this is empty


def elementwise(
    op: str,
    *args: Any,
    dtype: np.dtype,
    compute: np.dtype,
    shape: tuple[int, ...],
    out: Any | None = None,
) -> Any:
    """Compute `kernels.elementwise`; ``compute`` is the dtype of the computation, scalars have it."""
    if out is None:
        out = cp.empty(shape, dtype)
    else:
        args = tuple(cast(a, a.dtype) if _crosses(a, out) else a for a in args)
    if out.size == 0:
        return out
    views = tuple([None if isinstance(a, np.generic) else _view(a) for a in (*args, out)])
    plan = _plan(op, compute, views)
    if plan.turned:
        args = tuple(cast(a, a.dtype) if turn else a for a, turn in zip(args, plan.turned))
        views = tuple([None if isinstance(a, np.generic) else _view(a) for a in (*args, out)])
        plan = _plan(op, compute, views)
    values = args if None not in views else [a if v is not None else plan.scalar(a) for a, v in zip(args, views)]
    launch(plan.kernel, plan.grid, (_THREADS,), (*values, out, *plan.rest))
    return out


def _view(x: Any) -> View:
    return x.dtype, x.shape, x.strides, _memory.address(x) % 16


def _crosses(a: Any, out: Any) -> bool:
    """Whether ``a`` overlaps ``out`` other than by being the same view."""
    if isinstance(a, np.generic):
        return False
    at, to = _memory.address(a), _memory.address(out)
    if at == to and a.shape == out.shape and a.strides == out.strides:
        return False
    a_low, a_high = _reach(a.shape, a.strides, a.dtype.itemsize)
    low, high = _reach(out.shape, out.strides, out.dtype.itemsize)
    return at + a_low < to + high and to + low < at + a_high


@lru_cache(maxsize=4096)
def _reach(shape: Shape, strides: Shape, itemsize: int) -> tuple[int, int]:
    """Bytes from an array's address to its first byte and to behind its last one."""
    if 0 in shape:
        return 0, 0
    steps = [(n - 1) * s for n, s in zip(shape, strides)]
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + itemsize


@lru_cache(maxsize=4096)
def _plan(op: str, compute: np.dtype, views: tuple[View | None, ...]) -> _Plan:
    """Choose the kernel and its arguments; the last view is the output, None stands for a scalar."""
    row, acc = OPS[op], _INT32 if compute == _BOOL else compute
    shape, strides, per = walk(views)
    rank = len(shape)
    packs, tail = divmod(int(np.prod(shape, dtype=np.int64)), per)  # a tail only where there is one axis
    unroll = 2 if per * row.arity * acc.itemsize <= 64 else 1
    index = np.uint32 if packs < 2**31 else np.uint64
    defines: Defines = (
        ("ARITY", row.arity),
        ("EXPR", row.cuda),
        ("T_ACC", ctype(acc)),
        *((f"ARG_{n}", ctype(acc) if v is None else f"const {ctype(v[0])}*") for n, v in zip("ABC", views[:-1])),
        ("T_OUT", ctype(_output(views)[0])),
        ("RANK", rank),
        ("PER", per),
        ("UNROLL", unroll),
        ("INDEX", ctype(np.dtype(index))),
    )
    words = np.array([*shape[:-1], shape[-1] // per, *(s for one in strides for s in one)], np.int64)
    grid = min(max(1, -(-packs // (_THREADS * unroll))), _LARGEST_GRID)
    rest = (words.view(np.dtype((np.void, words.nbytes))), index(packs), np.int32(tail))
    turned = tuple(v is not None and _transposed(v, _output(views)) for v in views[:-1])
    return _Plan(
        kernel("elementwise.cu", "elementwise", defines), (grid,), acc.type, rest, turned if any(turned) else ()
    )


def _transposed(view: View, output: View) -> bool:
    """Whether an operand is large and runs along another axis than the output."""
    (dtype, shape, *_), large = view, 1 << 20
    if shape != output[1] or np.prod(shape, dtype=np.int64) * dtype.itemsize < large:
        return False
    lengths, (come, go) = collapse(shape, _strides(view, shape), _strides(output, shape))
    return len(lengths) in (2, 3) and come[-2] == 1 == go[-1] and min(lengths[-2:]) >= SMALL


def _output(views: tuple[View | None, ...]) -> View:
    output = views[-1]
    assert output is not None  # only operands can be scalars
    return output


def walk(views: tuple[View | None, ...]) -> tuple[Shape, tuple[Shape, ...], int]:
    """Collapse the axes of operands and output (the last view) and find the widest pack.

    Args:
        views: None for scalars by value, which get strides of 0.

    Returns:
        The collapsed shape in elements, strides in elements for each view, and the elements of a pack: a power
        of two, above 1 only where the last axis is contiguous or broadcast in every view and packs are
        aligned; it divides the last length unless there is only one axis.

    Example:
        >>> f4 = np.dtype(np.float32)
        >>> matrix, row = (f4, (6, 8), (32, 4), 0), (f4, (8,), (4,), 0)
        >>> walk((matrix, row, matrix))
        ((6, 8), ((8, 1), (0, 1), (8, 1)), 4)
        >>> walk((matrix, None, matrix))
        ((48,), ((1,), (0,), (1,)), 4)
    """
    shape = _output(views)[1]
    shape, strides = collapse(shape, *(_strides(v, shape) for v in views))
    return shape, strides, _pack(shape, strides, views)


def _strides(view: View | None, shape: Shape) -> Shape:
    """Strides in elements over ``shape``, 0 where the view is broadcast."""
    if view is None:
        return (0,) * len(shape)
    dtype, lengths, strides, _ = view
    own = tuple(0 if n == 1 else s // dtype.itemsize for n, s in zip(lengths, strides))
    return (0,) * (len(shape) - len(own)) + own


def _pack(shape: Shape, strides: tuple[Shape, ...], views: tuple[View | None, ...]) -> int:
    arrays = [(v, s) for v, s in zip(views, strides) if v is not None]
    if strides[-1][-1] != 1 or any(s[-1] not in (0, 1) for s in strides):
        return 1
    per = min(_WIDEST, 16 // max(dtype.itemsize for (dtype, *_), _ in arrays))
    while per > 1 and not all(_fits(v, s, per) for v, s in arrays if s[-1] == 1):
        per //= 2
    while per > 1 and len(shape) > 1 and shape[-1] % per:
        per //= 2
    return per


def _fits(view: View, strides: Shape, per: int) -> bool:
    """Whether every pack of a view begins at a multiple of its own size (at most 16 bytes)."""
    dtype, _, _, phase = view
    unit = min(16, per * dtype.itemsize)
    return phase % unit == 0 and all(s * dtype.itemsize % unit == 0 for s in strides[:-1])


def instances() -> list[Instance]:
    """What CI compiles: a flat 16-bit op, and a broadcast one with a scalar."""
    bf16, f32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
    flat: View = (bf16, (4096,), (2,), 0)
    matrix, column = (f32, (64, 64), (256, 4), 0), (f32, (64, 1), (4, 4), 0)
    plans = (
        _plan("add", f32, (flat, flat, flat)),
        _plan("multiply_add", f32, (matrix, column, None, matrix)),
    )
    return [plan.kernel.instance for plan in plans]
