"""Small checks that the contracts share. None of them reads array contents, so none waits for the GPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from nvfp.dtypes.codec import Overflow
from nvfp.dtypes.elements import ELEMENTS, Element
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, DTypeError, NotBuiltError, ShapeError, message

__all__ = ["Overflow"]  # the contracts take it from here

Words = tuple[Any | None, Any | None]

FLOAT32 = np.dtype(np.float32)
FLOAT32_MAX = float(np.finfo(np.float32).max)
FLOATS: tuple[np.dtype, ...] = (
    FLOAT32, np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float64),
)  # fmt: skip
_INTEGERS = tuple(np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64))
DENSE: frozenset[np.dtype] = frozenset((*FLOATS, *_INTEGERS, np.dtype(np.bool_)))
NARROW: dict[np.dtype, Element] = {e.dtype: e for e in ELEMENTS.values() if e.bits <= 8 and not e.integer}


def check_float(op: str, x: Any) -> None:
    """Raise unless ``x`` is a float32, bfloat16, float16 or float64 array."""
    if x.dtype not in FLOATS:
        raise DTypeError(message(op, "float32, bfloat16, float16 or float64", x.dtype, "cast it with x.astype first"))


def check_choice(op: str, name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ArgumentError(message(op, f"{name} out of {choices}", repr(value), "name one of these"))


def check_rounding(op: str, rounding: object, overflow: object, rng: object) -> None:
    """Raise unless ``rounding`` and ``overflow`` are known words, and random numbers come with stochastic rounding."""
    check_choice(op, "rounding", rounding, ("even", "toward_zero", "stochastic"))
    check_choice(op, "overflow", overflow, ("saturate", "nonsat"))
    if rng is not None and rounding != "stochastic":
        got = f"rng and rounding={rounding!r}"
        raise ArgumentError(message(op, "rounding='stochastic' with rng", got, "leave rng= out"))


def check_factor(op: str, name: str, value: Any) -> float:
    """Return a real factor as a float; raise unless float32 holds it (NaN and inf are no factors)."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        factor = float(value)
    except (TypeError, ValueError, OverflowError):
        raise DTypeError(message(op, f"{name} as a real number", repr(value), "pass a float")) from None
    if not -FLOAT32_MAX <= factor <= FLOAT32_MAX:
        raise ArgumentError(message(op, f"a finite float32 {name}", repr(value), "pass a finite number"))
    return factor


def not_built(op: str, name: str, value: object, plain: object) -> None:
    """Raise `NotBuiltError` naming the argument unless it has its plain value."""
    if value is not plain and value != plain:
        raise NotBuiltError(message(op, f"{name}={plain!r}", repr(value), "leave it out in this release"))


def axis_index(op: str, axis: int, ndim: int) -> int:
    """Return ``axis`` counted from the front.

    Example:
        >>> axis_index("quantize", -1, 3)
        2
    """
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer):
        raise DTypeError(message(op, "axis in whole numbers", repr(axis), "pass an int"))
    if ndim == 0:
        raise ShapeError(message(op, f"an array with axes for axis {axis}", "shape ()", "reshape it to (1,) first"))
    if not -ndim <= axis < ndim:
        raise ShapeError(message(op, f"an axis of {ndim} dimensions", axis, "count from -ndim to ndim - 1"))
    return int(axis) % ndim


def check_out(op: str, out: Any | None, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Raise unless ``out`` is None or a writeable array of this shape and dtype."""
    if out is None:
        return
    if out.shape != shape or out.dtype != dtype:
        got = f"{out.dtype} {out.shape}"
        raise ShapeError(message(op, f"out as {dtype} {shape}", got, "allocate out with that shape and dtype"))
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ArgumentError(message(op, "a writeable out", "a read-only array", "pass a writeable array"))


def check_word(op: str, name: str, word: Any) -> None:
    """Raise unless ``word`` is a float32 array of shape ``()``."""
    if getattr(word, "shape", None) != () or word.dtype != FLOAT32 or isinstance(word, np.generic):
        got = f"{getattr(word, 'dtype', type(word).__name__)} {getattr(word, 'shape', '')}"
        raise DTypeError(message(op, f"{name} as a float32 array of shape ()", got, "keep scalars as 0-d arrays"))


def word_pair(op: str, name: str, value: Any, row: bool, col: bool) -> Words:
    """Return ``value`` (None, a word, or a pair of them) as ``(row word, column word)``.

    The entry of a side that is not asked for is None; a single word serves both sides.
    """
    if value is None:
        return None, None
    pair = value if isinstance(value, tuple) else (value, value)
    if len(pair) != 2:
        raise ArgumentError(message(op, f"{name} as a word or a (row, column) pair", f"{len(pair)} words", "pass two"))
    for word in pair:
        if word is not None:
            check_word(op, name, word)
    return pair[0] if row else None, pair[1] if col else None


@lru_cache(maxsize=256)
def check_format(op: str, fmt: QuantDType) -> None:
    """Raise unless kernels can compute this row: the row itself refuses what makes no sense."""
    scale, family = fmt.scale, fmt.scale_family
    if fmt.tensor_scale and fmt.block is None:
        raise ArgumentError(message(op, "blocks under a tensor scale", fmt.name, "pass block= or tensor_scale=False"))
    if fmt.power_of_two_scales and family == "two_level":
        expected = "power_of_two_scales with float32 scales"
        raise ArgumentError(message(op, expected, scale.name, "use a float32 or e8m0 scale"))
    if fmt.scale_rule != "ceil" and family != "e8m0":
        expected = f"scale_rule={fmt.scale_rule!r} with e8m0 scales"
        raise ArgumentError(message(op, expected, scale.name, "leave scale_rule at 'ceil'"))
