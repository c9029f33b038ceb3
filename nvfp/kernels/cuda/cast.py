"""CUDA twin of `nvfp.kernels.cast`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from nvfp.dtypes import elements as el
from nvfp.dtypes.codec import Overflow, Rounding
from nvfp.dtypes.elements import Element
from nvfp.kernels.cuda._constants import element_define
from nvfp.kernels.cuda._launch import grid_for, launch
from nvfp.kernels.cuda._layout import Shape, collapse, element_strides, strided_argument
from nvfp.kernels.cuda._loader import Defines, Instance, kernel
from nvfp.kernels.cuda._memory import aligned
from nvfp.kernels.cuda._transpose import copy_transposed
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp

THREADS = 256
BFLOAT16, FLOAT32, UINT8 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32), np.dtype(np.uint8)


def cast(
    x: Any,
    dtype: np.dtype,
    *,
    source: Element | None,
    target: Element | None,
    overflow: Overflow,
    out: Any | None,
    rounding: Rounding = "even",
) -> Any:
    """See `nvfp.kernels.cast.cast`; `source` and `target` are the rows of narrow sides."""
    if target is not None:
        dtype = UINT8
    if out is None:
        out = cp.empty(x.shape, dtype)
    n: int = x.size
    if n == 0:
        return out
    shape: Shape = (n,)
    strides: tuple[Shape, ...] = ((1,), (1,))
    if not (x.flags.c_contiguous and out.flags.c_contiguous):
        shape, strides = collapse(x.shape, element_strides(x), element_strides(out))
    moves = source is None and target is None and x.dtype == dtype
    if moves and copy_transposed(x, out, shape, *strides):
        return out
    macros = _defines(x.dtype, dtype, source, target, overflow, rounding)
    if strides == ((1,), (1,)) and aligned(x) and aligned(out):
        read, written = x.dtype.itemsize, dtype.itemsize  # below: cast.cu's PER
        per = 16 // written if written > read else min(16 // written, 32 // read)
        grid = grid_for(n, THREADS, per_thread=per, per_sm=32)
        launch(kernel("cast.cu", "cast_flat", macros), grid, (THREADS,), (x, out, n))
    else:
        strided = kernel("cast.cu", "cast_strided", (*macros, ("RANK", len(shape))))
        grid = grid_for(n, THREADS, per_thread=2, per_sm=32)
        launch(strided, grid, (THREADS,), (x, out, strided_argument(shape, *strides), n))
    return out


def _defines(
    come: np.dtype,
    go: np.dtype,
    source: Element | None,
    target: Element | None,
    overflow: Overflow = "saturate",
    rounding: Rounding = "even",
) -> Defines:
    """Return the macros of ``cast.cu``; a copy needs only the item size."""
    if source is None and target is None and come == go:
        come = go = np.dtype(f"uint{8 * come.itemsize}")
    macros: Defines = (("T_IN", ctype(come)), ("T_OUT", ctype(go)))
    if source is not None:
        macros += element_define("SOURCE", source)
    if target is not None:
        macros += (*element_define("TARGET", target), ("SATURATE", int(overflow == "saturate")))
        macros += (("TOWARD_ZERO", 1),) if rounding == "toward_zero" else ()
    return macros


def instances() -> list[Instance]:
    """The kernels that CI compiles."""
    return [
        Instance("cast.cu", "cast_flat", _defines(FLOAT32, BFLOAT16, None, None)),
        Instance("cast.cu", "cast_flat", _defines(BFLOAT16, UINT8, None, el.float8_e4m3fn)),
        Instance("cast.cu", "cast_strided", (*_defines(BFLOAT16, BFLOAT16, None, None), ("RANK", 3))),
    ]
