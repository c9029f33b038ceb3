"""Weighted means, ranges, counts, differences and nearness: NumPy's names, made of functions with gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import HALVES, array, axis_tuple, integer, one_axis, promoted, widened
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf, public
from nvfp.device import Device
from nvfp.dtypes.dense import float32, float64, int64
from nvfp.dtypes.promotion import result_type
from nvfp.errors import ArgumentError, ShapeError, message

Axis = int | tuple[int, ...] | None


@public
@explained
def average(x: Any, /, axis: Axis = None, weights: Any = None, *, keepdims: bool = False) -> Array:
    """Return the weighted mean over axes: ``sum(weights * x) / sum(weights)``.

    Args:
        x: Array.
        axis: one or several axes; None: all.
        weights: Array of the shape of ``x``, or of its lengths along ``axis``; None: `nf.mean`.
        keepdims: leave the reduced axes with length 1.

    Returns:
        An Array of ``nf.result_type(x, weights)``, float32 for integers. Weights get gradients too. Where weights
        sum to 0 it is NaN or infinite, as no check may wait for the GPU.

    Raises:
        ShapeError: weights of another shape.

    Numerics:
        16-bit floats compute in float32, integers in float64, and are rounded once.

    Example:
        >>> import nvfp as nf
        >>> x = nf.asarray([1.0, 5.0], device="cpu")
        >>> nf.average(x, weights=nf.asarray([3.0, 1.0], device="cpu"))
        nf.array(2.)
    """
    x = array("average", x)
    if weights is None:
        return nf.mean(x, axis=axis, keepdims=keepdims)
    (x, weights), dtype = promoted("average", x, array("average", weights))
    axes = tuple(range(x.ndim)) if axis is None else axis_tuple("average", axis, x.ndim)
    if weights.shape != x.shape:
        if axis is None or weights.shape != tuple(x.shape[a] for a in axes):
            do = "name the axis that they belong to, or give one per element"
            raise ShapeError(message("average", f"weights for {x.shape}, axis {axis}", weights.shape, do))
        weights = nf.permute_dims(weights, np.argsort(axes).tolist())
        weights = nf.reshape(weights, tuple(n if i in axes else 1 for i, n in enumerate(x.shape)))
    between = float64 if dtype.kind in "iub" else float32 if dtype in HALVES else dtype
    wide, factor = (nf.astype(v, between, copy=False) for v in (x, weights))
    total = nf.sum(nf.broadcast_to(factor, x.shape), axis=axes, keepdims=keepdims)
    mean = nf.sum(wide * factor, axis=axes, keepdims=keepdims) / total
    return nf.astype(mean, float32 if dtype.kind in "iub" else dtype, copy=False)


@public
@explained
def ptp(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return the range over axes, ``max(x) - min(x)``.

    Args:
        x: Array.
        axis: one or several axes; None: all.
        keepdims: leave the reduced axes with length 1.

    Example:
        >>> import nvfp as nf
        >>> nf.ptp(nf.asarray([[1.0, 5.0], [3.0, 2.0]], device="cpu"), axis=1)
        nf.array([4., 1.])
    """
    x = array("ptp", x)
    return nf.max(x, axis=axis, keepdims=keepdims) - nf.min(x, axis=axis, keepdims=keepdims)


@public
@explained
def count_nonzero(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return how many elements over axes are not zero (int64; NaN counts).

    Args:
        x: Array.
        axis: one or several axes; None: all.
        keepdims: leave the reduced axes with length 1.

    Example:
        >>> import nvfp as nf
        >>> nf.count_nonzero(nf.asarray([[0.0, 5.0], [3.0, 2.0]], device="cpu"), axis=0)
        nf.array([1, 2])
    """
    return nf.sum(nf.not_equal(array("count_nonzero", x), 0), axis=axis, dtype=int64, keepdims=keepdims)


@public
@explained
def diff(x: Any, /, n: int = 1, axis: int = -1, *, prepend: Any = None, append: Any = None) -> Array:
    """Return differences of neighbours along an axis, ``x[i + 1] - x[i]``, taken ``n`` times.

    Args:
        x: Array.
        n: how often; each time the axis gets shorter by one.
        axis: which axis.
        prepend: Array or scalar to put in front first.
        append: the same behind.

    Returns:
        An Array of the dtype of ``x``; of bools, whether neighbours differ.

    Raises:
        ArgumentError: a negative ``n``.
        ShapeError: a scalar, or arrays that do not join.

    Numerics:
        16-bit floats compute in float32 and are rounded once.

    Example:
        >>> import nvfp as nf
        >>> nf.diff(nf.asarray([1.0, 4.0, 9.0, 16.0], device="cpu"))
        nf.array([3., 5., 7.])
    """
    x = array("diff", x)
    place, n = one_axis("diff", axis, x.ndim), integer("diff", "n", n)
    if n < 0:
        raise ArgumentError(message("diff", "n >= 0", n, "pass how often"))
    if n == 0:
        prepend = append = None  # NumPy's rule: x as it is
    parts = [_end(x, end, place) for end in (prepend, x, append) if end is not None]
    x = nf.concat(parts, axis=place) if len(parts) > 1 else x
    (wide,) = widened(x)
    minus = nf.not_equal if x.dtype.kind == "b" else nf.subtract
    before = (slice(None),) * place
    for _ in range(n):
        wide = minus(wide[(*before, slice(1, None))], wide[(*before, slice(None, -1))])
    return nf.astype(wide, x.dtype, copy=False)


def _end(x: Array, end: Any, axis: int) -> Array:
    """What is joined to ``x``: a scalar becomes a layer."""
    if np.ndim(end) == 0:
        end = end if isinstance(end, Array) else nf.asarray(end, dtype=result_type(x.dtype, end), device=x.device)
        return nf.broadcast_to(end, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return array("diff", end)


@public
@explained
def isclose(x: Any, y: Any, /, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Array:
    """Return whether elements are nearly equal: ``|x - y| <= atol + rtol * |y|``, or equal infinities.

    Args:
        x: Array or scalar.
        y: Array or scalar, the reference.
        rtol: relative tolerance. NumPy's default is below the spacing of 16-bit floats: pass a larger one for these.
        atol: absolute tolerance.
        equal_nan: whether NaN is near NaN.

    Returns:
        A bool Array of the broadcast shape.

    Numerics:
        16-bit and narrower floats compare in float32, integers in float64.

    Example:
        >>> import nvfp as nf
        >>> nf.isclose(nf.asarray([1.0, 1.1], device="cpu"), 1.000001)
        nf.array([ True, False])
    """
    (x, y), dtype = promoted("isclose", x, y)
    device = next(v.device for v in (x, y) if isinstance(v, Array))
    x, y = (_comparable(v, dtype, device) for v in (x, y))
    near = nf.less_equal(nf.abs(x - y), nf.abs(y) * rtol + atol)
    near = nf.logical_or(nf.logical_and(near, nf.isfinite(y)), nf.equal(x, y))
    return nf.logical_or(near, nf.logical_and(nf.isnan(x), nf.isnan(y))) if equal_nan else near


def _comparable(value: Any, dtype: np.dtype, device: Device) -> Array:
    """An untracked Array of a floating dtype of at least 32 bits."""
    target = float64 if dtype.kind in "iub" else dtype if dtype.itemsize > 2 else float32
    return nf.astype(nf.asarray(value, device=device).detach(), target, copy=False)


@public
@explained
def allclose(x: Any, y: Any, /, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether all elements are nearly equal (waits for the GPU); see `nf.isclose`.

    Args:
        x: Array or scalar.
        y: Array or scalar, the reference.
        rtol: relative tolerance.
        atol: absolute tolerance.
        equal_nan: whether NaN is near NaN.

    Example:
        >>> import nvfp as nf
        >>> nf.allclose(nf.ones((2,), device="cpu"), 1.000001)
        True
    """
    return bool(nf.all(isclose(x, y, rtol, atol, equal_nan)))


@public
def array_equal(x: Any, y: Any, /, equal_nan: bool = False) -> bool:
    """Whether two arrays have the same shape and equal values (waits for the GPU).

    Args:
        x: Array.
        y: Array.
        equal_nan: whether NaN equals NaN.

    Example:
        >>> import nvfp as nf
        >>> nf.array_equal(nf.ones((2,), device="cpu"), nf.ones((2,), dtype=nf.bfloat16, device="cpu"))
        True
    """
    x, y = array("array_equal", x), array("array_equal", y)
    if x.shape != y.shape:
        return False
    same = nf.equal(x, y)
    if equal_nan and x.dtype.kind not in "iub" and y.dtype.kind not in "iub":
        same = nf.logical_or(same, nf.logical_and(nf.isnan(x), nf.isnan(y)))
    return bool(nf.all(same))
