"""Sorted order: `sort`, `argsort`, `searchsorted`, `digitize`. NumPy and CuPy sort; NaN comes last."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import any_array, dense, one_axis, promoted
from nvfp.arrays.functions._library import as_positions, call, ordered, rounded, wide
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf, public
from nvfp.autograd.tape import needs_grad
from nvfp.dtypes.dense import bool as bool_, float32, uint8
from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.kernels.cast import cast


def _sort_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    inverse, axis = saved
    return (nf.take_along_axis(g, inverse, axis=axis),)


def _sortable(x: Array) -> Any:
    """Raw values of a dtype that both libraries sort."""
    return cast(x.raw, uint8) if x.dtype is bool_ else wide(x)


def _along(op: str, x: Any, axis: int | None) -> tuple[Array, int]:
    x = ordered(op, x)
    if axis is None:
        return nf.reshape(x, (-1,)), 0
    return x, one_axis(op, axis, x.ndim)


@public
@explained
def sort(x: Any, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """Return the elements in order along an axis.

    Args:
        x: real Array [..., N, ...].
        axis: which axis; None: the flattened array.
        descending: from the largest to the smallest.
        stable: accepted for the standard's sake; the order is always the stable one.

    Returns:
        An Array of the shape and dtype of ``x`` (float32 for quantized and narrow ones). NaN counts as the largest.

    Raises:
        ShapeError: no axis, or one out of range.
        DTypeError: a complex array.

    Notes:
        The gradient goes back to where each element came from.

    Example:
        >>> import nvfp as nf
        >>> nf.sort(nf.asarray([3.0, 1.0, 2.0], device="cpu"), descending=True)
        nf.array([3., 2., 1.])
    """
    x, place = _along("sort", x, axis)
    if needs_grad(x):
        order = argsort(x, axis=place, descending=descending)
        node = dense("sort", (x,), _sort_vjp, (argsort(order, axis=place), place))
        return wrap(nf.take_along_axis(x.detach(), order, axis=place).raw, node=node)
    found = call("sort", _sortable(x), axis=place, descending=descending)
    return wrap(cast(found, bool_)) if x.dtype is bool_ else rounded(found, x.dtype)


@public
@explained
def argsort(x: Any, /, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> Array:
    """Return the indices (int64) that put an axis in order; equal elements keep their order.

    Args:
        x: real Array [..., N, ...].
        axis: which axis; None: the flattened array.
        descending: from the largest to the smallest.
        stable: accepted for the standard's sake; the order is always the stable one.

    Raises:
        ShapeError: no axis, or one out of range.
        DTypeError: a complex array.

    Example:
        >>> import nvfp as nf
        >>> nf.argsort(nf.asarray([3.0, 1.0, 2.0], device="cpu"))
        nf.array([1, 2, 0])
    """
    x, place = _along("argsort", x, axis)
    return as_positions(call("argsort", _sortable(x), axis=place, descending=descending, stable=True))


@public
@explained
def searchsorted(x1: Any, x2: Any, /, side: Literal["left", "right"] = "left", *, sorter: Any = None) -> Array:
    """Return where elements would go into a sorted vector (int64).

    Args:
        x1: real Array [N], in ascending order (or made so by ``sorter``).
        x2: real Array or number: what to look for.
        side: before (``"left"``) or behind (``"right"``) equal elements.
        sorter: integer Array [N], the order of ``x1`` as `nf.argsort` gives it.

    Returns:
        An Array of the shape of ``x2`` with numbers from 0 to N.

    Raises:
        ShapeError: ``x1`` is no vector.
        ArgumentError: another ``side``.

    Example:
        >>> import nvfp as nf
        >>> nf.searchsorted(nf.asarray([1.0, 3.0, 5.0], device="cpu"), nf.asarray([0.0, 3.0, 4.0], device="cpu"))
        nf.array([0, 1, 2])
    """
    if side not in ("left", "right"):
        raise ArgumentError(message("searchsorted", "side 'left' or 'right'", repr(side), "name one of these"))
    x1 = ordered("searchsorted", x1)
    x2 = x2 if isinstance(x2, Array | np.ndarray) else nf.asarray(x2, device=x1.device)
    (a, b), dtype = promoted("searchsorted", x1, ordered("searchsorted", x2))
    if a.ndim != 1:
        raise ShapeError(message("searchsorted", "a vector to search in", f"shape {a.shape}", "flatten it"))
    if sorter is not None:
        order = any_array("searchsorted", sorter)
        if order.dtype.kind not in "iu" or order.shape != a.shape:
            do = "pass nf.argsort(x1)"
            raise DTypeError(message("searchsorted", f"an integer sorter of shape {a.shape}", repr(order), do))
        a = nf.take(a, order)
    common = np.dtype(float32) if dtype.itemsize == 2 and dtype.kind in "fV" else dtype
    left, right = (nf.astype(v.detach(), common, copy=False).raw for v in (a, b))
    return as_positions(call("searchsorted", left, right, side=side))


@public
@explained
def digitize(x: Any, bins: Any, /, right: bool = False) -> Array:
    """Return the number of the bin that each element falls into: i where ``bins[i - 1] <= x < bins[i]``.

    Args:
        x: real Array.
        bins: Array [N] of edges, ascending or descending.
        right: bins hold their right edge instead: ``bins[i - 1] < x <= bins[i]``.

    Returns:
        int64 numbers from 0 to N of the shape of ``x``.

    Raises:
        ShapeError: ``bins`` is no vector.

    Example:
        >>> import nvfp as nf
        >>> nf.digitize(nf.asarray([0.5, 1.0, 9.0], device="cpu"), nf.asarray([1.0, 2.0], device="cpu"))
        nf.array([0, 1, 2])
    """
    x, edges = ordered("digitize", x), ordered("digitize", bins)
    if edges.ndim != 1:
        raise ShapeError(message("digitize", "a vector of edges", f"shape {edges.shape}", "flatten it"))
    side: Literal["left", "right"] = "left" if right else "right"
    if edges.size and bool(nf.greater(edges[0], edges[-1])):
        return nf.subtract(edges.size, searchsorted(nf.flip(edges), x, side=side))
    return searchsorted(edges, x, side=side)
