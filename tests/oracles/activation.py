"""Activation functions and their derivatives in float64, by the textbook formulas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

_C, _Q = np.sqrt(2 / np.pi), 1.702


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


def _relu(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, 0.0, x)


def _relu_slope(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), x, (x > 0) * 1.0)


_KINDS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]] = {
    "gelu": (_gelu, _gelu_slope),
    "relu": (_relu, _relu_slope),
    "silu": (lambda x: x * _sigmoid(x), _silu_slope),
    "qgelu": (lambda x: x * _sigmoid(_Q * x), lambda x: _silu_slope(_Q * x)),
    "srelu": (lambda x: _relu(x) ** 2, lambda x: 2 * _relu(x)),
    "sigmoid": (_sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x)),
}
_GATES = {
    "glu": "sigmoid", "geglu": "gelu", "qgeglu": "qgelu", "reglu": "relu", "sreglu": "srelu", "swiglu": "silu",
}  # fmt: skip
_CLAMP = (7.0, 1.702, 1.0)  # limit, alpha, offset
_BLOCKING = ("relu", "srelu")  # let no dy through where the slope is 0


def _overflowing(x: np.ndarray) -> np.ndarray:
    """inf where float32, in which kernels multiply on, holds no number."""
    single = x.astype(np.float32)
    return np.where(np.isinf(single), single, x)


def _clamped(x: np.ndarray, params: tuple[float, ...]) -> tuple[np.ndarray, ...]:
    """Both halves, what becomes of the first one with its slope, and what becomes of the second one."""
    limit, alpha, offset = params
    a, b = np.split(x, 2, axis=-1)
    c = np.where(a > limit, limit, a)
    d = np.where(np.abs(b) > limit, np.sign(b) * limit, b) + offset
    return a, b, _overflowing(c * _sigmoid(alpha * c)), _silu_slope(alpha * c), d


def activation(x: npt.ArrayLike, kind: str = "gelu", params: tuple[float, ...] = _CLAMP) -> np.ndarray:
    """act(x), or act(a) b for a gated kind; ``params`` of clamped_swiglu."""
    with np.errstate(all="ignore"):
        x = np.asarray(x, np.float64) * 1.0  # makes every NaN a quiet one
        if kind == "clamped_swiglu":
            *_, y, _, d = _clamped(x, params)
            return y * d
        if kind in _GATES:
            a, b = np.split(x, 2, axis=-1)
            return _overflowing(_KINDS[_GATES[kind]][0](a)) * b
        return _KINDS[kind][0](x)


def activation_vjp(
    x: npt.ArrayLike, dy: npt.ArrayLike, kind: str = "gelu", params: tuple[float, ...] = _CLAMP
) -> np.ndarray:
    """act'(x) dy, or (act'(a) b dy, act(a) dy) for a gated kind."""
    with np.errstate(all="ignore"):
        x, dy = np.asarray(x, np.float64) * 1.0, np.asarray(dy, np.float64)
        if kind == "clamped_swiglu":
            a, b, y, slope, d = _clamped(x, params)
            da, db = np.where(a > params[0], 0.0, slope * (dy * d)), np.where(np.abs(b) > params[0], 0.0, y * dy)
            return np.concatenate([np.where(np.isnan(a), a, da), np.where(np.isnan(b), b, db)], axis=-1)
        if kind in _GATES:
            a, b = np.split(x, 2, axis=-1)
            act = _GATES[kind]
            return np.concatenate([activation_vjp(a, dy * b, act), _overflowing(activation(a, act)) * dy], axis=-1)
        slope = _KINDS[kind][1](x)
        return np.where(slope == 0, 0.0, slope * dy) if kind in _BLOCKING else slope * dy
