"""Elementwise ops one element at a time: Python's own integers and floats (double precision), by the definitions.

`value` gives the result before the one rounding to the result dtype. Floats that arithmetic takes are at most
32 bits wide, so a double holds sums and products of two of them, and quotients and roots round like the exact
ones (53 >= 2 * 24 + 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

_WORD = 2**64
_NAN, _INF = math.nan, math.inf


def _single(x: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(x))


def _divide(a: float, b: float) -> float:
    if b != 0 or math.isnan(a) or math.isnan(b):
        return a / b if b != 0 else _NAN
    return _NAN if a == 0 else math.copysign(_INF, a) * math.copysign(1, b)


def _remainder(a: float, b: float) -> float:
    """a - b * floor(a / b), with the sign of b."""
    if math.isnan(a) or math.isnan(b) or math.isinf(a) or b == 0:
        return _NAN
    r = math.fmod(a, b)
    r = r if r == 0 or (r < 0) == (b < 0) else _single(r + b)  # with b infinite: b
    return math.copysign(0.0, b) if r == 0 else r


def _limits(f: Callable[..., float]) -> Callable[..., float]:
    """``f`` where math raises: poles and overflow give infinities, no value NaN."""

    def g(*args: float) -> float:
        with np.errstate(all="ignore"):
            return float(f(*(np.float64(a) for a in args)))

    return g


def _logaddexp(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return _NAN
    high = max(a, b)
    return high if math.isinf(high) else high + math.log(math.exp(a - high) + math.exp(b - high))


def _greater(a: float, b: float) -> float:
    return _NAN if math.isnan(a) or math.isnan(b) else max(a, b)


def _smaller(a: float, b: float) -> float:
    return _NAN if math.isnan(a) or math.isnan(b) else min(a, b)


def _integral(f: Callable[[float], int]) -> Callable[[float], float]:
    return lambda a: a if not math.isfinite(a) else math.copysign(float(f(a)), a)


def _power(a: int, b: int) -> int:
    if b >= 0:
        return pow(a, b, _WORD)
    return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)


_COMPARE: dict[str, Callable[..., Any]] = {
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
    "logical_and": lambda a, b: bool(a) and bool(b),
    "logical_or": lambda a, b: bool(a) or bool(b),
    "logical_xor": lambda a, b: bool(a) != bool(b),
    "logical_not": lambda a: not a,
    "where": lambda a, b, c: b if a else c,
    "copy": lambda a: a,
    "positive": lambda a: a,
    "conj": lambda a: a,
    "real": lambda a: a,
    "imag": lambda a: 0,
}

# Ops whose float32 result is the exact value, rounded once: equal bits are asked for.
EXACT: dict[str, Callable[..., Any]] = {
    **_COMPARE,
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": _divide,
    "remainder": _remainder,
    "multiply_add": lambda a, b, c: _single(a * b) + c,
    "negative": lambda a: -a,
    "abs": abs,
    "sign": lambda a: a if math.isnan(a) else float((a > 0) - (a < 0)),
    "square": lambda a: a * a,
    "sqrt": lambda a: math.sqrt(a) if a >= 0 else _NAN,
    "rsqrt": lambda a: _divide(1.0, _single(math.sqrt(a))) if a >= 0 else _NAN,
    "reciprocal": lambda a: _divide(1.0, a),
    "maximum": _greater,
    "minimum": _smaller,
    "clip": lambda a, b, c: _smaller(_greater(a, b), c),
    "floor": _integral(math.floor),
    "ceil": _integral(math.ceil),
    "trunc": _integral(math.trunc),
    "round": _integral(round),
    "copysign": math.copysign,
    "isnan": math.isnan,
    "isinf": math.isinf,
    "isfinite": math.isfinite,
    "signbit": lambda a: math.copysign(1.0, a) < 0,
}

# Ops with an error of some ulp in float32: a tolerance is asked for.
CLOSE: dict[str, Callable[..., float]] = {
    **{name: _limits(getattr(np, name)) for name in ("exp", "expm1", "log", "log1p", "log2", "log10")},
    **{name: _limits(getattr(np, name)) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "hypot")},
    **{f"a{name}": _limits(getattr(np, f"arc{name}")) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "atan2": math.atan2,
    "power": _limits(lambda a, b: np.power(np.array([a, a]), np.array([b, b]))[0]),
    "logaddexp": _logaddexp,
    "sigmoid": _limits(lambda a: 1 / (1 + np.exp(-a))),
}

INTEGER: dict[str, Callable[..., int]] = {
    **_COMPARE,
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "floor_divide": lambda a, b: a // b if b else 0,
    "remainder": lambda a, b: a % b if b else 0,
    "power": _power,
    "multiply_add": lambda a, b, c: a * b + c,
    "negative": lambda a: -a,
    "abs": abs,
    "sign": lambda a: (a > 0) - (a < 0),
    "square": lambda a: a * a,
    "maximum": max,
    "minimum": min,
    "clip": lambda a, b, c: min(max(a, b), c),
    **dict.fromkeys(("floor", "ceil", "trunc", "round"), lambda a: a),
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
    "bitwise_invert": lambda a: ~a,
    "bitwise_left_shift": lambda a, b: a << b if 0 <= b < 64 else 0,
    "bitwise_right_shift": lambda a, b: a >> b if 0 <= b < 64 else -(a < 0),
}

BOOL: dict[str, Callable[..., bool]] = {
    **{name: f for name, f in _COMPARE.items() if name not in ("positive", "conj", "real", "imag")},
    "add": lambda a, b: a or b,
    "multiply": lambda a, b: a and b,
    "maximum": lambda a, b: a or b,
    "minimum": lambda a, b: a and b,
    "abs": lambda a: a,
    "bitwise_and": lambda a, b: a and b,
    "bitwise_or": lambda a, b: a or b,
    "bitwise_xor": lambda a, b: a != b,
    "bitwise_invert": lambda a: not a,
}  # fmt: skip


def value(function: Callable[..., Any], *args: np.ndarray) -> list[Any]:
    """Apply a function of the tables above to each tuple of elements of arrays of one shape, flat."""
    plain = [a.astype(np.float64).ravel().tolist() if _is_float(a) else a.ravel().tolist() for a in args]
    return [function(*each) for each in zip(*plain, strict=True)]


def wrapped(values: list[int], dtype: np.dtype) -> np.ndarray:
    """Integers modulo the width of ``dtype``."""
    width = 8 * dtype.itemsize
    return np.array([v % 2**width for v in values], f"u{dtype.itemsize}").view(dtype)


def _is_float(a: np.ndarray) -> bool:
    return a.dtype.kind not in "biu"
