"""Dense dtypes, which are NumPy dtype instances, and the one function that reads a dtype argument.

``nvfp.float32 is numpy.dtype("float32")`` and ``nvfp.bfloat16 is numpy.dtype(ml_dtypes.bfloat16)``. The narrow ones
(`NARROW`) are unscaled storage formats under their ml_dtypes names: arrays of them are cast, stored and
exchanged, and compute as float32.
"""

from __future__ import annotations

import builtins
from typing import TypeAlias

import ml_dtypes
import numpy as np

from nvfp.dtypes.formats import NAMED, QuantDType
from nvfp.errors import DTypeError, message

DType: TypeAlias = np.dtype | QuantDType

int8, int16, int32, int64 = (np.dtype(f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{n}") for n in (8, 16, 32, 64))
float16, float32, float64 = (np.dtype(f"float{n}") for n in (16, 32, 64))
complex64, complex128 = np.dtype("complex64"), np.dtype("complex128")
bfloat16: np.dtype = np.dtype(ml_dtypes.bfloat16)
float8_e4m3fn: np.dtype = np.dtype(ml_dtypes.float8_e4m3fn)
float8_e5m2: np.dtype = np.dtype(ml_dtypes.float8_e5m2)
float8_e8m0fnu: np.dtype = np.dtype(ml_dtypes.float8_e8m0fnu)
float6_e2m3fn: np.dtype = np.dtype(ml_dtypes.float6_e2m3fn)
float6_e3m2fn: np.dtype = np.dtype(ml_dtypes.float6_e3m2fn)
float4_e2m1fn: np.dtype = np.dtype(ml_dtypes.float4_e2m1fn)
bool = np.dtype("bool")  # the array API standard's name; below, the builtin is `builtins.bool`

NARROW: frozenset[np.dtype] = frozenset(
    (float8_e4m3fn, float8_e5m2, float8_e8m0fnu, float6_e2m3fn, float6_e3m2fn, float4_e2m1fn)
)
DENSE: dict[str, np.dtype] = {
    d.name: d
    for d in (
        bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
        float16, bfloat16, float32, float64, complex64, complex128,
        float8_e4m3fn, float8_e5m2, float8_e8m0fnu, float6_e2m3fn, float6_e3m2fn, float4_e2m1fn,
    )
}  # fmt: skip
_INSTANCE: dict[np.dtype, np.dtype] = {d: d for d in DENSE.values()}
_NAMED: dict[str, DType] = {**DENSE, **NAMED}  # NumPy does not know the names of ml_dtypes


def as_dtype(value: object) -> DType:
    """Return the dtype that ``value`` means: a NumPy dtype instance of `DENSE`, or a `QuantDType`.

    Args:
        value: a dtype, its name (dense, narrow or quantized), a NumPy, ml_dtypes or Python scalar type.

    Returns:
        The one instance of that dtype, so that equal dtypes hash alike and ``is`` works for dense ones.

    Raises:
        DTypeError: anything else: extended precision, strings, objects, foreign byte order.

    Example:
        >>> as_dtype("bfloat16") is bfloat16, as_dtype(np.float32) is float32, as_dtype("mxfp8")
        (True, True, nvfp.mxfp8_e4m3)
    """
    if isinstance(value, QuantDType):
        return value
    found: DType | None = None
    if isinstance(value, np.dtype):
        found = _INSTANCE.get(value)
    elif isinstance(value, str | type):
        found = _NAMED.get(value) if isinstance(value, str) else None
        found = found or _by_numpy(value)
    if found is None:
        names = ", ".join(_NAMED)
        got = f"an instance of {type(value).__name__}" if hasattr(value, "shape") else repr(value)  # arrays print long
        raise DTypeError(message("dtype", f"one of {names}", got, "pass one of these or a QuantDType"))
    return found


def _by_numpy(value: str | type) -> np.dtype | None:
    """What NumPy reads from a type or a short name such as "f4", if it is one of `DENSE`."""
    try:
        return _INSTANCE.get(np.dtype(value))
    except TypeError:
        return None


def is_narrow(dtype: DType) -> builtins.bool:
    """Whether ``dtype`` is a cast-only narrow float (fp8, fp6, fp4, e8m0 without a scale).

    Example:
        >>> is_narrow(float8_e4m3fn), is_narrow(bfloat16)
        (True, False)
    """
    return isinstance(dtype, np.dtype) and dtype in NARROW
