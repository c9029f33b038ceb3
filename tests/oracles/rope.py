"""Rotary position embedding in float64: by the matrix of each pair."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def rope(x: npt.ArrayLike, freqs: npt.ArrayLike, *, interleaved: bool = False, inverse: bool = False) -> np.ndarray:
    """Multiply x [B, L, H, D] by the rotation matrix of each position, or by its transpose."""
    x, freqs = np.asarray(x, np.float64), np.asarray(freqs, np.float64)
    positions, rotated, width = x.shape[1], freqs.shape[1], x.shape[3]
    matrix = np.zeros((positions, width, width))
    matrix[:, np.arange(width), np.arange(width)] = 1
    for k in range(rotated // 2):
        i, j = (2 * k, 2 * k + 1) if interleaved else (k, k + rotated // 2)
        for a in (i, j):
            matrix[:, a, a] = np.cos(freqs[:positions, a])
        matrix[:, i, j], matrix[:, j, i] = -np.sin(freqs[:positions, i]), np.sin(freqs[:positions, j])
    return np.einsum("blhd,led->blhe", x, matrix.swapaxes(1, 2) if inverse else matrix)
