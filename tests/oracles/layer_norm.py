"""Layer normalisation and its gradient in float64, by the formulas."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def _parts(x: npt.ArrayLike, weight: npt.ArrayLike, zero_centered: bool) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(x).astype(np.float64), np.asarray(weight).astype(np.float64) + zero_centered


def statistics(x: npt.ArrayLike, eps: float = 1e-5) -> tuple[np.ndarray, np.ndarray]:
    """Mean and 1 / sqrt(var + eps) of each row."""
    rows = np.asarray(x).astype(np.float64)
    rows = rows.reshape(int(np.prod(rows.shape[:-1])), rows.shape[-1])
    mean = rows.mean(1)
    with np.errstate(divide="ignore"):
        return mean, 1 / np.sqrt(((rows - mean[:, None]) ** 2).mean(1) + eps)


def layer_norm(
    x: npt.ArrayLike,
    weight: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    eps: float = 1e-5,
    zero_centered_gamma: bool = False,
) -> np.ndarray:
    """(x - mean) / sqrt(var + eps) * g + bias."""
    rows, g = _parts(x, weight, zero_centered_gamma)
    centered = rows - rows.mean(-1, keepdims=True)
    y = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + eps) * g
    return np.asarray(y if bias is None else y + np.asarray(bias).astype(np.float64))


def layer_norm_vjp(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    weight: npt.ArrayLike,
    *,
    eps: float = 1e-5,
    zero_centered_gamma: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients of x, weight and bias."""
    rows, g = _parts(x, weight, zero_centered_gamma)
    up = np.asarray(dy).astype(np.float64)
    centered = rows - rows.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((centered**2).mean(-1, keepdims=True) + eps)
    t, u = centered * rstd, up * g
    dx = rstd * (u - u.mean(-1, keepdims=True) - t * (u * t).mean(-1, keepdims=True))
    before = tuple(range(rows.ndim - 1))
    return dx, (up * t).sum(before), up.sum(before)
