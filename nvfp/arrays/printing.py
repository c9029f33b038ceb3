"""How arrays print: values through `np.array2string`, so `np.set_printoptions` applies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from nvfp.dtypes.dense import bool as bool_, float32, int64
from nvfp.dtypes.finfo import finfo

if TYPE_CHECKING:
    from nvfp.arrays.array import Array

_QUIET = (float32, int64, bool_)  # what a list of Python numbers becomes: not worth a word


def format_values(values: np.ndarray, prefix: str) -> str:
    """Return the values as nested lists, continued lines indented by the length of ``prefix``."""
    native = values.dtype.isbuiltin == 1
    shown: Any = values if native else values.astype(np.float32)
    options: dict[str, Any] = {}
    if not native:  # 16-bit and narrower: as many digits as tell the values apart
        options["formatter"] = {"float_kind": lambda v: f"{v:.{_digits(values.dtype)}g}"}
    return np.array2string(shown, separator=", ", prefix=prefix, suffix=")", **options)


def _digits(dtype: np.dtype) -> int:
    return 2 + math.ceil(-math.log10(finfo(dtype).eps))


def format_array(x: Array) -> str:
    """Return ``nf.array([...], dtype=..., device=..., requires_grad=True)``; extras where they say something."""
    values = format_values(np.asarray(x), "nf.array(")
    extras = [] if x.dtype in _QUIET else [f"dtype={x.dtype.name}"]
    if str(x.device) != "cpu":
        extras.append(f"device='{x.device}'")
    if x.requires_grad:
        extras.append("requires_grad=True")
    if 0 in x.shape:
        extras.insert(0, f"shape={x.shape}")
    return f"nf.array({', '.join((values, *extras))})"
