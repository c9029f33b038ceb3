"""Root-mean-square normalisation and its gradient in float64, by the formulas."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def rms_norm(
    x: npt.ArrayLike, weight: npt.ArrayLike, *, eps: float = 1e-5, zero_centered_gamma: bool = False
) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * g."""
    rows = np.asarray(x).astype(np.float64)
    g = np.asarray(weight).astype(np.float64) + zero_centered_gamma
    return np.asarray(rows / np.sqrt((rows**2).mean(-1, keepdims=True) + eps) * g)


def rms_norm_vjp(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    weight: npt.ArrayLike,
    *,
    eps: float = 1e-5,
    zero_centered_gamma: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of x and weight."""
    rows, up = np.asarray(x).astype(np.float64), np.asarray(dy).astype(np.float64)
    g = np.asarray(weight).astype(np.float64) + zero_centered_gamma
    rstd = 1 / np.sqrt((rows**2).mean(-1, keepdims=True) + eps)
    t, u = rows * rstd, up * g
    dx = rstd * (u - t * (u * t).mean(-1, keepdims=True))
    return dx, (up * t).sum(tuple(range(rows.ndim - 1)))
