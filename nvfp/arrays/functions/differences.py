"""`gradient`, the slope of sampled values, and `unwrap`, angles without jumps (`diff` stands in `statistics`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import HALVES, array, axis_tuple, one_axis, real, widened
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf, public
from nvfp.dtypes.dense import float32, float64
from nvfp.errors import ArgumentError, DTypeError, ShapeError, message


@public
@explained
def gradient(x: Any, /, *spacing: Any, axis: int | tuple[int, ...] | None = None) -> Any:
    """Return the slope of sampled values along axes; for derivatives of functions see `nf.grad`.

    Inside ``(x[i + 1] - x[i - 1]) / 2h`` (of unequal steps the formula of second order), at the ends the difference
    to the neighbor over the step (NumPy's ``edge_order=1``).

    Args:
        x: Array with at least 2 elements along each of the axes.
        *spacing: the step, one number for all axes or one per axis; or per axis its coordinates, Arrays [N]. 1 unless
            given. Coordinates get gradients too.
        axis: one or several axes; None: all.

    Returns:
        An Array of the shape of ``x``, or a tuple of one per axis if there are several; float32 for integers.

    Raises:
        ShapeError: an axis with one element, or coordinates of another length.
        ArgumentError: another number of spacings than axes.
        DTypeError: complex numbers or bools.

    Numerics:
        16-bit floats compute in float32, integers in float64, and are rounded once.

    Example:
        >>> import nvfp as nf
        >>> nf.gradient(nf.asarray([1.0, 2.0, 4.0, 7.0], device="cpu"), 0.5)
        nf.array([2., 3., 5., 6.])
    """
    x = array("gradient", x)
    if x.dtype.kind in "bc":
        raise DTypeError(message("gradient", "real numbers", x.dtype, "cast it, or take nf.real(x) and nf.imag(x)"))
    axes = tuple(range(x.ndim)) if axis is None else axis_tuple("gradient", axis, x.ndim)
    steps = (1.0,) * len(axes) if not spacing else spacing * len(axes) if len(spacing) == 1 else spacing
    if len(steps) != len(axes) or (len(spacing) == 1 and np.ndim(spacing[0]) and len(axes) > 1):
        do = "pass one number, or a spacing per axis"
        raise ArgumentError(message("gradient", f"spacings for {len(axes)} axes", len(spacing), do))
    if x.ndim == 0 or any(x.shape[a] < 2 for a in axes):
        raise ShapeError(message("gradient", "at least 2 elements along each axis", x.shape, "choose other axes"))
    between = float64 if x.dtype.kind in "iu" else float32 if x.dtype in HALVES else x.dtype
    wide, target = nf.astype(x, between, copy=False), float32 if x.dtype.kind in "iu" else x.dtype
    found = tuple(nf.astype(_slope(wide, h, a), target, copy=False) for h, a in zip(steps, axes, strict=True))
    return found[0] if len(found) == 1 else found


def _slope(x: Array, spacing: Any, axis: int) -> Array:
    before = (slice(None),) * axis
    steps = x[(*before, slice(1, None))] - x[(*before, slice(None, -1))]
    h = _widths(x, spacing, axis)
    slopes = steps / h
    left, right = slopes[(*before, slice(None, -1))], slopes[(*before, slice(1, None))]
    if isinstance(h, Array):  # weighted by the step on the other side
        a, b = h[:-1], h[1:]
        inner = (left * b + right * a) / (a + b)
    else:
        inner = (left + right) * 0.5
    return nf.concat([slopes[(*before, slice(None, 1))], inner, slopes[(*before, slice(-1, None))]], axis=axis)


def _widths(x: Array, spacing: Any, axis: int) -> Any:
    """The step as a number, or those between coordinates as an Array that broadcasts from ``axis`` on."""
    if np.ndim(spacing) == 0:
        return real("gradient", spacing)
    places = nf.astype(nf.asarray(spacing, device=x.device), x.dtype, copy=False)
    if places.shape != (x.shape[axis],):
        do = "pass one coordinate per element"
        raise ShapeError(message("gradient", f"coordinates of shape ({x.shape[axis]},)", places.shape, do))
    return nf.reshape(nf.diff(places), (-1,) + (1,) * (x.ndim - axis - 1))


@public
@explained
def unwrap(x: Any, /, discont: float | None = None, axis: int = -1, *, period: float = 2 * math.pi) -> Array:
    """Return angles without jumps: periods are added so that neighbors differ by at most half of one.

    Args:
        x: Array of angles.
        discont: leave steps below this as they are; half a period unless given (and never less).
        axis: along which axis.
        period: after which angles repeat.

    Returns:
        An Array of the shape and dtype of ``x``, float32 for integers. What is added is a constant for gradients.

    Raises:
        DTypeError: complex numbers.
        ShapeError: a scalar.

    Numerics:
        16-bit floats compute in float32 and are rounded once.

    Example:
        >>> import nvfp as nf
        >>> nf.unwrap(nf.asarray([0.5, 0.875, 0.125], device="cpu"), period=1.0)
        nf.array([0.5  , 0.875, 1.125])
    """
    x = array("unwrap", x)
    if x.dtype.kind == "c":
        raise DTypeError(message("unwrap", "real angles", x.dtype, "take nf.angle(x) first"))
    place, half = one_axis("unwrap", axis, x.ndim), period / 2
    x = nf.astype(x, float32) if x.dtype.kind in "iub" else x
    (wide,) = widened(x)
    steps = nf.diff(wide.detach(), axis=place)
    kept = nf.remainder(steps + half, period) - half
    kept = nf.where(nf.logical_and(nf.equal(kept, -half), nf.greater(steps, 0)), half, kept)
    jump = nf.less(nf.abs(steps), half if discont is None else discont)
    added = nf.cumulative_sum(nf.where(jump, 0.0, kept - steps), axis=place, include_initial=x.shape[place] > 0)
    return nf.astype(wide + added, x.dtype, copy=False)
