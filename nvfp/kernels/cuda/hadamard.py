"""CUDA twin of `kernels.hadamard`: one launch, any strides on both sides."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.dtypes.rotation import BFLOAT16, GROUP, SIGNS, rotated_length
from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._launch import grid_for, launch
from nvfp.kernels.cuda._layout import Cube, cube, element_strides
from nvfp.kernels.cuda._loader import Defines, Instance, kernel
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.cuda.cast import cast

_SOURCE = "hadamard.cu"
_THREADS = 256  # = hadamard.cu's THREADS
_WIDE = 4  # columns of a thread
_SIGNS = ",".join(f"{sign}.0f" for sign in SIGNS)


def _defines(dtype: np.dtype, width: int, line: bool, inverse: bool) -> Defines:
    return (
        ("T_IN", ctype(dtype)), ("WIDE", width), ("LINE", int(line)), ("INVERSE", int(inverse)), ("SIGNS", _SIGNS),
    )  # fmt: skip


def hadamard(x: Any, *, axis: int, inverse: bool, amax_out: Any | None, out: Any | None) -> Any:
    """See `nvfp.kernels.hadamard.hadamard`."""
    shape = (*x.shape[:axis], rotated_length(x.shape[axis]), *x.shape[axis + 1 :])
    y = cp.empty(shape, BFLOAT16) if out is None else out
    if y.size == 0:
        return y
    come, go = (cube(a.shape, element_strides(a), axis, axis + 1) for a in (x, y))
    if come is None:
        x = cast(x, x.dtype, source=None, target=None, overflow="saturate", out=None)
        come = cube(x.shape, element_strides(x), axis, axis + 1)
        assert come is not None, "a contiguous array has no gaps"
    if go is None:
        whole = hadamard(x, axis=axis, inverse=inverse, amax_out=amax_out, out=None)
        return cast(whole, BFLOAT16, source=None, target=None, overflow="saturate", out=y)
    line = _lines(x, come) and _lines(y, go)
    width = 1 if line else _WIDE if _columns(x, come) and _columns(y, go) else 1
    grid = grid_for(come.batch * -(-come.rows // GROUP) * come.columns // width, _THREADS)
    lengths = (come.batch, come.rows, come.columns)
    strides = [(a.batch_stride, a.row_stride, a.column_stride) for a in (come, go)]
    args = (x, y, *lengths, *strides[0], *strides[1], amax_out)
    launch(kernel(_SOURCE, "hadamard", _defines(x.dtype, width, line, inverse)), grid, (_THREADS,), args)
    return y


def _lines(x: Any, at: Cube) -> bool:
    """Whether every group lies side by side from a multiple of 16 bytes on."""
    steps = (at.batch_stride * x.dtype.itemsize, at.column_stride * x.dtype.itemsize)
    return at.row_stride == 1 and _memory.aligned(x) and not any(step % 16 for step in steps)


def _columns(x: Any, at: Cube) -> bool:
    """Whether `_WIDE` neighbouring columns can be moved at once."""
    steps = (at.columns, at.batch_stride, at.row_stride)
    piece = min(16, _WIDE * x.dtype.itemsize)
    return at.column_stride == 1 and _memory.aligned(x, piece) and not any(step % _WIDE for step in steps)


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return [Instance(_SOURCE, "hadamard", _defines(BFLOAT16, _WIDE, False, False))]
