"""CPU twin of `kernels.activation`; the formulas operation for operation as in `cuda/include/activation.cuh`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.cpu._exp import fma, sigmoid32, sigmoid_parts
from nvfp.kernels.cpu._njit import inline, njit
from nvfp.kernels.cpu._tiles import elementwise

# 2 sqrt(2/pi) and 2 sqrt(2/pi) 0.044715: the argument of the sigmoid is 2u.
_A = np.float32(2 * 0.79788456)
_B = np.float32(2 * 0.03567741)
_B3 = np.float32(3 * 2 * 0.03567741)
_FAR_GELU = np.float32(16.0)  # beyond: sigmoid(2u) is exactly 0 or 1 in float32, and so is gelu'
_FAR_SILU = np.float32(128.0)  # beyond: the same for silu'
_ONE, _ZERO = np.float32(1.0), np.float32(0.0)


@inline
def _clip(x: np.float32, limit: np.float32) -> np.float32:
    x = -limit if x < -limit else x
    return limit if x > limit else x


@inline
def _gelu(x: np.float32) -> np.float32:
    c = _clip(x, _FAR_GELU)
    return x * sigmoid32(c * fma(_B, c * c, _A))


@inline
def _gelu_slope(x: np.float32) -> np.float32:
    c = _clip(x, _FAR_GELU)
    square = c * c
    z = c * fma(_B, square, _A)
    e, total = sigmoid_parts(z)
    inverse = _ONE / total
    s = (e if z < _ZERO else _ONE) * inverse
    return fma(c * (e * inverse * inverse), fma(_B3, square, _A), s)


@inline
def _silu_slope(x: np.float32) -> np.float32:
    c = _clip(x, _FAR_SILU)
    e, total = sigmoid_parts(c)
    inverse = _ONE / total
    s = (e if c < _ZERO else _ONE) * inverse
    rest = (_ONE if c < _ZERO else e) * inverse
    return s * fma(c, rest, _ONE)


@njit
def _gelu_tile(x: np.ndarray, y: np.ndarray) -> None:
    for i in range(y.size):
        y[i] = _gelu(x[i])


@njit
def _relu_tile(x: np.ndarray, y: np.ndarray) -> None:
    for i in range(y.size):
        y[i] = _ZERO if x[i] <= _ZERO else x[i]  # NaN passes


@njit
def _silu_tile(x: np.ndarray, y: np.ndarray) -> None:
    for i in range(y.size):
        y[i] = x[i] * sigmoid32(x[i])


@njit
def _gelu_vjp_tile(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    for i in range(dx.size):
        dx[i] = _gelu_slope(x[i]) * dy[i]


@njit
def _relu_vjp_tile(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    for i in range(dx.size):
        passed = dy[i] if x[i] > _ZERO else x[i]
        dx[i] = _ZERO if x[i] <= _ZERO else passed


@njit
def _silu_vjp_tile(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    for i in range(dx.size):
        dx[i] = _silu_slope(x[i]) * dy[i]


_FORWARD = {"gelu": _gelu_tile, "relu": _relu_tile, "silu": _silu_tile}
_BACKWARD = {"gelu": _gelu_vjp_tile, "relu": _relu_vjp_tile, "silu": _silu_vjp_tile}


def activation(x: Any, kind: str = "gelu", *, out: Any | None = None) -> Any:
    """See `nvfp.kernels.activation.activation`."""
    y = np.empty(x.shape, x.dtype) if out is None else out
    elementwise(_FORWARD[kind], (x,), y)
    return y


def activation_vjp(x: Any, dy: Any, kind: str = "gelu", *, out: Any | None = None) -> Any:
    """See `nvfp.kernels.activation.activation_vjp`."""
    dx = np.empty(x.shape, x.dtype) if out is None else out
    elementwise(_BACKWARD[kind], (x, dy), dx)
    return dx
