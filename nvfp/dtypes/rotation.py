"""The random Hadamard transform of 16, exactly: which values it has, in which order they are summed.

``y_j = 1/4 * sum_i h_ij s_i x_i`` with ``h_ij = (-1)**popcount(i & j)`` and the fixed signs s of Transformer
Engine. The matrix is orthogonal: where both operands of a product are rotated along the contraction, it cancels.
"""

from __future__ import annotations

from typing import Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nvfp.dtypes.codec import round_to_odd32

Rotation = Literal["rht16"]
GROUP = 16
SIGNS: tuple[int, ...] = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def rotated_length(n: int) -> int:
    """Return the length of a rotated axis: whole groups, the last one filled up with zeros.

    Example:
        >>> rotated_length(40), rotated_length(48)
        (48, 48)
    """
    return -(-n // GROUP) * GROUP


def rotate_exact(x: npt.ArrayLike, axis: int = -1, *, inverse: bool = False) -> np.ndarray:
    """Return ``x`` rotated along ``axis`` in groups of 16, rounded to bfloat16.

    In float32: the signs, four butterfly stages ``(a, b) -> (a + b, a - b)`` of strides 1, 2, 4 and 8, a product
    with 1/4; then one rounding to bfloat16. Each sum is one float32 operation, in this order: the order is part of
    the format. ``inverse`` applies the signs last. NaN has the bits 0x7FC0.

    Args:
        x: real numbers of at least one axis; float64 is first rounded to float32 with round-to-odd.
        axis: the axis of the groups.
        inverse: the transposed matrix, which turns back (up to the rounding).

    Returns:
        bfloat16, the length of ``axis`` rounded up to a multiple of 16.

    Source: Transformer Engine's RHT of 16; the order of the sums is nvfp's.

    Example:
        >>> rotate_exact(np.arange(1.0, 17.0))[:4].tolist()
        [-15.5, -7.5, 7.5, -0.5]
    """
    moved = np.moveaxis(round_to_odd32(x), axis, -1)
    *lead, n = moved.shape
    filled = np.zeros((*lead, rotated_length(n)), np.float32)
    filled[..., :n] = moved
    v = filled.reshape(*lead, filled.shape[-1] // GROUP, GROUP)
    signs = np.asarray(SIGNS, np.float32)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        v = v if inverse else v * signs
        for stride in (1, 2, 4, 8):
            pairs = v.reshape(*v.shape[:-1], GROUP // (2 * stride), 2, stride)
            a, b = pairs[..., 0, :], pairs[..., 1, :]
            v = np.stack([a + b, a - b], axis=-2).reshape(v.shape)
        v = v * np.float32(0.25)
        y = (v * signs if inverse else v).reshape(filled.shape).astype(BFLOAT16)
    bits = np.where(np.isnan(y), np.uint16(0x7FC0), y.view(np.uint16))
    return np.ascontiguousarray(np.moveaxis(bits.view(BFLOAT16), -1, axis))
