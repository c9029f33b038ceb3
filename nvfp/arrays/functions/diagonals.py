"""Diagonals, Kronecker and cross products: NumPy's names, made of functions with gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import array, axis_tuple, integer, one_axis, promoted, widened
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf, public
from nvfp.errors import ShapeError, message


def _places(length: int, offset: int, x: Array) -> tuple[Array, Array]:
    """Row and column indices of ``length`` elements of a diagonal."""
    steps = np.arange(length, dtype=np.int64)
    rows, columns = steps + max(-offset, 0), steps + max(offset, 0)
    return nf.asarray(rows, device=x.device), nf.asarray(columns, device=x.device)


@public
@explained
def diagonal(x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """Return a diagonal of the matrices over two axes, as the last axis.

    Args:
        x: Array of at least two axes.
        offset: which diagonal; above the main one if positive.
        axis1: axis of the rows.
        axis2: axis of the columns.

    Returns:
        An Array of the other axes and one along the diagonal.

    Raises:
        ShapeError: fewer than two axes, or twice the same.

    Example:
        >>> import nvfp as nf
        >>> nf.diagonal(nf.asarray([[1, 2], [3, 4]], device="cpu"))
        nf.array([1, 4])
    """
    x, offset = array("diagonal", x), integer("diagonal", "offset", offset)
    pair = axis_tuple("diagonal", (axis1, axis2), x.ndim)
    rest = [a for a in range(x.ndim) if a not in pair]
    x = nf.permute_dims(x, (*rest, *pair))
    rows, columns = x.shape[-2:]
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    first = offset if offset >= 0 else -offset * columns
    flat = nf.reshape(x, (*x.shape[:-2], rows * columns))
    steps = slice(first, first + length * (columns + 1), columns + 1)
    return nf.getitem(flat, (..., steps if length else slice(0, 0)))


@public
@explained
def trace(x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1, *, dtype: Any = None) -> Array:
    """Return the sum of a diagonal of the matrices over two axes.

    Args:
        x: Array of at least two axes.
        offset: which diagonal; above the main one if positive.
        axis1: axis of the rows.
        axis2: axis of the columns.
        dtype: of the result, as in `nf.sum`.

    Example:
        >>> import nvfp as nf
        >>> nf.trace(nf.asarray([[1.0, 2.0], [3.0, 4.0]], device="cpu"))
        nf.array(5.)
    """
    return nf.sum(diagonal(array("trace", x), offset, axis1, axis2), axis=-1, dtype=dtype)


@public
@explained
def diag(x: Any, /, k: int = 0) -> Array:
    """Return a diagonal of a matrix, or the matrix with a vector on a diagonal.

    Args:
        x: Array [M, N] or [N].
        k: which diagonal; above the main one if positive.

    Raises:
        ShapeError: neither a vector nor a matrix.

    Example:
        >>> import nvfp as nf
        >>> nf.diag(nf.asarray([1, 2], device="cpu")).tolist()
        [[1, 0], [0, 2]]
    """
    x, k = array("diag", x), integer("diag", "k", k)
    if x.ndim not in (1, 2):
        raise ShapeError(message("diag", "a vector or a matrix", f"shape {x.shape}", "use nf.diagonal for batches"))
    if x.ndim == 2:
        return diagonal(x, k)
    n = x.shape[0] + abs(k)
    matrix = nf.zeros((n, n), dtype=x.dtype, device=x.device)
    matrix[_places(x.shape[0], k, x)] = x
    return matrix


@public
@explained
def kron(x: Any, y: Any, /) -> Array:
    """Return the Kronecker product: every element of ``x`` times the whole of ``y``.

    Args:
        x: Array [M, N] (any number of axes).
        y: Array [P, Q]; the one with fewer axes gets more in front.

    Returns:
        An Array [M * P, N * Q] of ``nf.result_type(x, y)``.

    Example:
        >>> import nvfp as nf
        >>> nf.kron(nf.asarray([1, 10], device="cpu"), nf.asarray([1, 2], device="cpu"))
        nf.array([ 1,  2, 10, 20])
    """
    x, y = array("kron", x), array("kron", y)
    ndim = max(x.ndim, y.ndim)
    a, b = ((1,) * (ndim - v.ndim) + v.shape for v in (x, y))
    left = nf.reshape(x, tuple(n for length in a for n in (length, 1)))
    right = nf.reshape(y, tuple(n for length in b for n in (1, length)))
    return nf.reshape(left * right, tuple(m * n for m, n in zip(a, b, strict=True)))


@public
@explained
def cross(x: Any, y: Any, /, axis: int = -1) -> Array:
    """Return the cross product of vectors of 3 elements along an axis.

    Args:
        x: Array [..., 3].
        y: Array [..., 3]; the other axes broadcast.
        axis: the axis of length 3.

    Raises:
        ShapeError: another length.

    Numerics:
        16-bit floats compute in float32 and are rounded once.

    Example:
        >>> import nvfp as nf
        >>> nf.cross(nf.asarray([1.0, 0.0, 0.0], device="cpu"), nf.asarray([0.0, 1.0, 0.0], device="cpu"))
        nf.array([0., 0., 1.])
    """
    (x, y), dtype = promoted("cross", array("cross", x), array("cross", y))
    shape = nf.broadcast_shapes(x.shape, y.shape)
    place = one_axis("cross", axis, len(shape))
    own = [v.ndim - len(shape) + place for v in (x, y)]  # where it lies in each
    if any(i < 0 or v.shape[i] != 3 for v, i in zip((x, y), own, strict=True)):
        raise ShapeError(message("cross", f"3 elements along axis {axis}", f"{x.shape} and {y.shape}", "pad with 0"))
    (a1, a2, a3), (b1, b2, b3) = (nf.unstack(v, axis=i) for v, i in zip(widened(x, y), own, strict=True))
    parts = [a2 * b3 - a3 * b2, a3 * b1 - a1 * b3, a1 * b2 - a2 * b1]
    return nf.astype(nf.stack(parts, axis=place), dtype, copy=False)
