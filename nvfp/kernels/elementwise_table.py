"""The elementwise ops as rows: one name, one NumPy callable, one CUDA expression.

A row is all that an op needs. ``numpy`` is called with arrays of the compute dtype and ``out=``;
``cuda`` is a C++ expression of ``a``, ``b``, ``c`` (values of the compute type) that may use the
``nv::`` helpers of ``cuda/elementwise.cu``. Both compute the same formula in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Result = Literal["same", "float", "bool", "real"]


@dataclass(frozen=True, slots=True)
class Op:
    """One elementwise op.

    Attributes:
        name: name in the array API standard where that has it.
        arity: number of arguments.
        numpy: a NumPy ufunc, or a function of chunks ``(*args, out)``.
        cuda: CUDA C++ expression.
        result: ``"same"`` kind as the computation, ``"float"`` (integers are computed as float32),
            ``"bool"``, or ``"real"`` (the real dtype of a complex one).
        kinds: kinds it computes in: ``b`` bool, ``i`` integer, ``f`` float, ``c`` complex (CPU only).
        integer: the NumPy callable for integers where it is another one.
        mask: whether the first argument is a bool that takes no part in promotion.
        narrow: False if the op is meaningless when 16-bit floats compute in float32.
    """

    name: str
    arity: int
    numpy: Callable[..., Any]
    cuda: str
    result: Result = "same"
    kinds: str = "ifc"
    integer: Callable[..., Any] | None = None
    mask: bool = False
    narrow: bool = True


def _where(a: Any, b: Any, c: Any, out: Any) -> None:
    out[...] = np.where(a, b, c)


def _multiply_add(a: Any, b: Any, c: Any, out: Any) -> None:
    np.add(np.multiply(a, b), c, out=out)


def _clip(a: Any, b: Any, c: Any, out: Any) -> None:
    np.minimum(np.maximum(a, b), c, out=out)


def _rsqrt(a: Any, out: Any) -> None:
    np.divide(a.dtype.type(1), np.sqrt(a), out=out)


def _reciprocal(a: Any, out: Any) -> None:
    np.divide(a.dtype.type(1), a, out=out)


def _sigmoid(a: Any, out: Any) -> None:
    one = a.dtype.type(1)
    t = np.exp(-np.abs(a))
    np.divide(np.where(a >= 0, one, t), one + t, out=out)


def _copy(a: Any, out: Any) -> None:
    out[...] = a


def _real(a: Any, out: Any) -> None:
    out[...] = a.real


def _imag(a: Any, out: Any) -> None:
    out[...] = a.imag


def _power(a: Any, b: Any, out: Any) -> None:
    if (b == 0.5).any():  # where one exponent serves a whole loop NumPy takes the root: wrong for -0 and -inf
        b = np.array(np.broadcast_to(b, out.shape))
    np.power(a, b, out=out)


def _integer_power(a: Any, b: Any, out: Any) -> None:
    """Integers to integer powers; a negative power gives what truncating the exact value gives."""
    if b.dtype.kind == "u":
        np.power(a, b, out=out)
        return
    unit = np.where(np.abs(a) == 1, np.where(b & 1, a, 1), 0)
    out[...] = np.where(b < 0, unit, np.power(a, np.maximum(b, 0)))


_BIT: dict[str, Any] = {"kinds": "bi"}
_COMPARE: dict[str, Any] = {"result": "bool", "kinds": "bif"}
_EQUAL: dict[str, Any] = {"result": "bool", "kinds": "bifc"}
_REAL: dict[str, Any] = {"result": "float", "kinds": "f"}
_COMPLEX: dict[str, Any] = {"result": "float", "kinds": "fc"}
_SIMPLE: dict[str, Any] = {"kinds": "bif"}

_ROWS = (
    # arithmetic
    Op("add", 2, np.add, "a + b", kinds="bifc"),
    Op("subtract", 2, np.subtract, "a - b"),
    Op("multiply", 2, np.multiply, "a * b", kinds="bifc"),
    Op("divide", 2, np.divide, "a / b", **_COMPLEX),
    Op("floor_divide", 2, np.floor_divide, "nv::floor_divide(a, b)", kinds="if"),
    Op("remainder", 2, np.remainder, "nv::remainder(a, b)", kinds="if"),
    Op("power", 2, _power, "nv::power(a, b)", integer=_integer_power),
    Op("multiply_add", 3, _multiply_add, "a * b + c"),
    Op("negative", 1, np.negative, "-a"),
    Op("positive", 1, np.positive, "a"),
    Op("abs", 1, np.absolute, "nv::abs(a)", result="real", kinds="bifc"),
    Op("sign", 1, np.sign, "nv::sign(a)"),
    Op("square", 1, np.square, "a * a"),
    Op("sqrt", 1, np.sqrt, "sqrt(a)", **_COMPLEX),
    Op("rsqrt", 1, _rsqrt, "T(1) / sqrt(a)", **_REAL),
    Op("reciprocal", 1, _reciprocal, "T(1) / a", **_COMPLEX),
    # exponentials, logarithms
    Op("exp", 1, np.exp, "exp(a)", **_COMPLEX),
    Op("expm1", 1, np.expm1, "expm1(a)", **_COMPLEX),
    Op("log", 1, np.log, "log(a)", **_COMPLEX),
    Op("log1p", 1, np.log1p, "log1p(a)", **_COMPLEX),
    Op("log2", 1, np.log2, "log2(a)", **_COMPLEX),
    Op("log10", 1, np.log10, "log10(a)", **_COMPLEX),
    Op("logaddexp", 2, np.logaddexp, "nv::logaddexp(a, b)", **_REAL),
    Op("sigmoid", 1, _sigmoid, "nv::sigmoid(a)", **_REAL),
    # trigonometry
    Op("sin", 1, np.sin, "sin(a)", **_COMPLEX),
    Op("cos", 1, np.cos, "cos(a)", **_COMPLEX),
    Op("tan", 1, np.tan, "tan(a)", **_COMPLEX),
    Op("asin", 1, np.arcsin, "asin(a)", **_COMPLEX),
    Op("acos", 1, np.arccos, "acos(a)", **_COMPLEX),
    Op("atan", 1, np.arctan, "atan(a)", **_COMPLEX),
    Op("atan2", 2, np.arctan2, "atan2(a, b)", **_REAL),
    Op("sinh", 1, np.sinh, "sinh(a)", **_COMPLEX),
    Op("cosh", 1, np.cosh, "cosh(a)", **_COMPLEX),
    Op("tanh", 1, np.tanh, "tanh(a)", **_COMPLEX),
    Op("asinh", 1, np.arcsinh, "asinh(a)", **_COMPLEX),
    Op("acosh", 1, np.arccosh, "acosh(a)", **_COMPLEX),
    Op("atanh", 1, np.arctanh, "atanh(a)", **_COMPLEX),
    Op("hypot", 2, np.hypot, "hypot(a, b)", **_REAL),
    # choosing, rounding
    Op("maximum", 2, np.maximum, "nv::maximum(a, b)", **_SIMPLE),
    Op("minimum", 2, np.minimum, "nv::minimum(a, b)", **_SIMPLE),
    Op("clip", 3, _clip, "nv::minimum(nv::maximum(a, b), c)", kinds="if"),
    Op("where", 3, _where, "a ? b : c", kinds="bifc", mask=True),
    Op("copy", 1, _copy, "a", kinds="bifc"),
    Op("floor", 1, np.floor, "nv::floor(a)", kinds="if", integer=_copy),
    Op("ceil", 1, np.ceil, "nv::ceil(a)", kinds="if", integer=_copy),
    Op("trunc", 1, np.trunc, "nv::trunc(a)", kinds="if", integer=_copy),
    Op("round", 1, np.rint, "nv::round(a)", kinds="ifc", integer=_copy),
    Op("copysign", 2, np.copysign, "copysign(a, b)", **_REAL),
    Op("nextafter", 2, np.nextafter, "nextafter(a, b)", **_REAL, narrow=False),
    # complex parts
    Op("conj", 1, np.conjugate, "a"),
    Op("real", 1, _real, "a", result="real"),
    Op("imag", 1, _imag, "T(0)", result="real"),
    # tests and comparisons
    Op("isnan", 1, np.isnan, "a != a", result="bool", kinds="fc"),
    Op("isinf", 1, np.isinf, "isinf(a)", result="bool", kinds="fc"),
    Op("isfinite", 1, np.isfinite, "isfinite(a)", result="bool", kinds="fc"),
    Op("signbit", 1, np.signbit, "signbit(a)", result="bool", kinds="f"),
    Op("equal", 2, np.equal, "a == b", **_EQUAL),
    Op("not_equal", 2, np.not_equal, "a != b", **_EQUAL),
    Op("less", 2, np.less, "a < b", **_COMPARE),
    Op("less_equal", 2, np.less_equal, "a <= b", **_COMPARE),
    Op("greater", 2, np.greater, "a > b", **_COMPARE),
    Op("greater_equal", 2, np.greater_equal, "a >= b", **_COMPARE),
    # logic and bits
    Op("logical_and", 2, np.logical_and, "a != T(0) && b != T(0)", **_EQUAL),
    Op("logical_or", 2, np.logical_or, "a != T(0) || b != T(0)", **_EQUAL),
    Op("logical_xor", 2, np.logical_xor, "(a != T(0)) != (b != T(0))", **_EQUAL),
    Op("logical_not", 1, np.logical_not, "a == T(0)", **_EQUAL),
    Op("bitwise_and", 2, np.bitwise_and, "a & b", **_BIT),
    Op("bitwise_or", 2, np.bitwise_or, "a | b", **_BIT),
    Op("bitwise_xor", 2, np.bitwise_xor, "a ^ b", **_BIT),
    Op("bitwise_invert", 1, np.invert, "~a", **_BIT),
    Op("bitwise_left_shift", 2, np.left_shift, "nv::left_shift(a, b)", kinds="i"),
    Op("bitwise_right_shift", 2, np.right_shift, "nv::right_shift(a, b)", kinds="i"),
)

OPS: dict[str, Op] = {row.name: row for row in _ROWS}
