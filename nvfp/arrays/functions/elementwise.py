"""Arithmetic, exponentials, trigonometry, rounding: one line each, with the gradient rule.

See `_factory` for how a rule reads. ``flat`` marks functions whose gradient is zero almost everywhere.
"""

from __future__ import annotations

import math
from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import conjugate, dense, fit, like, operand, promoted, raw_of
from nvfp.arrays.functions._factory import binary, unary
from nvfp.arrays.registry import nf, public
from nvfp.kernels.elementwise import elementwise


def flat(g: Any) -> None:
    """The rule of a step function: it contributes nothing."""


def _power_x(g: Array, x: Any, y: Any) -> Array:
    if isinstance(y, Array):  # at y = 0 the factor y is 0, also for x = 0: keep 0 * 0**-1 away
        both = nf.logical_and(nf.equal(x, 0), nf.equal(y, 0))
        return g * y * nf.pow(nf.where(both, 1.0, x), y - 1)
    return g * (y * nf.pow(x, y - 1)) if y != 0 else nf.zeros_like(g)


def _power_y(g: Array, x: Any, out: Array) -> Array:
    base = x if isinstance(x, Array) else nf.asarray(x, dtype=out.dtype, device=out.device)
    return g * out * nf.log(nf.where(nf.equal(base, 0), nf.ones_like(base), base))


def _larger(g: Array, x: Any, y: Any) -> Array:
    return nf.where(nf.greater(x, y), g, nf.where(nf.equal(x, y), g * 0.5, 0.0))


def _abs(g: Array, x: Array, out: Array) -> Array:
    if x.dtype.kind != "c":
        return g * nf.sign(x)
    return nf.where(nf.equal(out, 0), 0.0, g / nf.where(nf.equal(out, 0), 1.0, out)) * x


_LN2, _LN10 = math.log(2.0), math.log(10.0)

# Arithmetic.
add = binary("add", "x + y", lambda g: g, lambda g: g)
subtract = binary("subtract", "x - y", lambda g: g, lambda g: nf.negative(g))
multiply = binary(
    "multiply", "x * y", lambda g, y: nf.multiply(g, conjugate(y)), lambda g, x: nf.multiply(g, conjugate(x))
)
divide = binary(
    "divide", "x / y",
    lambda g, y: g / conjugate(y), lambda g, y, out: nf.negative(g * conjugate(out) / conjugate(y)), wide=True,
)  # fmt: skip
pow = binary("pow", "x ** y", _power_x, _power_y, wide=True, op="power")
remainder = binary(
    "remainder", "x - floor(x / y) * y", lambda g: g, lambda g, x, y: nf.negative(g * nf.floor_divide(x, y)), wide=True
)
floor_divide = binary("floor_divide", "floor(x / y)", flat, flat)
negative = unary("negative", "-x", lambda g: nf.negative(g))
positive = unary("positive", "+x", lambda g: g)
abs = unary("abs", "|x|", _abs)
sign = unary("sign", "-1, 0 or 1 with the sign of x", flat)
square = unary("square", "x ** 2", lambda g, x: g * conjugate(x) * 2.0, wide=True)
sqrt = unary("sqrt", "sqrt(x)", lambda g, out: g * 0.5 / out, wide=True)
rsqrt = unary("rsqrt", "1 / sqrt(x)", lambda g, x, out: g * -0.5 * out / x, wide=True)
reciprocal = unary("reciprocal", "1 / x", lambda g, out: nf.negative(g * conjugate(out * out)), wide=True)

# Exponentials and logarithms.
exp = unary("exp", "e ** x", lambda g, out: g * conjugate(out))
expm1 = unary("expm1", "e ** x - 1", lambda g, out: g * (out + 1.0), wide=True)
log = unary("log", "the natural logarithm of x", lambda g, x: g / x)
log1p = unary("log1p", "log(1 + x)", lambda g, x: g / (x + 1.0), wide=True)
log2 = unary("log2", "the logarithm of x to base 2", lambda g, x: g / (x * _LN2), wide=True)
log10 = unary("log10", "the logarithm of x to base 10", lambda g, x: g / (x * _LN10), wide=True)
logaddexp = binary(
    "logaddexp", "log(exp(x) + exp(y))",
    lambda g, x, y: g * nf.sigmoid(x - y), lambda g, x, y: g * nf.sigmoid(y - x), wide=True,
)  # fmt: skip
sigmoid = unary("sigmoid", "1 / (1 + exp(-x))", lambda g, out: g * out * (1.0 - out), wide=True)

# Trigonometry.
sin = unary("sin", "sin(x)", lambda g, x: g * nf.cos(x))
cos = unary("cos", "cos(x)", lambda g, x: nf.negative(g * nf.sin(x)))
tan = unary("tan", "tan(x)", lambda g, out: g * (out * out + 1.0), wide=True)
asin = unary("asin", "arcsin(x)", lambda g, x: g * nf.rsqrt(1.0 - x * x), wide=True)
acos = unary("acos", "arccos(x)", lambda g, x: nf.negative(g * nf.rsqrt(1.0 - x * x)), wide=True)
atan = unary("atan", "arctan(x)", lambda g, x: g / (x * x + 1.0), wide=True)
sinh = unary("sinh", "sinh(x)", lambda g, x: g * nf.cosh(x))
cosh = unary("cosh", "cosh(x)", lambda g, x: g * nf.sinh(x))
tanh = unary("tanh", "tanh(x)", lambda g, out: g * (1.0 - out * out), wide=True)
asinh = unary("asinh", "arsinh(x)", lambda g, x: g * nf.rsqrt(x * x + 1.0), wide=True)
acosh = unary("acosh", "arcosh(x)", lambda g, x: g * nf.rsqrt(x * x - 1.0), wide=True)
atanh = unary("atanh", "artanh(x)", lambda g, x: g / (1.0 - x * x), wide=True)
atan2 = binary(
    "atan2", "the angle of the point (y, x), given as (x, y)",
    lambda g, x, y: g * y / (x * x + y * y), lambda g, x, y: nf.negative(g * x / (x * x + y * y)), wide=True,
)  # fmt: skip
hypot = binary(
    "hypot", "sqrt(x ** 2 + y ** 2)", lambda g, x, out: g * x / out, lambda g, y, out: g * y / out, wide=True
)

# Choosing and rounding.
maximum = binary("maximum", "the larger of x and y (NaN if one is NaN; at ties each gets half the gradient)",
                 _larger, lambda g, x, y: _larger(g, y, x))  # fmt: skip
minimum = binary("minimum", "the smaller of x and y (NaN if one is NaN; at ties each gets half the gradient)",
                 lambda g, x, y: _larger(g, y, x), lambda g, x, y: _larger(g, x, y))  # fmt: skip
copysign = binary(
    "copysign", "|x| with the sign of y", lambda g, x, y: g * nf.sign(x) * nf.copysign(nf.ones_like(g), y), flat
)
nextafter = binary("nextafter", "the float after x towards y")
floor = unary("floor", "the largest integer <= x", flat)
ceil = unary("ceil", "the smallest integer >= x", flat)
trunc = unary("trunc", "x without its fraction", flat)
round = unary("round", "the nearest integer, ties to even", flat)

# Complex parts.
conj = unary("conj", "the complex conjugate of x", conjugate)
real = unary("real", "the real part of x", lambda g: g)
imag = unary("imag", "the imaginary part of x", lambda g: g * 1j)


def _clip_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    x, low, high, target = saved
    inside = nf.greater_equal(x, -math.inf if low is None else low)
    if high is not None:
        inside = nf.logical_and(inside, nf.less_equal(x, high))
    return (fit(nf.where(inside, g, 0.0), target),)


@public
def clip(x: Any, /, min: Any = None, max: Any = None) -> Array:
    """Return ``x`` limited to ``[min, max]``, element by element.

    Args:
        x: Array.
        min: lower bound, scalar or Array; None: no bound.
        max: upper bound, likewise. Without any bound the result is a copy.

    Returns:
        An Array of the broadcast shape. The gradient passes where ``min <= x <= max``.

    Example:
        >>> import nvfp as nf
        >>> nf.clip(nf.asarray([-3.0, 0.5, 3.0], device="cpu"), -1, 1)
        nf.array([-1. ,  0.5,  1. ])
    """
    x = operand("clip", x)
    if min is None and max is None:
        return nf.copy(x if isinstance(x, Array) else nf.asarray(x))
    if any(getattr(bound, "_node", None) is not None for bound in (min, max)):
        raised = x if min is None else nf.maximum(x, min)
        return raised if max is None else nf.minimum(raised, max)
    found, dtype = promoted("clip", x, *(a for a in (min, max) if a is not None))
    x, bounds = found[0], iter(found[1:])
    low, high = (None if bound is None else next(bounds) for bound in (min, max))
    op = "maximum" if high is None else "minimum" if low is None else "clip"
    raw = elementwise(op, *(raw_of(a) for a in found), dtype=dtype)
    return wrap(raw, node=dense("clip", (x,), _clip_vjp, (x, low, high, like(x))))
