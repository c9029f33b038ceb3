"""CUDA twin of `nvfp.kernels.transpose`."""

from __future__ import annotations

import math
from typing import Any

from nvfp.kernels.cuda._layout import cube, element_strides
from nvfp.kernels.cuda._loader import Instance
from nvfp.kernels.cuda._transpose import defines, launch_transpose
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.cuda.cast import cast


def transpose(x: Any, *, packed: bool, columns: int, out: Any | None) -> Any:
    """See `nvfp.kernels.transpose.transpose`."""
    *batch, rows, _ = x.shape
    if out is None:
        out = cp.empty((*batch, columns, (rows + 1) // 2 if packed else rows), x.dtype)
    if math.prod(batch) * rows * columns == 0:
        return out
    at = cube(x.shape, element_strides(x), x.ndim - 2, x.ndim - 1)
    if at is None:  # batch axes with gaps between them
        x = cast(x, x.dtype, source=None, target=None, overflow="saturate", out=None)
        at = cube(x.shape, element_strides(x), x.ndim - 2, x.ndim - 1)
        assert at is not None, "a contiguous array has no gaps"
    launch_transpose(x, out, at._replace(columns=columns), packed=packed)
    return out


def instances() -> list[Instance]:
    """The kernels that CI compiles."""
    return [Instance("transpose.cu", "transpose_pieces", defines(1)), Instance("transpose.cu", "transpose_nibbles")]
