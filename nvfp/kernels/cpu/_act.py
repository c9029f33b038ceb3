"""Activation functions of one float32 (inside kernels), operation for operation as in `cuda/include/activation.cuh`."""

from __future__ import annotations

import numpy as np

from nvfp.kernels.cpu._exp import fma, sigmoid32, sigmoid_parts
from nvfp.kernels.cpu._njit import inline

# 2 sqrt(2/pi) and 2 sqrt(2/pi) 0.044715: the argument of gelu's sigmoid is 2u.
_A = np.float32(2 * 0.79788456)
_B = np.float32(2 * 0.03567741)
_B3 = np.float32(3 * 2 * 0.03567741)
_Q = np.float32(1.702)
_FAR_GELU = np.float32(16.0)  # beyond: sigmoid(2u) is exactly 0 or 1 in float32, and so is gelu'
_FAR_SIGMOID = np.float32(128.0)  # beyond: the same for the sigmoid of x itself
_ONE, _ZERO = np.float32(1.0), np.float32(0.0)


@inline
def _clip(x: np.float32, limit: np.float32) -> np.float32:
    x = -limit if x < -limit else x
    return limit if x > limit else x


@inline
def gelu(x: np.float32) -> np.float32:
    """``x sigmoid(2u)``."""
    c = _clip(x, _FAR_GELU)
    return x * sigmoid32(c * fma(_B, c * c, _A))


@inline
def gelu_slope(x: np.float32) -> np.float32:
    """``gelu'(x)``."""
    c = _clip(x, _FAR_GELU)
    square = c * c
    z = c * fma(_B, square, _A)
    e, total = sigmoid_parts(z)
    inverse = _ONE / total
    s = (e if z < _ZERO else _ONE) * inverse
    return fma(c * (e * inverse * inverse), fma(_B3, square, _A), s)


@inline
def silu(x: np.float32) -> np.float32:
    """``x sigmoid(x)``."""
    return x * sigmoid32(x)


@inline
def silu_slope(x: np.float32) -> np.float32:
    """``s (1 + x (1 - s))``."""
    c = _clip(x, _FAR_SIGMOID)
    e, total = sigmoid_parts(c)
    inverse = _ONE / total
    s = (e if c < _ZERO else _ONE) * inverse
    rest = (_ONE if c < _ZERO else e) * inverse
    return s * fma(c, rest, _ONE)


@inline
def qgelu(x: np.float32) -> np.float32:
    """``x sigmoid(1.702 x)``."""
    return x * sigmoid32(_Q * x)


@inline
def qgelu_slope(x: np.float32) -> np.float32:
    """``s (1 + z (1 - s))`` with z = 1.702 x: silu' at z."""
    return silu_slope(_Q * x)


@inline
def relu(x: np.float32) -> np.float32:
    """``max(x, 0)``; NaN passes."""
    return _ZERO if x <= _ZERO else x


@inline
def relu_vjp(x: np.float32, dy: np.float32) -> np.float32:
    """``dy`` where x > 0, else 0 whatever dy is; NaN where x is."""
    passed = dy if x > _ZERO else x
    return _ZERO if x <= _ZERO else passed


@inline
def srelu(x: np.float32) -> np.float32:
    """``max(x, 0)^2``."""
    r = relu(x)
    return r * r


@inline
def srelu_vjp(x: np.float32, dy: np.float32) -> np.float32:
    """``2 x dy`` where x > 0, else 0 whatever dy is; NaN where x is."""
    passed = (x + x) * dy if x > _ZERO else x
    return _ZERO if x <= _ZERO else passed


@inline
def cut_silu(a: np.float32, limit: np.float32, alpha: np.float32) -> np.float32:
    """``c sigmoid(alpha c)`` with c = min(a, limit)."""
    c = limit if a > limit else a
    return c * sigmoid32(alpha * c)


@inline
def cut_silu_vjp(a: np.float32, dy: np.float32, limit: np.float32, alpha: np.float32) -> np.float32:
    """Its derivative times ``dy``; 0 beyond the limit whatever dy is, NaN where a is."""
    passed = silu_slope(alpha * a) * dy if a <= limit else a
    return _ZERO if a > limit else passed


@inline
def cut(b: np.float32, limit: np.float32, offset: np.float32) -> np.float32:
    """``min(max(b, -limit), limit) + offset``."""
    return _clip(b, limit) + offset


@inline
def cut_vjp(b: np.float32, dy: np.float32, limit: np.float32) -> np.float32:
    """``dy`` within the limits, else 0 whatever dy is; NaN where b is."""
    size = abs(b)
    passed = dy if size <= limit else b
    return _ZERO if size > limit else passed


@inline
def sigmoid_slope(x: np.float32) -> np.float32:
    """``s (1 - s)``."""
    e, total = sigmoid_parts(x)
    inverse = _ONE / total
    return e * inverse * inverse
