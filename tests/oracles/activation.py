"""Activation functions and their derivatives in float64, by the textbook formulas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

_C = np.sqrt(2 / np.pi)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1 + e)


def _gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.tanh(_C * (x + 0.044715 * x**3)))


def _gelu_slope(x: np.ndarray) -> np.ndarray:
    x = np.clip(x, -40, 40)  # the limits beyond; inf would give 0 * inf
    t = np.tanh(_C * (x + 0.044715 * x**3))
    return (1 + t) / 2 + x / 2 * (1 - t * t) * _C * (1 + 3 * 0.044715 * x**2)


def _silu_slope(x: np.ndarray) -> np.ndarray:
    x = np.clip(x, -800, 800)
    s = _sigmoid(x)
    return s * (1 + x * _sigmoid(-x))


_KINDS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]] = {
    "gelu": (_gelu, _gelu_slope),
    "relu": (lambda x: np.where(x < 0, 0.0, x), lambda x: np.where(np.isnan(x), x, (x > 0) * 1.0)),
    "silu": (lambda x: x * _sigmoid(x), _silu_slope),
}


def activation(x: npt.ArrayLike, kind: str = "gelu") -> np.ndarray:
    """act(x)."""
    with np.errstate(all="ignore"):
        return _KINDS[kind][0](np.asarray(x, np.float64) * 1.0)  # makes every NaN a quiet one


def activation_vjp(x: npt.ArrayLike, dy: npt.ArrayLike, kind: str = "gelu") -> np.ndarray:
    """act'(x) * dy; relu lets no dy through where its slope is 0."""
    with np.errstate(all="ignore"):
        slope, dy = _KINDS[kind][1](np.asarray(x, np.float64) * 1.0), np.asarray(dy, np.float64)
        return np.where(slope == 0, 0.0, slope * dy) if kind == "relu" else slope * dy
