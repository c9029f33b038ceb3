"""`transpose`: swap the last two axes into contiguous memory, of whole items or packed 4-bit codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.errors import DTypeError, ShapeError, message
from nvfp.kernels._check import check_out
from nvfp.kernels._dispatch import backend
from nvfp.kernels._prepared import prepared


@prepared
def transpose(x: Any, *, packed: bool = False, columns: int | None = None, out: Any | None = None) -> Any:
    """Return ``x`` with its last two axes swapped, contiguous.

    Args:
        x: raw array [..., M, N] of 1-, 2-, 4- or 8-byte items, any strides. With ``packed`` uint8
            [..., M, ceil(N / 2)]: two 4-bit codes per byte along the last axis, low nibble first.
        packed: whether ``x`` holds packed 4-bit codes.
        columns: N, for ``packed`` only; an odd N has one unused nibble per row. Default 2 * bytes.
        out: contiguous array of the result's shape and dtype, not overlapping ``x``.

    Returns:
        [..., N, M], or [..., N, ceil(M / 2)] with ``packed`` (the unused nibble of an odd M is 0).

    Raises:
        ShapeError: fewer than two axes, or ``columns`` that does not fit.
        DTypeError: an item size other than 1, 2, 4, 8, or packed codes that are not uint8.

    Numerics:
        Moves bits. CPU and CUDA agree.

    Example:
        >>> import numpy as np
        >>> transpose(np.array([[1, 2, 3], [4, 5, 6]], np.uint8)).tolist()
        [[1, 4], [2, 5], [3, 6]]
        >>> transpose(np.array([[0x21], [0x43]], np.uint8), packed=True).tolist()   # [[1, 2], [3, 4]]
        [[49], [66]]
    """
    if x.ndim < 2:
        raise ShapeError(message("transpose", "at least two axes", x.shape, "add an axis"))
    if x.dtype.itemsize not in (1, 2, 4, 8) or (packed and x.dtype != np.uint8):
        wanted = "packed codes as uint8" if packed else "items of 1, 2, 4 or 8 bytes"
        raise DTypeError(message("transpose", wanted, x.dtype, "view the array as an unsigned integer dtype"))
    *batch, m, width = x.shape
    if columns is None:
        columns = 2 * width if packed else width
    if columns != width if not packed else -(-columns // 2) != width:
        got = f"{columns} in {x.shape}"
        raise ShapeError(message("transpose", "columns that fill the last axis", got, "pass the logical N"))
    check_out("transpose", out, (*batch, columns, -(-m // 2) if packed else m), x.dtype)
    if out is not None and not out.flags.c_contiguous:
        raise ShapeError(message("transpose", "a contiguous out", f"strides {out.strides}", "allocate it in C order"))
    return backend("transpose", x, out).transpose(x, packed=packed, columns=columns, out=out)
