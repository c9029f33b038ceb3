"""`cast`: every conversion between element types, and the strided copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.dtypes.codec import Rounding
from nvfp.dtypes.elements import Element
from nvfp.errors import ArgumentError, DTypeError, message
from nvfp.kernels._check import DENSE, NARROW, Overflow, check_choice, check_out, not_built
from nvfp.kernels._dispatch import backend
from nvfp.kernels._prepared import prepared

_UINT8 = np.dtype(np.uint8)


@prepared
def cast(
    x: Any,
    dtype: np.dtype,
    *,
    source: np.dtype | None = None,
    overflow: Overflow = "saturate",
    rounding: Rounding = "even",
    out: Any | None = None,
) -> Any:
    """Return ``x`` converted to ``dtype``, contiguous; with the dtype of ``x`` a strided copy.

    Args:
        x: raw array of a dense dtype (float16/32/64, bfloat16, ints, bool), any shape and strides; uint8
            codes when ``source`` is given.
        dtype: dense, or narrow (ml_dtypes' fp8, fp6, fp4, e8m0): the result is then its uint8 codes, one
            per byte.
        source: the narrow dtype whose codes ``x`` holds.
        overflow: what narrow targets do beyond their largest value: ``"saturate"`` (inf too), or
            ``"nonsat"`` (inf, or NaN where there is no inf). Dense floats follow IEEE 754.
        rounding: of narrow targets: ``"even"``, or ``"toward_zero"`` (a finite number beyond the largest value then
            becomes that value; infinities follow ``overflow``).
        out: array of the result's shape and dtype, any strides, not overlapping ``x``.

    Returns:
        An array of the shape of ``x``; uint8 for narrow targets.

    Raises:
        DTypeError: a dtype that is neither dense nor narrow (complex, object), or codes that are not uint8.
        ArgumentError: an unknown ``overflow`` or ``rounding``, or a ``rounding`` for a dense target.
        NotBuiltError: ``rounding="stochastic"``, which `quantize` has.
        ShapeError: an ``out`` that does not fit.

    Numerics:
        One rounding, to nearest even unless asked otherwise, from float64 and 64-bit integers too. NaN becomes the
        target's NaN code (0x7F in fp8; the largest positive code in fp6 and fp4), its sign dropped; -0 and subnormals
        are kept. Float to integer truncates, clamps to the range, and takes NaN as 0; integer to integer wraps;
        anything to bool is ``x != 0``. CPU, CUDA and `dtypes.codec` give the same bits (NaN: any NaN).

    Source:
        OCP OFP8 v1.0, OCP MX v1.0; checked against `dtypes.codec`.

    Example:
        >>> import ml_dtypes, numpy as np
        >>> fp8 = np.dtype(ml_dtypes.float8_e4m3fn)
        >>> codes = cast(np.array([4.25, 1000.0, -0.0], np.float32), fp8)
        >>> codes.tolist(), cast(codes, np.dtype(np.float32), source=fp8).tolist()
        ([72, 126, 128], [4.0, 448.0, -0.0])
    """
    check_choice("cast", "overflow", overflow, ("saturate", "nonsat"))
    if rounding == "stochastic":
        not_built("cast", "rounding", rounding, "even")
    check_choice("cast", "rounding", rounding, ("even", "toward_zero"))
    to, come = _narrow_or_dense(dtype), None
    if rounding != "even" and to is None:
        raise ArgumentError(message("cast", f"a narrow dtype for rounding={rounding!r}", dtype, "leave rounding= out"))
    if source is not None:
        come = NARROW.get(source)
        if come is None or x.dtype != _UINT8:
            expected, got = "uint8 codes of a narrow source dtype", f"{x.dtype} of {source}"
            raise DTypeError(message("cast", expected, got, "name the fp8, fp6, fp4 or e8m0 dtype"))
    elif x.dtype not in DENSE:
        raise DTypeError(message("cast", "a dense dtype", x.dtype, "pass narrow codes as uint8 with source="))
    check_out("cast", out, x.shape, _UINT8 if to else dtype)
    return backend("cast", x, out).cast(x, dtype, source=come, target=to, overflow=overflow, out=out, rounding=rounding)


def _narrow_or_dense(dtype: np.dtype) -> Element | None:
    if dtype in DENSE:
        return None
    narrow = NARROW.get(dtype)
    if narrow is None:
        raise DTypeError(
            message("cast", "a dense or narrow float dtype", dtype, "choose e.g. bfloat16 or float8_e4m3fn")
        )
    return narrow
