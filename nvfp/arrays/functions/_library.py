"""Functions that nvfp has no kernel for: array-api-compat's namespaces over NumPy and CuPy, with nf's dtypes around.

16-bit floats go in as float32 and are rounded once on the way out; quantized and narrow arrays are float32 already
(`_common.operand`). On CUDA the call runs on the array's device and current stream.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import HALVES, array
from nvfp.arrays.registry import nf
from nvfp.autograd.tape import needs_grad
from nvfp.dtypes.dense import float32
from nvfp.errors import DTypeError, GradientError, message
from nvfp.kernels._dispatch import kind_of
from nvfp.kernels.cast import cast


def library(raw: Any) -> Any:
    """Return array-api-compat's namespace for a raw array: ``array_api_compat.numpy`` or ``.cupy``."""
    return import_module("array_api_compat." + ("numpy" if kind_of(raw) == "cpu" else "cupy"))


def call(name: str, raw: Any, *args: Any, **kwargs: Any) -> Any:
    """Return ``library(raw).name(raw, ...)``, without warnings: IEEE results are results."""
    function = getattr(library(raw), name)
    if kind_of(raw) == "cuda":
        with raw.device:
            return function(raw, *args, **kwargs)
    with np.errstate(all="ignore"):
        return function(raw, *args, **kwargs)


def wide(x: Array) -> Any:
    """The raw array, 16-bit floats as float32 (exact): what NumPy and CuPy compute with."""
    return cast(x.raw, float32) if x.dtype in HALVES else x.raw


def rounded(raw: Any, dtype: np.dtype) -> Array:
    """An Array of a library's result, rounded to ``dtype`` where that is a 16-bit float."""
    return wrap(cast(raw, dtype) if dtype in HALVES else raw)


def constant(op: str, x: Any) -> Array:
    """Return an argument as an Array that needs no gradient.

    Raises:
        GradientError: it does need one: the function has no rule.
    """
    found = array(op, x)
    if needs_grad(found):
        do = "use x.detach(), or work inside nf.no_grad()"
        raise GradientError(message(op, "an array without history (it has no gradient)", "requires_grad=True", do))
    return found


def ordered(op: str, x: Any) -> Array:
    """Return an argument as an Array of real numbers or bools, which have an order.

    Raises:
        DTypeError: complex numbers.
    """
    found = array(op, x)
    if found.dtype.kind == "c":
        raise DTypeError(message(op, "a real array", found.dtype, "take nf.real(x) or nf.abs(x) first"))
    return found


def as_positions(raw: Any) -> Array:
    """An Array of positions: int64, whatever the library counts in."""
    return nf.astype(wrap(raw), np.dtype(np.int64), copy=False)
