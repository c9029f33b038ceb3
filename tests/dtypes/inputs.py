"""Inputs that casts can get wrong, and a slow nearest-value search that shares nothing with the codec."""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nvfp.dtypes import elements as el
from nvfp.dtypes.codec import decode
from nvfp.dtypes.elements import Element

FLOATS = [el.float8_e4m3fn, el.float8_e5m2, el.float6_e2m3fn, el.float6_e3m2fn, el.float4_e2m1fn]
NARROW = [*FLOATS, el.float8_e8m0fnu, el.int8, el.int4]
SIXTEEN_BITS = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}


def u8(values: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """A uint8 array."""
    return np.asarray(values, np.uint8)


def f32(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """A float32 array."""
    return np.asarray(values, np.float32)


def all_of(dtype: np.dtype) -> np.ndarray:
    """All 65,536 values of a 16-bit float."""
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)


def magnitudes(element: Element) -> npt.NDArray[np.float64]:
    """The finite magnitudes of a format in code order (ascending)."""
    values = decode(np.arange(element.max_code + 1, dtype=element.storage), element)
    return np.abs(values)


def ties(element: Element) -> npt.NDArray[np.float64]:
    """The midpoints of neighbours of both signs, up to the one above the largest value."""
    found = magnitudes(element)
    middle = (found[:-1] + found[1:]) / 2
    top = found[-1] + (found[-1] - found[-2]) / 2
    both = np.append(middle, top)
    return np.concatenate([both, -both]) if element.signed else both


def around(values: npt.NDArray[np.float64], dtype: npt.DTypeLike) -> np.ndarray:
    """The values and their two neighbours in ``dtype``."""
    exact = values.astype(dtype)
    inf = np.array(np.inf, dtype)
    return np.concatenate([exact, np.nextafter(exact, inf), np.nextafter(exact, -inf)])


def random_values(element: Element, count: int, seed: int) -> npt.NDArray[np.float32]:
    """Random signs and magnitudes over the whole range of a format and a little beyond, log-uniform."""
    rng = np.random.default_rng(seed)
    low = np.log2(element.smallest_subnormal) - 3
    magnitude = np.exp2(rng.uniform(max(low, -140), min(np.log2(element.max) + 2, 127.9), count))
    sign = rng.choice([-1.0, 1.0], count) if element.signed else 1.0
    return (sign * magnitude).astype(np.float32)


def nearest_code(value: float, element: Element) -> int:
    """The saturating code of a finite value by exact rational comparison (a tie goes to the even code)."""
    table = [Fraction(m) for m in magnitudes(element).tolist()]
    target = Fraction(abs(value))
    at = bisect_left(table, target)
    if at == len(table):
        code = len(table) - 1
    elif at == 0:
        code = 0
    else:
        below, above = target - table[at - 1], table[at] - target
        code = at - 1 if below < above or (below == above and (at - 1) % 2 == 0) else at
    return code | (element.sign_code if np.signbit(value) else 0)
