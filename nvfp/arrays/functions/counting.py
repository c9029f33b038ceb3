"""Counts of small integers and interpolation in tables: NumPy's `bincount` and `interp`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.convert import place
from nvfp.arrays.functions._common import array, integer, promoted
from nvfp.arrays.functions._library import as_positions, call, constant, ordered
from nvfp.arrays.functions.conversion import host
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf, public
from nvfp.dtypes.dense import float32, float64, int64, uint64
from nvfp.dtypes.promotion import result_type
from nvfp.errors import ArgumentError, DTypeError, ShapeError, message


@public
@explained
def bincount(x: Any, /, weights: Any = None, minlength: int = 0) -> Array:
    """Return how often each of 0, 1, 2, ... occurs (waits for the GPU).

    Args:
        x: integer Array [N] without negative numbers.
        weights: Array [N]: what each element adds, instead of 1. The sums are made on the host, in order.
        minlength: least length of the result.

    Returns:
        A vector: int64, with weights float32 (float64 for float64 weights).

    Raises:
        DTypeError: no integers.
        ShapeError: no vector, or weights of another length.
        ArgumentError: a negative number.
        GradientError: weights that need a gradient: there is none.

    Example:
        >>> import nvfp as nf
        >>> nf.bincount(nf.asarray([1, 3, 1], device="cpu"))
        nf.array([0, 2, 0, 1])
    """
    x, least = array("bincount", x), integer("bincount", "minlength", minlength)
    if x.dtype.kind not in "iub":
        raise DTypeError(message("bincount", "an integer array", x.dtype, "cast it with x.astype(nf.int64)"))
    factors = None if weights is None else ordered("bincount", constant("bincount", weights))
    if x.ndim != 1 or (factors is not None and factors.shape != x.shape):
        got = f"shape {x.shape}" + (f", weights {factors.shape}" if factors is not None else "")
        raise ShapeError(message("bincount", "a vector, and weights as long", got, "flatten them"))
    if least < 0 or (x.size and int(nf.min(x)) < 0):
        raise ArgumentError(message("bincount", "numbers >= 0", "a negative one", "shift them by their minimum"))
    if x.dtype is uint64 and x.size and int(nf.max(x)) >= 1 << 63:
        raise ArgumentError(message("bincount", "numbers below 2**63", int(nf.max(x)), "count values with nf.unique"))
    if factors is None:
        return as_positions(call("bincount", nf.astype(x, int64, copy=False).raw, minlength=least))
    sums = np.bincount(host(x).astype(np.int64), host(factors).astype(np.float64), least)
    return place(sums, x.device, float64 if factors.dtype is float64 else float32)


@public
@explained
def interp(x: Any, xp: Any, fp: Any, /, left: float | None = None, right: float | None = None) -> Array:
    """Return values read from a table by linear interpolation.

    Args:
        x: real Array or number: where.
        xp: Array [N] of places in ascending order.
        fp: Array [N] of the values there.
        left: value below ``xp[0]``; by default ``fp[0]``.
        right: value above ``xp[-1]``; by default ``fp[-1]``.

    Returns:
        An Array of the shape of ``x`` and of ``nf.result_type(x, fp)``, float32 for integers.

    Raises:
        ShapeError: a table that is not two vectors of one length.
        GradientError: an argument that needs a gradient: there is none.

    Numerics:
        float64, one rounding.

    Example:
        >>> import nvfp as nf
        >>> nf.interp(2.5, nf.asarray([1.0, 2.0, 3.0], device="cpu"), nf.asarray([3.0, 2.0, 0.0], device="cpu"))
        nf.array(1.)
    """
    places, values = (ordered("interp", constant("interp", v)) for v in (xp, fp))
    if places.ndim != 1 or places.shape != values.shape or not places.size:
        raise ShapeError(
            message("interp", "two vectors of one length", f"{places.shape}, {values.shape}", "match them")
        )
    x = x if isinstance(x, Array | np.ndarray) else nf.asarray(x, device=places.device)
    (x, _, _), _ = promoted("interp", ordered("interp", constant("interp", x)), places, values)
    target = result_type(x.dtype, values.dtype)
    x, places, values = (nf.astype(v, float64, copy=False) for v in (x, places, values))
    found = wrap(call("interp", x.raw, places.raw, values.raw, left=left, right=right))
    return nf.astype(found, float32 if target.kind in "iub" else target, copy=False)
