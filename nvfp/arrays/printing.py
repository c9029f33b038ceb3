"""How arrays print: values through `np.array2string`, so `np.set_printoptions` applies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from nvfp.dtypes.dense import bool as bool_, float32, int64
from nvfp.dtypes.finfo import finfo

if TYPE_CHECKING:
    from nvfp.arrays.array import Array

_QUIET = (float32, int64, bool_)  # what a list of Python numbers becomes: not worth a word


def format_values(values: np.ndarray, prefix: str) -> str:
    """Return the values as nested lists in columns, continued lines indented by the length of ``prefix``."""
    shown = values
    if values.dtype.isbuiltin != 1:
        places = np.ix_(*(_shown(n, values.size) for n in values.shape))
        with np.errstate(all="ignore"):
            shown = values.astype(np.float64)
            part = np.asarray(values[places])
            shown[places] = _shortened(part.reshape(-1)).reshape(part.shape)
    return np.array2string(shown, separator=", ", prefix=prefix, suffix=")")


def _shown(length: int, size: int) -> np.ndarray:
    """The places along an axis that NumPy prints."""
    options, every = np.get_printoptions(), np.arange(length)
    edge = options["edgeitems"]
    return every if size <= options["threshold"] or length <= 2 * edge else np.r_[every[:edge], every[length - edge :]]


def _shortened(values: np.ndarray) -> np.ndarray:
    """Float64 for NumPy to print: the values themselves where 5 digits tell them, else the fewest digits that do."""
    exact = values.astype(np.float64)
    shown, open_ = exact.copy(), np.isfinite(exact) & (exact != 0)
    exponent = np.zeros(exact.shape)
    np.log10(np.abs(exact), out=exponent, where=open_)
    exponent = np.floor(exponent)
    open_ &= _rounded(exact, exponent, 5) != exact
    for digits in range(1, 1 + math.ceil(1 + math.log10(2 / finfo(values.dtype).eps))):
        near = _rounded(exact, exponent, digits)
        hit = open_ & (near.astype(values.dtype) == values)
        shown[hit] = near[hit]
        open_ &= ~hit
    return shown


def _rounded(exact: np.ndarray, exponent: np.ndarray, digits: int) -> np.ndarray:
    """Numbers rounded to so many decimal digits."""
    shift = digits - 1 - exponent
    up, down = 10.0 ** np.maximum(shift, 0), 10.0 ** np.maximum(-shift, 0)
    found: np.ndarray = np.round(exact * up / down) * down / up
    return found


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
