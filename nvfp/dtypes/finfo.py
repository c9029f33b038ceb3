"""Limits of dtypes (`finfo`, `iinfo`) and their kinds (`isdtype`), for dense, narrow and quantized dtypes alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from nvfp.dtypes.dense import NARROW, as_dtype, bfloat16
from nvfp.dtypes.elements import Element
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, DTypeError, message

_ml_finfo: Any = ml_dtypes.finfo  # NumPy's, which also knows bfloat16 and the narrow floats; untyped


@dataclass(frozen=True)
class FInfo:
    """Limits of a float dtype, as Python numbers.

    Attributes:
        dtype: the dtype described (of a quantized dtype: of its element).
        bits: width of a value (of a complex number: of one part).
        eps: distance from 1 to the next value.
        max: largest finite value.
        min: least finite value (E8M0, which has no sign: ``2**-127``).
        smallest_normal: smallest positive normal value.
        smallest_subnormal: smallest positive value.
    """

    dtype: np.dtype
    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    smallest_subnormal: float


@dataclass(frozen=True)
class QuantFInfo(FInfo):
    """Limits of a quantized dtype: those of its element, and of the scaled value.

    Attributes:
        block: as in the `QuantDType`.
        scale: limits of the scale format.
        bits_per_value: stored bits per value, block scales included (tensor scales are not counted).
        scaled_max: largest element times the largest scale that goes with it, at tensor scale 1 (nvfp4: 6 * 448 = 2688;
            with ``four_over_six="mae_256"`` 6 * 256). May be beyond float32, which values are read in.
    """

    block: int | tuple[int, int] | None
    scale: FInfo
    bits_per_value: float
    scaled_max: float


@dataclass(frozen=True)
class IInfo:
    """Limits of an integer dtype: ``dtype``, ``bits``, ``max``, ``min``."""

    dtype: np.dtype
    bits: int
    max: int
    min: int


def finfo(dtype: object) -> FInfo:
    """Return the limits of a float, complex, narrow or quantized dtype.

    Args:
        dtype: whatever `as_dtype` reads, or an array; complex dtypes give the limits of one part.

    Returns:
        `FInfo`, for quantized dtypes `QuantFInfo`.

    Raises:
        DTypeError: a dtype that is not floating.

    Example:
        >>> finfo("bfloat16").eps, finfo("float8_e4m3fn").max, finfo("nvfp4").max, finfo("nvfp4").scaled_max
        (0.0078125, 448.0, 6.0, 2688.0)
    """
    found = asked(dtype)
    if isinstance(found, QuantDType):
        return QuantFInfo(
            **vars(_of_element(found.element)), block=found.block, scale=_of_element(found.scale),
            bits_per_value=found.bits_per_value, scaled_max=found.element.max * found.scale_bound,
        )  # fmt: skip
    if not isdtype(found, ("real floating", "complex floating")):
        raise DTypeError(message("finfo", "a floating dtype", found, "use iinfo for integers"))
    part = np.dtype(f"float{found.itemsize * 4}") if found.kind == "c" else found
    limits = _ml_finfo(part)
    return FInfo(
        dtype=part, bits=int(limits.bits), eps=float(limits.eps), max=float(limits.max), min=float(limits.min),
        smallest_normal=float(limits.smallest_normal), smallest_subnormal=float(limits.smallest_subnormal),
    )  # fmt: skip


def asked(dtype: object) -> np.dtype | QuantDType:
    """Return the dtype that is meant: an array means its own."""
    of_array = None if isinstance(dtype, type | np.dtype | QuantDType) else getattr(dtype, "dtype", None)
    return as_dtype(dtype if of_array is None else of_array)


def iinfo(dtype: object) -> IInfo:
    """Return the limits of an integer dtype.

    Args:
        dtype: whatever `as_dtype` reads, or an array.

    Returns:
        A record with ``dtype``, ``bits``, ``max`` and ``min``.

    Raises:
        DTypeError: a dtype that is not an integer.

    Example:
        >>> iinfo("int8")
        IInfo(dtype=dtype('int8'), bits=8, max=127, min=-128)
    """
    found = asked(dtype)
    if isinstance(found, QuantDType) or found.kind not in "iu":
        raise DTypeError(message("iinfo", "an integer dtype", found, "use finfo for floats"))
    limits = np.iinfo(found)
    return IInfo(found, int(limits.bits), int(limits.max), int(limits.min))


def isdtype(dtype: object, kind: object) -> bool:
    """Return whether ``dtype`` is of a kind: the array API's kinds and ``"quantized"``.

    Args:
        dtype: whatever `as_dtype` reads.
        kind: ``"bool"``, ``"signed integer"``, ``"unsigned integer"``, ``"integral"``, ``"real floating"``
            (bfloat16 and narrow floats too), ``"complex floating"``, ``"numeric"``, ``"quantized"``; a dtype
            (then equality); or a tuple of these (then any).

    Raises:
        ArgumentError: a kind that is none of these.

    Example:
        >>> isdtype("bfloat16", "real floating"), isdtype("nvfp4", "numeric"), isdtype("nvfp4", "quantized")
        (True, False, True)
    """
    found = as_dtype(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(found, k) for k in kind)
    if isinstance(kind, str) and kind in _KINDS:
        return _letter(found) in _KINDS[kind]
    try:
        return bool(found == as_dtype(kind))
    except DTypeError:
        expected = f"one of {sorted(_KINDS)}, a dtype, or a tuple of these"
        raise ArgumentError(message("isdtype", expected, repr(kind), "pass one of these")) from None


# Kind -> letters of NumPy's dtype.kind; q stands for quantized. ("bool" names the kind and the dtype alike.)
_KINDS: dict[str, str] = {
    "bool": "b",
    "signed integer": "i",
    "unsigned integer": "u",
    "integral": "iu",
    "real floating": "f",
    "complex floating": "c",
    "numeric": "iufc",
    "quantized": "q",
}


def _letter(dtype: np.dtype | QuantDType) -> str:
    if isinstance(dtype, QuantDType):
        return "q"
    return "f" if dtype == bfloat16 or dtype in NARROW else dtype.kind


def _of_element(element: Element) -> FInfo:
    least = -element.max - (element.smallest_normal if element.integer else 0)  # two's complement: one step more
    return FInfo(
        dtype=element.dtype, bits=element.bits, eps=2.0**-element.mantissa_bits, max=element.max,
        min=least if element.signed else element.smallest_normal,
        smallest_normal=element.smallest_normal, smallest_subnormal=element.smallest_subnormal,
    )  # fmt: skip
