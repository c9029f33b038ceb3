"""CUDA twin of `kernels.hadamard`: one launch, any strides on both sides."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.dtypes.rotation import BFLOAT16, GROUP, SIGNS, rotated_length
from nvfp.kernels._check import Words
from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._launch import launch
from nvfp.kernels.cuda._layout import Cube, cube, element_strides
from nvfp.kernels.cuda._loader import Defines, Instance, kernel
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.cuda.cast import cast

_SOURCE = "hadamard.cu"
_THREADS = 256  # = hadamard.cu's THREADS
_WIDE = 4  # columns of a thread, whose elements all fit into registers
SIGNS_MACRO: Defines = (("SIGNS", ",".join(f"{sign}.0f" for sign in SIGNS)),)


def _defines(dtype: np.dtype, width: int, line: bool, inverse: bool, keep: bool = True) -> Defines:
    flags = (("LINE", int(line)), ("INVERSE", int(inverse)), ("KEEP", int(keep)))
    return (("T_IN", ctype(dtype)), ("WIDE", width), *flags, *SIGNS_MACRO)


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
    line = x.dtype.itemsize < 8 and _lines(x, come) and _lines(y, go)
    width = 1 if line else min(_columns(x, come), _columns(y, go))
    _launch(x, y, come, go, (width, line, inverse), (amax_out, None), (None, None))
    return y


def rotated_amax(x: Any, words: Words, source: Words) -> None:
    """Raise ``words`` to the largest finite magnitude of ``x`` rotated along its rows, ``source`` to that of x.

    Args:
        x: raw contiguous matrix.
        words: two float32 words or None.
        source: likewise.
    """
    at = cube(x.shape, element_strides(x), 0, 1)
    assert at is not None, "a contiguous array has no gaps"
    if x.size:
        _launch(x, None, at, at, (_columns(x, at), False, False), words, source)


def _launch(
    x: Any, y: Any | None, come: Cube, go: Cube, how: tuple[int, bool, bool], words: Words, source: Words
) -> None:
    """One launch; ``how``: columns of a thread, whether it moves lines, inverse. ``y`` None: nothing but maxima."""
    width, line, inverse = how
    outer, n = come.batch, come.rows
    if line and come.columns == 1 and n % GROUP == 0 and come.batch_stride == n == go.batch_stride:
        outer, n = 1, outer * n  # whole groups side by side
    groups = outer * -(-n // GROUP) * (come.columns // width)
    strides = [(a.batch_stride, a.row_stride, a.column_stride) for a in (come, go)]
    found = kernel(_SOURCE, "hadamard", _defines(x.dtype, width, line, inverse, keep=y is not None))
    args = (x, y, outer, n, come.columns, *strides[0], *strides[1], *words, *source)
    launch(found, (-(-groups // _THREADS),), (_THREADS,), args)


def _lines(x: Any, at: Cube) -> bool:
    """Whether every group lies side by side from a multiple of 16 bytes on."""
    steps = (at.batch_stride * x.dtype.itemsize, at.column_stride * x.dtype.itemsize)
    return at.row_stride == 1 and _memory.aligned(x) and not any(step % 16 for step in steps)


def _columns(x: Any, at: Cube) -> int:
    """How many neighbouring columns can be moved at once."""
    steps = (at.columns, at.batch_stride, at.row_stride)
    for width in (_WIDE, 2):
        fits = width * x.dtype.itemsize <= 16 and x.dtype.itemsize < 8
        if fits and _memory.aligned(x, width * x.dtype.itemsize) and not any(step % width for step in steps):
            return width if at.column_stride == 1 else 1
    return 1


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return [Instance(_SOURCE, "hadamard", _defines(BFLOAT16, _WIDE, False, False))]
