"""Elementwise functions made of others, without kernels or rules of their own: angle, exp2, fmax, fmin, fmod, sinc."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import array, promoted, widened
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf, public
from nvfp.dtypes.dense import float32
from nvfp.errors import ShapeError, message

_NEAR = 0.03  # below it the terms of sinc's series that are left out are under float64's last bit


def _floating(op: str, x: Any) -> Array:
    """The argument as an Array, integers and bools as float32."""
    x = array(op, x)
    return nf.astype(x, float32) if x.dtype.kind in "iub" else x


def _pair(op: str, x: Any, y: Any) -> tuple[Array, Array]:
    """Both operands as Arrays of the dtype that they promote to; their shapes broadcast."""
    found, dtype = promoted(op, x, y)
    shapes = [v.shape for v in found if isinstance(v, Array)]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        got, do = ", ".join(map(str, shapes)), "insert axes of length 1 or reshape"
        raise ShapeError(message(op, "shapes that broadcast", got, do)) from None
    device = next(v.device for v in found if isinstance(v, Array))
    left, right = (
        nf.astype(v, dtype, copy=False) if isinstance(v, Array) else nf.full((), v, dtype=dtype, device=device)
        for v in found
    )
    return left, right


@public
@explained
def angle(x: Any, /) -> Array:
    """Return the angle of complex numbers in radians, ``atan2(imag(x), real(x))``, element by element.

    Args:
        x: Array or scalar. Of real numbers it is 0, or pi where they are negative or -0; NaN of NaN.

    Returns:
        A real Array of the shape of ``x``, float32 for integers. Of real numbers its gradient is 0.

    Example:
        >>> import nvfp as nf
        >>> nf.angle(nf.asarray([1.0, -2.0], device="cpu"))
        nf.array([0.       , 3.1415927])
    """
    x = _floating("angle", x)
    if x.dtype.kind == "c":
        return nf.atan2(nf.imag(x), nf.real(x))
    side = nf.copysign(nf.ones_like(x), x)  # a step: its gradient is 0 also where that of atan2(0, x) is NaN
    return nf.atan2(0.0, nf.where(nf.isnan(x), x, side))


@public
@explained
def exp2(x: Any, /) -> Array:
    """Return ``2 ** x``, element by element.

    Args:
        x: Array or scalar.

    Returns:
        An Array of the shape and dtype of ``x``, float32 for integers.

    Example:
        >>> import nvfp as nf
        >>> nf.exp2(nf.asarray([-1.0, 3.0], device="cpu"))
        nf.array([0.5, 8. ])
    """
    return nf.pow(2.0, _floating("exp2", x))


@public
@explained
def fmax(x: Any, y: Any, /) -> Array:
    """Return the larger of x and y, element by element; of a number and NaN the number.

    Args:
        x: Array or scalar.
        y: Array or scalar.

    Returns:
        An Array of the broadcast shape and of ``nf.result_type(x, y)``. At ties each gets half the gradient.

    Raises:
        ShapeError: shapes that do not broadcast.
        DeviceError: arrays on different devices.

    Example:
        >>> import nvfp as nf
        >>> nf.fmax(nf.asarray([1.0, nf.nan], device="cpu"), 0.5)
        nf.array([1. , 0.5])
    """
    x, y = _pair("fmax", x, y)
    return _unless_nan(x, y, nf.maximum(x, y))


@public
@explained
def fmin(x: Any, y: Any, /) -> Array:
    """Return the smaller of x and y, element by element; of a number and NaN the number.

    Args:
        x: Array or scalar.
        y: Array or scalar.

    Returns:
        An Array of the broadcast shape and of ``nf.result_type(x, y)``. At ties each gets half the gradient.

    Raises:
        ShapeError: shapes that do not broadcast.
        DeviceError: arrays on different devices.

    Example:
        >>> import nvfp as nf
        >>> nf.fmin(nf.asarray([1.0, nf.nan], device="cpu"), 0.5)
        nf.array([0.5, 0.5])
    """
    x, y = _pair("fmin", x, y)
    return _unless_nan(x, y, nf.minimum(x, y))


def _unless_nan(x: Array, y: Array, chosen: Array) -> Array:
    """``chosen``, or beside a NaN the other operand."""
    if x.dtype.kind in "iub":
        return chosen
    return nf.where(nf.isnan(x), y, nf.where(nf.isnan(y), x, chosen))


@public
@explained
def fmod(x: Any, y: Any, /) -> Array:
    """Return ``x - trunc(x / y) * y``, element by element: the remainder with the sign of x (exact, as in C).

    Args:
        x: Array or scalar.
        y: Array or scalar.

    Returns:
        An Array of the broadcast shape and of ``nf.result_type(x, y)``; `nf.remainder` has the sign of y instead.

    Raises:
        ShapeError: shapes that do not broadcast.
        DTypeError: complex numbers.
        DeviceError: arrays on different devices.

    Example:
        >>> import nvfp as nf
        >>> nf.fmod(nf.asarray([-5.0, 5.0], device="cpu"), 3.0)
        nf.array([-2.,  2.])
    """
    x, y = _pair("fmod", x, y)
    if x.dtype.kind in "iub":
        rest = nf.remainder(x, y)
        other = nf.logical_and(nf.not_equal(rest, 0), nf.not_equal(nf.less(x, 0), nf.less(y, 0)))
        return nf.where(other, rest - y, rest)
    sign_x, sign_y = (nf.copysign(nf.ones_like(v), v) for v in (x, y))
    return sign_x * nf.remainder(sign_x * x, sign_y * y)


@public
@explained
def sinc(x: Any, /) -> Array:
    """Return ``sin(pi x) / (pi x)``, and 1 at 0, element by element.

    Args:
        x: Array or scalar.

    Returns:
        An Array of the shape and dtype of ``x``, float32 for integers.

    Numerics:
        16-bit floats compute in float32 and are rounded once. Near 0 it is the series, so that its derivatives do
        not cancel there.

    Example:
        >>> import nvfp as nf
        >>> nf.sinc(nf.asarray([0.0, 0.5], device="cpu"))
        nf.array([1.        , 0.63661975])
    """
    x = _floating("sinc", x)
    (wide,) = widened(x)
    y = wide * math.pi
    near = nf.less(nf.abs(y.detach()), _NEAR)
    s = nf.where(near, y, 0.0)
    s = s * s
    series = 1.0 - s / 6.0 * (1.0 - s / 20.0 * (1.0 - s / 42.0))
    far = nf.where(near, 1.0, y)
    return nf.astype(nf.where(near, series, nf.sin(far) / far), x.dtype, copy=False)
