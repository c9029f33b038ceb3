"""Norms, rank and condition of `nf.linalg`."""

from __future__ import annotations

import math
from typing import Any, Literal

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import array, axis_tuple, dense, widened
from nvfp.arrays.functions._linalg import back, matrix
from nvfp.arrays.functions.linalg_factors import svdvals
from nvfp.arrays.functions.linalg_solving import inv
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf
from nvfp.dtypes.dense import float32
from nvfp.dtypes.finfo import finfo
from nvfp.errors import ArgumentError, LinAlgError, ShapeError, message

Order = int | float | Literal["fro", "nuc"] | None
_LAST = (-2, -1)


def _length_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    """``g * x / length``, and 0 where there is no direction."""
    x, axes = saved
    length = _length(x, axes)
    zero = nf.equal(length, 0)
    slope = nf.where(zero, 0.0, nf.reshape(g, length.shape) / nf.where(zero, 1.0, length))
    return (x * slope,)


def _length(x: Array, axes: tuple[int, ...]) -> Array:
    """The Euclidean length over axes, which stay with length 1."""
    values = nf.abs(x.detach()) if x.dtype.kind == "c" else x.detach()
    y = nf.sqrt(nf.sum(nf.square(values), axis=axes, keepdims=True))
    y._node = dense("linalg.vector_norm", (x,), _length_vjp, (x, axes))
    return y


def _floating(op: str, x: Any) -> tuple[Array, Any]:
    x = array(op, x)
    if x.dtype.kind in "iub":
        x = nf.astype(x, float32)
    (wide,) = widened(x)
    return wide, x.dtype


def _vector(op: str, x: Array, axes: tuple[int, ...], ord: Any, keepdims: bool) -> Array:
    """The norm of order ``ord`` over axes of a wide array."""
    if isinstance(ord, str) or ord is None:
        raise ArgumentError(message(op, "a number as the order of a vector's norm", repr(ord), "pass e.g. ord=2"))
    if ord == 2:
        y = _length(x, axes)
        return y if keepdims else nf.squeeze(y, axes)
    size = nf.abs(x)
    if ord in (math.inf, -math.inf):
        if ord > 0 and 0 in (x.shape[a] for a in axes):
            return nf.sum(size, axis=axes, keepdims=keepdims)
        return (nf.max if ord > 0 else nf.min)(size, axis=axes, keepdims=keepdims)
    if ord == 0:
        return nf.astype(nf.sum(nf.not_equal(x, 0), axis=axes, keepdims=keepdims), size.dtype)
    if ord == 1:
        return nf.sum(size, axis=axes, keepdims=keepdims)
    return nf.pow(nf.sum(nf.pow(size, ord), axis=axes, keepdims=keepdims), 1.0 / ord)


@explained
def vector_norm(
    x: Any, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, ord: int | float = 2
) -> Array:
    """Return the norm ``sum(|x| ** ord) ** (1 / ord)`` over axes.

    Args:
        x: Array.
        axis: one or several axes; None: all.
        keepdims: leave the reduced axes with length 1.
        ord: any number; inf and -inf: the largest and smallest ``|x|``; 0: how many elements are not 0 (no gradient).

    Returns:
        An Array of the (real) dtype of ``x``. The gradient of order 2 is 0 at 0.

    Raises:
        ShapeError: an axis out of range, or no element for ``ord=-inf``.
        ArgumentError: an order that is no number.

    Numerics:
        16-bit floats compute in float32 and are rounded once.

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.vector_norm(nf.asarray([3.0, 4.0], device="cpu"))
        nf.array(5.)
    """
    wide, dtype = _floating("linalg.vector_norm", x)
    axes = tuple(range(wide.ndim)) if axis is None else axis_tuple("linalg.vector_norm", axis, wide.ndim)
    return back(_vector("linalg.vector_norm", wide, axes, ord, keepdims), dtype)


def _matrix(op: str, x: Array, ord: Any, keepdims: bool) -> Array:
    """The norm of the last two axes of a wide array."""
    if ord in ("fro", None):
        return _vector(op, x, _ends(x), 2, keepdims)
    if ord in (1, -1, math.inf, -math.inf):
        sums = nf.sum(nf.abs(x), axis=-2 if abs(ord) == 1 else -1)
        y = (nf.max if ord > 0 else nf.min)(sums, axis=-1)
    elif ord in (2, -2, "nuc"):
        values = svdvals(x)
        y = nf.sum(values, axis=-1) if ord == "nuc" else (nf.max if ord > 0 else nf.min)(values, axis=-1)
    else:
        expected = "order 'fro', 'nuc', 1, -1, 2, -2, inf or -inf of a matrix"
        raise ArgumentError(message(op, expected, repr(ord), "pick one, or take nf.linalg.vector_norm"))
    return nf.expand_dims(y, _LAST) if keepdims else y


def _ends(x: Array) -> tuple[int, int]:
    return x.ndim - 2, x.ndim - 1


@explained
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Order = "fro") -> Array:
    """Return a norm of matrices.

    Args:
        x: Array [..., M, N].
        keepdims: leave the last two axes with length 1.
        ord: ``"fro"`` the root of the sum of squares; ``"nuc"`` the sum of singular values, 2 and -2 the largest and
            smallest one; 1 and -1 the largest and smallest sum of ``|x|`` of a column, inf and -inf of a row.

    Returns:
        [...] of the (real) dtype of ``x``.

    Raises:
        ShapeError: no matrices, or empty ones for a largest or smallest value.
        ArgumentError: another order.

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.matrix_norm(nf.asarray([[3.0, 0.0], [0.0, 4.0]], device="cpu"), ord="nuc")
        nf.array(7.)
    """
    wide, dtype = matrix("linalg.matrix_norm", x)
    return back(_matrix("linalg.matrix_norm", wide, ord, keepdims), dtype)


@explained
def norm(x: Any, /, ord: Order = None, axis: int | tuple[int, int] | None = None, keepdims: bool = False) -> Array:
    """Return NumPy's `norm`: of a vector over one axis, of a matrix over two, or of all elements.

    Args:
        x: Array.
        ord: as in `vector_norm` over one axis, as in `matrix_norm` over two; None: the Euclidean one.
        axis: one axis or two; None: all of them with ``ord=None``, else those of a vector or matrix.
        keepdims: leave the reduced axes with length 1.

    Raises:
        ShapeError: axes out of range, or ``ord`` without ``axis`` for more than two axes.
        ArgumentError: an order that is none.

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.norm(nf.asarray([[3.0, 0.0], [0.0, 4.0]], device="cpu"))
        nf.array(5.)
    """
    wide, dtype = _floating("linalg.norm", x)
    every = tuple(range(wide.ndim))
    axes = every if axis is None else axis_tuple("linalg.norm", axis, wide.ndim)
    if ord is None and axis is None:
        return back(_vector("linalg.norm", wide, axes, 2, keepdims), dtype)
    if len(axes) not in (1, 2):
        raise ShapeError(message("linalg.norm", "one axis or two", f"axes {axes}", "pass axis="))
    if len(axes) == 1:
        return back(_vector("linalg.norm", wide, axes, 2 if ord is None else ord, keepdims), dtype)
    ends = (wide.ndim - 2, wide.ndim - 1)
    y = _matrix("linalg.norm", nf.moveaxis(wide, axes, ends), ord, keepdims)
    return back(nf.moveaxis(y, ends, axes) if keepdims else y, dtype)


@explained
def matrix_rank(x: Any, /, *, rtol: Any = None) -> Array:
    """Return the rank of matrices (int64): how many singular values are not negligible.

    Args:
        x: Array [..., M, N].
        rtol: those up to ``rtol`` times the largest are; max(M, N) times the dtype's eps without it.

    Returns:
        [...] of int64.

    Raises:
        ShapeError: no matrices.

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.matrix_rank(nf.ones((3, 2), device="cpu"))
        nf.array(1)
    """
    wide, _ = matrix("linalg.matrix_rank", x)
    if 0 in wide.shape[-2:]:
        return nf.zeros(wide.shape[:-2], dtype=nf.sum(nf.zeros((1,), dtype="int64")).dtype, device=wide.device)
    values = svdvals(wide.detach())
    limit = max(wide.shape[-2:]) * float(finfo(values.dtype).eps) if rtol is None else rtol
    if isinstance(limit, Array):
        limit = nf.expand_dims(limit, -1)
    return nf.sum(nf.greater(values, nf.max(values, axis=-1, keepdims=True) * limit), axis=-1)


@explained
def cond(x: Any, /, p: Order = None) -> Array:
    """Return the condition number of matrices: ``norm(x) * norm(inv(x))``.

    Args:
        x: Array [..., M, N]; [..., N, N] for orders besides 2 and -2.
        p: order of the norm as in `matrix_norm`; None: 2.

    Returns:
        [...] of the (real) dtype of ``x``; inf for singular matrices.

    Raises:
        ShapeError: no matrices, or empty ones.
        ArgumentError: another order.

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.cond(nf.asarray([[1.0, 0.0], [0.0, 4.0]], device="cpu"))
        nf.array(4.)
    """
    wide, dtype = matrix("linalg.cond", x, square=p not in (None, 2, -2))
    if p in (None, 2, -2):
        values = svdvals(wide)
        large, small = nf.max(values, axis=-1), nf.min(values, axis=-1)
        return back(small / large if p == -2 else large / small, dtype)
    try:
        other = inv(wide)
    except LinAlgError:
        if wide.ndim > 2:
            raise
        return nf.full((), math.inf, dtype=dtype, device=wide.device)
    return back(_matrix("linalg.cond", wide, p, False) * _matrix("linalg.cond", other, p, False), dtype)
