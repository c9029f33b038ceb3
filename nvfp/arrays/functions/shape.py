"""Axes: reshape, permute, insert, broadcast. Views where memory allows it; blocks of quantized arrays move whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nvfp.arrays import block_index, blocks
from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import any_array, axis_tuple, dense, fit, integers, like, one_axis, view
from nvfp.arrays.quantized import QuantizedArray, quantized
from nvfp.arrays.registry import nf, public
from nvfp.errors import ArgumentError, ShapeError, message
from nvfp.kernels.cast import cast
from nvfp.kernels.elementwise import elementwise

Shape = int | Sequence[int]


def _lengths(op: str, shape: Shape, size: int) -> tuple[int, ...]:
    """The whole shape, with one -1 filled in."""
    found = integers(op, "shape", shape)
    if found.count(-1) == 1:
        rest = math.prod(n for n in found if n != -1)
        if rest and size % rest == 0:
            found = tuple(size // rest if n == -1 else n for n in found)
    if any(n < 0 for n in found) or math.prod(found) != size:
        raise ShapeError(
            message(op, f"a shape of {size} elements", tuple(found), "make the product of the lengths fit")
        )
    return found


def _reshape_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    return (nf.reshape(g, saved[0]),)


@public
def reshape(x: Any, /, shape: Shape, *, copy: bool | None = None) -> Array:
    """Return the same elements in another shape, in row-major order.

    Args:
        x: Array; of a quantized one the block axis stays, as long as it is, with as many elements before it and behind.
        shape: lengths, one of them may be -1.
        copy: True copies; False raises where a copy is needed; by default a view where possible.

    Raises:
        ShapeError: another number of elements, or a shape that would break a block.
        ArgumentError: ``copy=False`` for an array that is not contiguous.

    Example:
        >>> import nvfp as nf
        >>> nf.reshape(nf.arange(6, device="cpu"), (2, -1)).shape
        (2, 3)
    """
    x = any_array("reshape", x)
    lengths = _lengths("reshape", shape, x.size)
    node = dense("reshape", (x,), _reshape_vjp, (x.shape,))
    if isinstance(x, QuantizedArray):
        return quantized(blocks.reshape(x.operand, lengths), node, x.storage)
    raw = _viewed(x.raw, lengths)
    if raw is not None and not copy:
        return view(x, raw, node)
    if copy is False:
        do = "leave copy out, or make it contiguous with x.copy()"
        raise ArgumentError(
            message("reshape", "memory in row-major order with copy=False", f"strides {x.raw.strides}", do)
        )
    fresh = elementwise("copy", x.raw) if x.dtype.kind == "c" else cast(x.raw, x.raw.dtype)
    return wrap(fresh.reshape(lengths), x.dtype, node)


def _viewed(raw: Any, lengths: tuple[int, ...]) -> Any:
    """The same memory in another shape, or None if that needs a copy."""
    if raw.flags.c_contiguous:
        return raw.reshape(lengths)
    try:
        return np.reshape(raw, lengths, copy=False) if isinstance(raw, np.ndarray) else None
    except ValueError:
        return None


def _permute_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    axes = saved[0]
    return (nf.permute_dims(g, tuple(axes.index(i) for i in range(len(axes)))),)


@public
def permute_dims(x: Any, /, axes: Sequence[int]) -> Array:
    """Return a view with the axes in another order; a quantized array's block axis moves along.

    Args:
        x: Array.
        axes: every axis once: axis i of the result is axis ``axes[i]`` of ``x``.

    Raises:
        ShapeError: not a permutation, or blocks over two axes that would not stay last.

    Example:
        >>> import nvfp as nf
        >>> nf.permute_dims(nf.zeros((2, 3, 4), device="cpu"), (2, 0, 1)).shape
        (4, 2, 3)
    """
    x = any_array("permute_dims", x)
    order = axis_tuple("permute_dims", axes, x.ndim)
    if len(order) != x.ndim:
        raise ShapeError(message("permute_dims", f"each of {x.ndim} axes once", order, "name them all"))
    node = dense("permute_dims", (x,), _permute_vjp, (order,))
    if isinstance(x, QuantizedArray):
        return quantized(blocks.permute(x.operand, order), node, x.storage)
    return view(x, x.raw.transpose(order), node)


@public
def transpose(x: Any, /, axes: Sequence[int] | None = None) -> Array:
    """Return `permute_dims`, or all axes reversed.

    Args:
        x: Array.
        axes: every axis once, in the new order; None: reversed.

    Example:
        >>> import nvfp as nf
        >>> nf.transpose(nf.zeros((2, 3), device="cpu")).shape
        (3, 2)
    """
    if axes is None and type(x) is Array and x._node is None:
        return view(x, x.raw.T, None)
    x = any_array("transpose", x)
    return permute_dims(x, tuple(range(x.ndim))[::-1] if axes is None else axes)


@public
def matrix_transpose(x: Any, /) -> Array:
    """Return a view with the last two axes swapped.

    Args:
        x: Array [..., M, N].

    Raises:
        ShapeError: fewer than two axes.

    Example:
        >>> import nvfp as nf
        >>> nf.matrix_transpose(nf.zeros((5, 2, 3), device="cpu")).shape
        (5, 3, 2)
    """
    x = any_array("matrix_transpose", x)
    if x.ndim < 2:
        raise ShapeError(message("matrix_transpose", "at least two axes", x.shape, "add one with nf.expand_dims"))
    return swapaxes(x, -1, -2)


@public
def swapaxes(x: Any, axis1: int, axis2: int, /) -> Array:
    """Return a view with two axes swapped.

    Args:
        x: Array.
        axis1: the one axis.
        axis2: the other.

    Example:
        >>> import nvfp as nf
        >>> nf.swapaxes(nf.zeros((2, 3, 4), device="cpu"), 0, 2).shape
        (4, 3, 2)
    """
    x = any_array("swapaxes", x)
    a, b = one_axis("swapaxes", axis1, x.ndim), one_axis("swapaxes", axis2, x.ndim)
    order = list(range(x.ndim))
    order[a], order[b] = b, a
    return permute_dims(x, order)


@public
def moveaxis(x: Any, source: int | Sequence[int], destination: int | Sequence[int], /) -> Array:
    """Return a view with some axes moved; the others keep their order.

    Args:
        x: Array.
        source: where the axes are.
        destination: where they go, in the same order.

    Raises:
        ShapeError: axes out of range, or lists of different lengths.

    Example:
        >>> import nvfp as nf
        >>> nf.moveaxis(nf.zeros((2, 3, 4), device="cpu"), 0, -1).shape
        (3, 4, 2)
    """
    x = any_array("moveaxis", x)
    come, go = axis_tuple("moveaxis", source, x.ndim), axis_tuple("moveaxis", destination, x.ndim)
    if len(come) != len(go):
        raise ShapeError(message("moveaxis", "as many destinations as sources", (source, destination), "pair them"))
    order = [i for i in range(x.ndim) if i not in come]
    for place, axis in sorted(zip(go, come, strict=True)):
        order.insert(place, axis)
    return permute_dims(x, order)


@public
def expand_dims(x: Any, /, axis: int | Sequence[int] = 0) -> Array:
    """Return a view with new axes of length 1 at ``axis`` of the result.

    Args:
        x: Array.
        axis: places of the new axes in the result.

    Raises:
        ShapeError: an axis out of range, or twice.

    Example:
        >>> import nvfp as nf
        >>> nf.expand_dims(nf.zeros((2, 3), device="cpu"), (0, -1)).shape
        (1, 2, 3, 1)
    """
    x = any_array("expand_dims", x)
    axes = integers("expand_dims", "axis", axis)
    count = len(axes)
    places = axis_tuple("expand_dims", axes, x.ndim + count)
    key = [None if i in places else slice(None) for i in range(x.ndim + count)]
    node = dense("expand_dims", (x,), _reshape_vjp, (x.shape,))
    if isinstance(x, QuantizedArray):
        return quantized(block_index.getitem(x.operand, key, "expand_dims"), node, x.storage)
    return view(x, x.raw[(*key, ...)], node)


@public
def squeeze(x: Any, /, axis: int | Sequence[int] | None = None) -> Array:
    """Return a view without axes of length 1 (without all of them by default).

    Args:
        x: Array.
        axis: which axes; None: every axis of length 1.

    Raises:
        ShapeError: an axis out of range or not of length 1.

    Example:
        >>> import nvfp as nf
        >>> nf.squeeze(nf.zeros((1, 3, 1), device="cpu"), (0, 2)).shape
        (3,)
    """
    x = any_array("squeeze", x)
    ones = tuple(i for i, n in enumerate(x.shape) if n == 1)
    places = ones if axis is None else axis_tuple("squeeze", axis, x.ndim)
    if any(x.shape[i] != 1 for i in places):
        raise ShapeError(message("squeeze", "axes of length 1", f"axis {axis} of {x.shape}", "name axes of length 1"))
    key = [0 if i in places else slice(None) for i in range(x.ndim)]
    node = dense("squeeze", (x,), _reshape_vjp, (x.shape,))
    if isinstance(x, QuantizedArray):
        return quantized(block_index.getitem(x.operand, key, "squeeze"), node, x.storage)
    return view(x, x.raw[(*key, ...)], node)


def _broadcast_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    return (fit(g, saved[0]),)


@public
def broadcast_to(x: Any, /, shape: Shape) -> Array:
    """Return a read-only view of ``x`` broadcast to ``shape``; the gradient is summed back.

    Args:
        x: Array.
        shape: lengths of the result.

    Raises:
        ShapeError: a shape that ``x`` does not broadcast to, or that stretches a block of a quantized one.

    Example:
        >>> import nvfp as nf
        >>> nf.broadcast_to(nf.ones((3, 1), device="cpu"), (2, 3, 4)).shape
        (2, 3, 4)
    """
    x = any_array("broadcast_to", x)
    lengths = integers("broadcast_to", "shape", shape)
    if isinstance(x, QuantizedArray):
        node = dense("broadcast_to", (x,), _broadcast_vjp, (like(x),))
        return quantized(blocks.broadcast(x.operand, lengths), node, x.storage)
    if x.shape == lengths:
        return view(x, x.raw, dense("broadcast_to", (x,), _broadcast_vjp, (like(x),)))
    strides = _broadcast_strides(x, lengths)
    node = dense("broadcast_to", (x,), _broadcast_vjp, (like(x),))
    return view(x, blocks.as_strided(x.raw, lengths, strides), node)


def _broadcast_strides(x: Array, lengths: tuple[int, ...]) -> tuple[int, ...]:
    added = len(lengths) - x.ndim
    if added < 0 or min(lengths, default=0) < 0 or any(n not in (1, lengths[added + i]) for i, n in enumerate(x.shape)):
        raise ShapeError(message("broadcast_to", f"a shape that {x.shape} broadcasts to", lengths, "reshape it first"))
    own = tuple(0 if n == 1 else s for n, s in zip(x.shape, x.raw.strides, strict=True))
    return (0,) * added + own


@public
def broadcast_arrays(*arrays: Any) -> tuple[Array, ...]:
    """Return views of all arrays broadcast to their common shape.

    Args:
        arrays: Arrays.

    Raises:
        ShapeError: shapes that do not broadcast.

    Example:
        >>> import nvfp as nf
        >>> [x.shape for x in nf.broadcast_arrays(nf.ones((3, 1), device="cpu"), nf.ones((4,), device="cpu"))]
        [(3, 4), (3, 4)]
    """
    found = [any_array("broadcast_arrays", x) for x in arrays]
    shape = broadcast_shapes(*(x.shape for x in found))
    return tuple(broadcast_to(x, shape) for x in found)


@public
def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that all shapes broadcast to.

    Args:
        shapes: tuples of lengths.

    Raises:
        ShapeError: shapes that do not broadcast.

    Example:
        >>> broadcast_shapes((3, 1), (4,))
        (3, 4)
    """
    shapes = tuple([integers("broadcast_shapes", "shape", shape) for shape in shapes])
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ShapeError(
            message("broadcast_shapes", "shapes that broadcast", shapes, "insert axes of length 1")
        ) from None


def _flip_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    return (nf.flip(g, axis=saved[0]),)


@public
def flip(x: Any, /, axis: int | Sequence[int] | None = None) -> Array:
    """Return a view with the order of elements reversed along axes (all by default).

    Args:
        x: Array.
        axis: which axes; None: all.

    Example:
        >>> import nvfp as nf
        >>> nf.flip(nf.arange(3, device="cpu"))
        nf.array([2, 1, 0])
    """
    x = any_array("flip", x)
    places = tuple(range(x.ndim)) if axis is None else axis_tuple("flip", axis, x.ndim)
    key = tuple(slice(None, None, -1) if i in places else slice(None) for i in range(x.ndim))
    node = dense("flip", (x,), _flip_vjp, (places,))
    if isinstance(x, QuantizedArray):
        return quantized(block_index.getitem(x.operand, key, "flip"), node, x.storage)
    return view(x, x.raw[(*key, ...)], node)
