"""`hadamard`: the random Hadamard transform of 16 along an axis."""

from __future__ import annotations

from typing import Any

from nvfp.dtypes.rotation import BFLOAT16, rotated_length
from nvfp.errors import ShapeError, message
from nvfp.kernels._check import axis_index, check_float, check_out, check_word
from nvfp.kernels._dispatch import backend
from nvfp.kernels._prepared import prepared


@prepared
def hadamard(
    x: Any, *, axis: int = -1, inverse: bool = False, amax_out: Any | None = None, out: Any | None = None
) -> Any:
    """Rotate groups of 16 neighbours along ``axis``: ``y_j = 1/4 sum_i (-1)**popcount(i & j) s_i x_i``.

    s are the fixed signs of Transformer Engine (`dtypes.rotation.SIGNS`). The matrix is orthogonal, so a product of
    two operands that are both rotated along the contraction is the product of the operands.

    Args:
        x: raw array of float32, bfloat16, float16 or float64; any strides, at least one axis.
        axis: the axis of the groups. A last group that is not full counts as filled up with zeros.
        inverse: the transposed matrix (signs last), which turns back up to the rounding.
        amax_out: float32 word that becomes ``max(old, largest finite magnitude of the result)``.
        out: bfloat16 array of the shape of the result, any strides; must not overlap ``x``.

    Returns:
        bfloat16, ``axis`` rounded up to a multiple of 16: the values behind the end of x are part of the rotation.

    Raises:
        DTypeError: another dtype, or a word of another one.
        ShapeError: an axis that ``x`` lacks, or an ``out`` that does not fit.

    Numerics:
        float32 in a fixed order (four butterfly stages of strides 1, 2, 4, 8, then a product with 1/4) and one
        rounding to bfloat16; float64 is first rounded to float32 with round-to-odd. NaN and inf spread over their
        group; NaN has the bits 0x7FC0. CPU, CUDA and `dtypes.rotation.rotate_exact` give the same bits.

    Source:
        TE numerics B5.6.

    Example:
        >>> import numpy as np
        >>> hadamard(np.float32([4] + 15 * [0])).tolist() == 16 * [1.0]
        True
    """
    check_float("hadamard", x)
    if x.ndim == 0:
        raise ShapeError(message("hadamard", "at least one axis", "a 0-d array", "reshape it"))
    axis = axis_index("hadamard", axis, x.ndim)
    shape = (*x.shape[:axis], rotated_length(x.shape[axis]), *x.shape[axis + 1 :])
    check_out("hadamard", out, shape, BFLOAT16)
    if amax_out is not None:
        check_word("hadamard", "amax_out", amax_out)
    twin = backend("hadamard", x, amax_out, out)
    return twin.hadamard(x, axis=axis, inverse=bool(inverse), amax_out=amax_out, out=out)
