"""The exact cast: the codec for floats, Python's definition of the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nvfp.dtypes.codec import Overflow, decode, encode
from nvfp.dtypes.dense import NARROW
from nvfp.dtypes.elements import ELEMENTS


def cast(
    x: npt.ArrayLike, dtype: npt.DTypeLike, *, source: npt.DTypeLike | None = None, overflow: Overflow = "saturate"
) -> np.ndarray:
    """The array that `kernels.cast.cast` must give: codes for narrow targets, values for dense ones."""
    array, to = np.asarray(x), np.dtype(dtype)
    if source is None and array.dtype == to:
        return array.copy()
    value = array if source is None else decode(array, ELEMENTS[np.dtype(source).name])
    with np.errstate(invalid="ignore"):  # a signalling NaN of a 16-bit float
        return _cast_value(value, to, overflow)


def _cast_value(value: np.ndarray, to: np.dtype, overflow: Overflow) -> np.ndarray:
    if to in NARROW:
        return encode(value, ELEMENTS[to.name], overflow=overflow)
    if to == np.bool_:
        return np.asarray(value != 0)
    if to.kind in "iu":
        return value.astype(to) if value.dtype.kind in "biu" else _float_to_int(value, to)
    if to == np.float64:
        return value.astype(to)
    # Dense 16- and 32-bit floats follow IEEE 754: overflow is inf.
    return encode(value, ELEMENTS[to.name], overflow="nonsat").view(to)


def _float_to_int(value: np.ndarray, to: np.dtype) -> np.ndarray:
    """Cut toward zero, clamped to the range, NaN is 0; in Python's integers, which have no range."""
    low, high = int(np.iinfo(to).min), int(np.iinfo(to).max)

    def one(v: Any) -> int:
        if v != v:
            return 0
        if v in (float("inf"), float("-inf")):
            return high if v > 0 else low
        return min(max(int(v), low), high)

    flat = [one(float(v)) for v in value.astype(np.float64).ravel()]
    return np.array(flat, dtype=to).reshape(value.shape)
