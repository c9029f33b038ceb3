"""NumPy's products besides `matmul`: dot, inner, vdot. They are made of `tensordot` and `multiply`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import any_array
from nvfp.arrays.functions.matmul import unless_broken
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf, public
from nvfp.dtypes.promotion import result_type
from nvfp.errors import ShapeError, message


@public
@explained
def dot(x1: Any, x2: Any, /) -> Array:
    """Return the sum of products over the last axis of ``x1`` and the last but one of ``x2``.

    Args:
        x1: [..., K].
        x2: [..., K, N] or [K]. Batch axes do not meet as in `nf.matmul`: the result has those of both.

    Returns:
        [..., ..., N]: of two matrices their product, of two vectors their scalar product, with a scalar ``x1 * x2``.

    Raises:
        ShapeError: lengths that differ.

    Numerics:
        As `nf.matmul`: sums in float32, one rounding.

    Example:
        >>> import nvfp as nf
        >>> nf.dot(nf.asarray([1.0, 2.0], device="cpu"), nf.asarray([3.0, 4.0], device="cpu"))
        nf.array(11.)
    """
    a, b = any_array("dot", x1), any_array("dot", x2)
    if a.ndim == 0 or b.ndim == 0:
        return nf.multiply(a, b)
    if b.ndim <= 2:
        return nf.matmul(a, b)
    return _over("dot", a, b, b.ndim - 2)


@public
@explained
def inner(x1: Any, x2: Any, /) -> Array:
    """Return the sum of products over the last axes.

    Args:
        x1: [..., K].
        x2: [..., K].

    Returns:
        [..., ...]: the axes of both but for the last ones; with a scalar ``x1 * x2``.

    Raises:
        ShapeError: lengths that differ.

    Numerics:
        As `nf.matmul`: sums in float32, one rounding.

    Example:
        >>> import nvfp as nf
        >>> nf.inner(nf.ones((2, 3), device="cpu"), nf.ones((4, 3), device="cpu")).shape
        (2, 4)
    """
    a, b = any_array("inner", x1), any_array("inner", x2)
    return nf.multiply(a, b) if a.ndim == 0 or b.ndim == 0 else _over("inner", a, b, b.ndim - 1)


@public
@explained
def vdot(x1: Any, x2: Any, /) -> Array:
    """Return the sum of products of all elements (of a complex ``x1``: their conjugates).

    Args:
        x1: Array.
        x2: Array of as many elements, in any shape.

    Returns:
        A 0-d Array.

    Raises:
        ShapeError: different numbers of elements.

    Numerics:
        As `nf.matmul`: sums in float32, one rounding.

    Example:
        >>> import nvfp as nf
        >>> nf.vdot(nf.ones((2, 3), device="cpu"), nf.ones((6,), device="cpu"))
        nf.array(6.)
    """
    a, b = any_array("vdot", x1), any_array("vdot", x2)
    dtype = result_type(a.dtype, b.dtype)
    a, b = (unless_broken(x, lambda x: nf.reshape(x, (-1,))) for x in (a, b))
    _check_lengths("vdot", a, b, 0)
    conjugate = isinstance(a.dtype, np.dtype) and a.dtype.kind == "c"
    return nf.matmul(nf.conj(a) if conjugate else a, b, dtype=dtype)


def _check_lengths(op: str, a: Array, b: Array, axis: int) -> None:
    if a.shape[-1] != b.shape[axis]:
        do = "choose operands whose lengths meet"
        raise ShapeError(message(op, "equal lengths of the axes that meet", f"{a.shape} and {b.shape}", do))


def _over(op: str, a: Array, b: Array, axis: int) -> Array:
    """Products summed over the last axis of ``a`` and one of ``b``."""
    _check_lengths(op, a, b, axis)
    return nf.tensordot(a, b, axes=((a.ndim - 1,), (axis,)))
