"""Sums and other reductions over axes, with their gradient rules."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from nvfp.arrays.array import Array, fresh, wrap
from nvfp.arrays.functions._common import HALVES, array, axis_tuple, dense, fit, like, one_axis, real, widened
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf, public
from nvfp.autograd.tape import Output, needs_grad
from nvfp.dtypes.dense import as_dtype, float32, float64, int64, uint64
from nvfp.errors import DTypeError, ShapeError, message
from nvfp.kernels.reduce import reduce, small

Axis = int | tuple[int, ...] | None


def _axes(op: str, axis: Axis, ndim: int) -> tuple[int, ...]:
    return tuple(range(ndim)) if axis is None else axis_tuple(op, axis, ndim)


def _spread(g: Array, axes: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """A gradient of reduced shape, as a view of the shape before the reduction."""
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
    return nf.broadcast_to(nf.reshape(g, kept), shape)


def accumulator(x: Array, dtype: Any) -> np.dtype:
    """The dtype of a sum: floats keep theirs, integers widen as in NumPy."""
    if dtype is not None:
        found = as_dtype(dtype)
        if not isinstance(found, np.dtype):
            raise DTypeError(message("sum", "a dense dtype", found, "reduce first, then quantize"))
        return found
    kind = x.dtype.kind
    return uint64 if kind == "u" else int64 if kind in "ib" else x.dtype


def _sum_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    axes, target = saved
    return (fit(_spread(g, axes, target[0]), target),)


@public
@explained
def sum(x: Any, /, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
    """Return the sum over axes.

    Args:
        x: Array.
        axis: one or several axes; None: all.
        dtype: of the result; by default that of ``x``, int64 (uint64) for integers and bools.
        keepdims: leave the reduced axes with length 1.

    Raises:
        ShapeError: an axis out of range.

    Numerics:
        Floats of at most 32 bits add up in float32 (pairwise) and are rounded once; the same bits each time.

    Example:
        >>> import nvfp as nf
        >>> nf.sum(nf.full((4096,), 0.1, dtype=nf.bfloat16, device="cpu"))
        nf.array(410., dtype=bfloat16)
    """
    if axis is None and dtype is None and not keepdims and type(x) is Array and x._node is None:
        found = small("sum", x.raw)
        if found is not None:
            return fresh(found)
    x = array("sum", x)
    axes = _axes("sum", axis, x.ndim)
    raw = reduce("sum", x.raw, axis=axes, keepdims=keepdims, dtype=accumulator(x, dtype))
    return wrap(raw, node=dense("sum", (x,), _sum_vjp, (axes, like(x))))


def _mean_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    axes, target, count = saved
    share = 1.0 / count if count else 0.0  # over nothing there is no element to give it to
    return (fit(_spread(g * share, axes, target[0]), target),)


@public
@explained
def mean(x: Any, /, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
    """Return the mean over axes (NaN over none).

    Args:
        x: Array.
        axis: one or several axes; None: all.
        dtype: of the result; by default that of ``x``, float32 for integers and bools.
        keepdims: leave the reduced axes with length 1.

    Example:
        >>> import nvfp as nf
        >>> nf.mean(nf.asarray([[1.0, 2.0], [3.0, 4.0]], device="cpu"), axis=0)
        nf.array([2., 3.])
    """
    if axis is None and dtype is None and not keepdims and type(x) is Array and x._node is None:
        found = small("sum", x.raw)
        if found is not None:
            return fresh(found / found.dtype.type(x.raw.size))
    x = array("mean", x)
    axes = _axes("mean", axis, x.ndim)
    target = float32 if dtype is None and x.dtype.kind in "iub" else accumulator(x, dtype)
    count = math.prod(x.shape[a] for a in axes)
    source = nf.astype(x, float64).raw if x.dtype in (int64, uint64) else x.raw  # their sum may pass 64 bits
    raw = reduce("mean", source, axis=axes, keepdims=keepdims, dtype=target)
    return wrap(raw, node=dense("mean", (x,), _mean_vjp, (axes, like(x), count)))


def _extreme_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    x, out, axes, target = saved
    hit = nf.astype(nf.equal(x, _spread(out, axes, x.shape)), float32 if g.dtype in HALVES else g.dtype)
    share = hit / nf.sum(hit, axis=axes, keepdims=True)
    return (fit(_spread(g, axes, x.shape) * share, target),)


def _extreme(op: Literal["max", "min"], x: Any, axis: Axis, keepdims: bool) -> Array:
    if axis is None and not keepdims and type(x) is Array and x._node is None:
        found = small(op, x.raw)
        if found is not None:
            return fresh(found)
    x = array(op, x)
    axes = _axes(op, axis, x.ndim)
    if 0 in (x.shape[a] for a in axes):
        raise ShapeError(
            message(op, "at least one element", f"shape {x.shape}, axis {axis}", "reduce over axes with elements")
        )
    y = wrap(reduce(op, x.raw, axis=axes, keepdims=keepdims))
    if x._node is not None:
        y._node = dense(op, (x,), _extreme_vjp, (x, Output(y), axes, like(x)))
    return y


@public
@explained
def max(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return the largest element over axes (NaN if there is one); equal ones share the gradient.

    Args:
        x: Array.
        axis: one or several axes; None: all.
        keepdims: leave the reduced axes with length 1.

    Raises:
        ShapeError: no element to choose from.

    Example:
        >>> import nvfp as nf
        >>> nf.max(nf.asarray([[1.0, 5.0], [3.0, 4.0]], device="cpu"), axis=1)
        nf.array([5., 4.])
    """
    return _extreme("max", x, axis, keepdims)


@public
@explained
def min(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return the smallest element over axes (NaN if there is one); equal ones share the gradient.

    Args:
        x: Array.
        axis: one or several axes; None: all.
        keepdims: leave the reduced axes with length 1.

    Raises:
        ShapeError: no element to choose from.

    Example:
        >>> import nvfp as nf
        >>> nf.min(nf.asarray([[1.0, 5.0], [3.0, 4.0]], device="cpu"), axis=1)
        nf.array([1., 3.])
    """
    return _extreme("min", x, axis, keepdims)


def _others(x: Array, axes: tuple[int, ...]) -> Array:
    """The product of all others over axes, for each element: n by n factors, which can be differentiated again."""
    rest = [i for i in range(x.ndim) if i not in axes]
    order = (*rest, *axes)
    moved = nf.permute_dims(x, order)
    count = math.prod(x.shape[a] for a in axes)
    rows = nf.reshape(moved, (*moved.shape[: len(rest)], 1, count))
    slope = nf.prod(nf.where(nf.asarray(np.eye(count, dtype=bool), device=x.device), 1.0, rows), axis=-1)
    return nf.permute_dims(nf.reshape(slope, moved.shape), [order.index(i) for i in range(x.ndim)])


def _prod_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    """``prod(others)``: exact with zeros too, where ``prod / x`` is not."""
    x, axes, target = saved
    g, x = widened(g, x)
    if needs_grad(x):
        return (fit(_spread(g, axes, x.shape) * _others(x, axes), target),)
    zero = nf.equal(x, 0)
    others = nf.where(zero, 1.0, x)
    product = nf.prod(others, axis=axes, keepdims=True)
    zeros = nf.sum(zero, axis=axes, keepdims=True)
    one = nf.where(nf.logical_and(zero, nf.equal(zeros, 1)), product, 0.0)
    slope = nf.where(nf.equal(zeros, 0), product / others, one)
    return (fit(_spread(g, axes, x.shape) * slope, target),)


@public
@explained
def prod(x: Any, /, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
    """Return the product over axes.

    Args:
        x: Array.
        axis: one or several axes; None: all.
        dtype: of the result; by default that of ``x``, int64 (uint64) for integers and bools.
        keepdims: leave the reduced axes with length 1.

    Example:
        >>> import nvfp as nf
        >>> nf.prod(nf.asarray([2.0, 3.0, 4.0], device="cpu"))
        nf.array(24.)
    """
    x = array("prod", x)
    axes = _axes("prod", axis, x.ndim)
    raw = reduce("prod", x.raw, axis=axes, keepdims=keepdims, dtype=accumulator(x, dtype))
    return wrap(raw, node=dense("prod", (x,), _prod_vjp, (x, axes, like(x))))


def squares(x: Array) -> Array:
    """``|x| ** 2``, real."""
    return nf.real(x * nf.conj(x)) if x.dtype.kind == "c" else x * x


@public
@explained
def var(x: Any, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Return the variance over axes: ``sum(|x - mean| ** 2) / (n - correction)``.

    Args:
        x: Array.
        axis: one or several axes; None: all.
        correction: 0 for the population's, 1 for the sample's variance.
        keepdims: leave the reduced axes with length 1.

    Returns:
        An Array of the dtype of ``x``, float32 for integers; of complex numbers the real dtype of their parts.

    Numerics:
        16-bit floats compute in float32, integers in float64, and are rounded once.

    Example:
        >>> import nvfp as nf
        >>> nf.var(nf.asarray([1.0, 3.0], device="cpu"), correction=1)
        nf.array(2.)
    """
    x = array("var", x)
    whole = x.dtype.kind in "iub"
    axes = _axes("var", axis, x.ndim)
    (wide,) = (nf.astype(x, float64),) if whole else widened(x)
    distance = wide - nf.mean(wide, axis=axes, keepdims=True)
    count = math.prod(x.shape[a] for a in axes) - real("var", correction)
    total = nf.sum(squares(distance), axis=axes, keepdims=keepdims)
    target = float32 if whole else x.dtype if x.dtype.kind == "f" or x.dtype in HALVES else total.dtype
    return nf.astype(total * (1.0 / count) if count > 0 else total * math.nan, target, copy=False)


def root_of(variance: Array) -> Array:
    """The square root; its gradient is 0 (not inf times 0) where equal numbers have no variance."""
    if variance._node is None:
        return nf.sqrt(variance)
    flat = nf.equal(variance, 0.0)
    root: Array = nf.where(flat, 0.0, nf.sqrt(nf.where(flat, 1.0, variance)))
    return root


@public
@explained
def std(x: Any, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Return the standard deviation over axes, the root of `nf.var`.

    Args:
        x: Array.
        axis: one or several axes; None: all.
        correction: 0 for the population's, 1 for the sample's deviation.
        keepdims: leave the reduced axes with length 1.

    Example:
        >>> import nvfp as nf
        >>> nf.std(nf.asarray([1.0, 3.0], device="cpu"))
        nf.array(1.)
    """
    x = array("std", x)
    (wide,) = widened(x)
    root = root_of(nf.var(wide, axis=axis, correction=correction, keepdims=keepdims))
    return nf.astype(root, x.dtype, copy=False) if x.dtype in HALVES else root


def _plain(op: Literal["all", "any"], x: Any, axis: Axis, keepdims: bool) -> Array:
    x = array(op, x)
    return wrap(reduce(op, x.raw, axis=_axes(op, axis, x.ndim), keepdims=keepdims))


@public
@explained
def all(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return whether every element over axes is true (not zero).

    Args:
        x: Array.
        axis: one or several axes; None: all.
        keepdims: leave the reduced axes with length 1.

    Example:
        >>> import nvfp as nf
        >>> nf.all(nf.asarray([True, False], device="cpu"))
        nf.array(False)
    """
    return _plain("all", x, axis, keepdims)


@public
@explained
def any(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return whether some element over axes is true (not zero).

    Args:
        x: Array.
        axis: one or several axes; None: all.
        keepdims: leave the reduced axes with length 1.

    Example:
        >>> import nvfp as nf
        >>> nf.any(nf.asarray([True, False], device="cpu"))
        nf.array(True)
    """
    return _plain("any", x, axis, keepdims)


def _position(op: Literal["argmax", "argmin"], x: Any, axis: int | None, keepdims: bool) -> Array:
    x = array(op, x)
    chosen = None if axis is None else one_axis(op, axis, x.ndim)
    if (x.size if chosen is None else x.shape[chosen]) == 0:
        raise ShapeError(message(op, "at least one element", f"shape {x.shape}", "reduce over axes with elements"))
    return wrap(reduce(op, x.raw, axis=chosen, keepdims=keepdims))


@public
@explained
def argmax(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Return the index (int64) of the first largest element along an axis, or in the flattened array.

    Args:
        x: Array.
        axis: which axis; None: the flattened array.
        keepdims: leave the reduced axes with length 1.

    Raises:
        ShapeError: no element to choose from.

    Example:
        >>> import nvfp as nf
        >>> nf.argmax(nf.asarray([[1.0, 5.0], [3.0, 2.0]], device="cpu"), axis=1)
        nf.array([1, 0])
    """
    return _position("argmax", x, axis, keepdims)


@public
@explained
def argmin(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    """Return the index (int64) of the first smallest element along an axis, or in the flattened array.

    Args:
        x: Array.
        axis: which axis; None: the flattened array.
        keepdims: leave the reduced axes with length 1.

    Raises:
        ShapeError: no element to choose from.

    Example:
        >>> import nvfp as nf
        >>> nf.argmin(nf.asarray([[1.0, 5.0], [3.0, 2.0]], device="cpu"), axis=1)
        nf.array([0, 1])
    """
    return _position("argmin", x, axis, keepdims)
