"""Reductions that leave NaN out, and `nan_to_num`: NumPy's names, made of functions with gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import array, widened
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf, public
from nvfp.dtypes.dense import float32
from nvfp.dtypes.finfo import finfo

Axis = int | tuple[int, ...] | None


def _without(op: str, x: Any, instead: float) -> tuple[Array, Array | None]:
    """The Array with a number in place of NaN, and where they were (None: the dtype has none)."""
    x = array(op, x)
    if x.dtype.kind in "iub":
        return x, None
    gone = nf.isnan(x)
    return nf.where(gone, nf.full((), instead, dtype=x.dtype, device=x.device), x), gone


def _counts(x: Array, gone: Array | None, axis: Axis, keepdims: bool) -> Array:
    there = nf.ones_like(x, dtype=float32) if gone is None else nf.astype(nf.logical_not(gone), float32)
    return nf.sum(there, axis=axis, keepdims=keepdims)


@public
@explained
def nan_to_num(x: Any, /, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Array:
    """Return ``x`` with numbers in place of NaN and infinities.

    Args:
        x: real Array.
        nan: instead of NaN.
        posinf: instead of infinity; the largest number of the dtype by default.
        neginf: instead of minus infinity; the least number of the dtype by default.

    Example:
        >>> import nvfp as nf
        >>> nf.nan_to_num(nf.asarray([nf.nan, 1.0, -nf.inf], device="cpu"), neginf=-9)
        nf.array([ 0.,  1., -9.])
    """
    filled, gone = _without("nan_to_num", x, nan)
    if gone is None:
        return nf.copy(filled)
    limits = finfo(filled.dtype)
    high, low = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    return nf.where(nf.equal(filled, math.inf), high, nf.where(nf.equal(filled, -math.inf), low, filled))


@public
@explained
def nansum(x: Any, /, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
    """Return `nf.sum` with NaN counted as 0.

    Args:
        x: Array.
        axis: one or several axes; None: all.
        dtype: of the result.
        keepdims: leave the reduced axes with length 1.

    Example:
        >>> import nvfp as nf
        >>> nf.nansum(nf.asarray([1.0, nf.nan, 2.0], device="cpu"))
        nf.array(3.)
    """
    return nf.sum(_without("nansum", x, 0.0)[0], axis=axis, dtype=dtype, keepdims=keepdims)


@public
@explained
def nanprod(x: Any, /, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
    """Return `nf.prod` with NaN counted as 1.

    Args:
        x: Array.
        axis: one or several axes; None: all.
        dtype: of the result.
        keepdims: leave the reduced axes with length 1.

    Example:
        >>> import nvfp as nf
        >>> nf.nanprod(nf.asarray([3.0, nf.nan, 2.0], device="cpu"))
        nf.array(6.)
    """
    return nf.prod(_without("nanprod", x, 1.0)[0], axis=axis, dtype=dtype, keepdims=keepdims)


@public
@explained
def nanmean(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return the mean of what is not NaN (NaN over nothing).

    Args:
        x: real Array.
        axis: one or several axes; None: all.
        keepdims: leave the reduced axes with length 1.

    Numerics:
        16-bit floats compute in float32 and are rounded once.

    Example:
        >>> import nvfp as nf
        >>> nf.nanmean(nf.asarray([1.0, nf.nan, 2.0], device="cpu"))
        nf.array(1.5)
    """
    filled, gone = _without("nanmean", x, 0.0)
    if gone is None:
        return nf.mean(filled, axis=axis, keepdims=keepdims)
    (wide,) = widened(filled)
    total = nf.sum(wide, axis=axis, keepdims=keepdims)
    return nf.astype(total / _counts(wide, gone, axis, keepdims), filled.dtype, copy=False)


@public
@explained
def nanvar(x: Any, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Return the variance of what is not NaN (NaN over too few).

    Args:
        x: real Array.
        axis: one or several axes; None: all.
        correction: as in `nf.var`.
        keepdims: leave the reduced axes with length 1.

    Numerics:
        16-bit floats compute in float32 and are rounded once.

    Example:
        >>> import nvfp as nf
        >>> nf.nanvar(nf.asarray([1.0, nf.nan, 3.0], device="cpu"))
        nf.array(1.)
    """
    filled, gone = _without("nanvar", x, 0.0)
    if gone is None:
        return nf.var(filled, axis=axis, correction=correction, keepdims=keepdims)
    (wide,) = widened(filled)
    middle = nf.sum(wide, axis=axis, keepdims=True) / _counts(wide, gone, axis, True)
    distance = nf.where(gone, 0.0, wide - middle)
    left = _counts(wide, gone, axis, keepdims) - correction
    total = nf.sum(distance * distance, axis=axis, keepdims=keepdims)
    found = nf.where(nf.greater(left, 0), total / nf.where(nf.greater(left, 0), left, 1.0), math.nan)
    return nf.astype(found, filled.dtype, copy=False)


@public
@explained
def nanstd(x: Any, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Return the standard deviation of what is not NaN, the root of `nf.nanvar`.

    Args:
        x: real Array.
        axis: one or several axes; None: all.
        correction: as in `nf.var`.
        keepdims: leave the reduced axes with length 1.

    Example:
        >>> import nvfp as nf
        >>> nf.nanstd(nf.asarray([1.0, nf.nan, 3.0], device="cpu"))
        nf.array(1.)
    """
    x = array("nanstd", x)
    (wide,) = widened(x)
    root = nf.sqrt(nanvar(wide, axis=axis, correction=correction, keepdims=keepdims))
    return root if x.dtype.kind in "iub" else nf.astype(root, x.dtype, copy=False)


def _extreme(op: Literal["nanmax", "nanmin"], x: Any, axis: Axis, keepdims: bool) -> Array:
    reduce: Callable[..., Array] = nf.max if op == "nanmax" else nf.min
    filled, gone = _without(op, x, -math.inf if op == "nanmax" else math.inf)
    found = reduce(filled, axis=axis, keepdims=keepdims)
    return found if gone is None else nf.where(nf.all(gone, axis=axis, keepdims=keepdims), math.nan, found)


@public
@explained
def nanmax(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return the largest element that is not NaN (NaN if all are).

    Args:
        x: real Array.
        axis: one or several axes; None: all.
        keepdims: leave the reduced axes with length 1.

    Raises:
        ShapeError: no element to choose from.

    Example:
        >>> import nvfp as nf
        >>> nf.nanmax(nf.asarray([1.0, nf.nan, 3.0], device="cpu"))
        nf.array(3.)
    """
    return _extreme("nanmax", x, axis, keepdims)


@public
@explained
def nanmin(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return the smallest element that is not NaN (NaN if all are).

    Args:
        x: real Array.
        axis: one or several axes; None: all.
        keepdims: leave the reduced axes with length 1.

    Raises:
        ShapeError: no element to choose from.

    Example:
        >>> import nvfp as nf
        >>> nf.nanmin(nf.asarray([1.0, nf.nan, 3.0], device="cpu"))
        nf.array(1.)
    """
    return _extreme("nanmin", x, axis, keepdims)
