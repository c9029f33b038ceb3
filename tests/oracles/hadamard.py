"""The random Hadamard transform of 16 as a matrix, in float64, entry by entry."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SIGNS = np.array([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1], np.float64)
MATRIX = np.array([[(-1.0) ** (i & j).bit_count() for j in range(16)] for i in range(16)]) / 4


def hadamard(x: npt.ArrayLike, axis: int = -1, *, inverse: bool = False) -> np.ndarray:
    """The rotated values, not rounded; the axis is filled up to whole groups of 16."""
    moved = np.moveaxis(np.asarray(x, np.float64), axis, -1)
    n = moved.shape[-1]
    filled = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, -n % 16)])
    groups = filled.reshape(*filled.shape[:-1], -1, 16)
    with np.errstate(all="ignore"):
        turned = (groups @ MATRIX) * SIGNS if inverse else (groups * SIGNS) @ MATRIX
    return np.moveaxis(turned.reshape(filled.shape), -1, axis)
