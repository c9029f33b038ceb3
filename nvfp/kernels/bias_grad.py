"""`bias_grad`: the sum of a gradient over its rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.errors import ShapeError, message
from nvfp.kernels._check import check_out
from nvfp.kernels._dense import check_computed, check_computed_dtype, contiguous, deliver, plain_out
from nvfp.kernels._dispatch import backend
from nvfp.kernels._prepared import prepared

TILE, GROUP = 128, 4  # rows of a tile, and of a group in it
LANES = 32  # the sums of a column's tiles are dealt to so many lanes


def tiles_of(rows: int) -> int:
    """Return the number of tiles of ``rows`` rows.

    Example:
        >>> tiles_of(128), tiles_of(129)
        (1, 2)
    """
    return -(-rows // TILE)


def chunk_rows(rows: int) -> int:
    """Return how many rows one partial sum of a norm's gradients covers: 64, or what leaves at most 1024 sums.

    Args:
        rows: number of rows, M.

    Returns:
        A multiple of 64, a function of ``rows`` alone.

    Example:
        >>> chunk_rows(1000), chunk_rows(1_000_000)
        (64, 1024)
    """
    return max(64, -(-rows // 65536) * 64)


@prepared
def bias_grad(dy: Any, *, dtype: np.dtype | None = None, out: Any | None = None) -> Any:
    """Return the column sums ``db[n] = sum_m dy[m, n]``: the gradient of a bias.

    Args:
        dy: raw array [..., N] of float32, bfloat16 or float16, summed over all axes but the last; any strides.
        dtype: float32, bfloat16 or float16, of the result; default: that of ``dy``.
        out: array [N] of that dtype, any strides.

    Returns:
        [N]; zeros if ``dy`` has no rows.

    Raises:
        DTypeError: another dtype.
        ShapeError: a 0-d ``dy``, or an ``out`` that does not fit.

    Numerics:
        float32 sums in a fixed order, rounded once: tiles of 128 rows, in groups of 4, each from top to bottom, the
        32 groups by a balanced tree of neighbours (rows beyond the last count as zeros); tile k into lane k mod 32;
        the 32 lanes by such a tree. CPU and CUDA give the same bits, and so does `quantize` with ``bias_grad``.

    Source:
        Own.

    Example:
        >>> import numpy as np
        >>> bias_grad(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)).tolist()
        [4.0, 6.0]
    """
    check_computed("bias_grad", "dy", dy)
    dtype = dy.dtype if dtype is None else dtype
    check_computed_dtype("bias_grad", dtype)
    if dy.ndim == 0:
        raise ShapeError(message("bias_grad", "dy [..., N]", dy.shape, "pass at least one axis"))
    columns = dy.shape[-1]
    check_out("bias_grad", out, (columns,), dtype)
    rows = dy.size // columns if columns else 0
    matrix = contiguous(dy).reshape(rows, columns)
    return deliver(backend("bias_grad", dy, out).bias_grad(matrix, dtype=dtype, out=plain_out(out)), out)
