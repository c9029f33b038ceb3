"""NumPy's everyday names for joining arrays and for their axes; all made of `concat` and `reshape`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import any_array
from nvfp.arrays.functions.joining import several
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf, public


@public
@explained
def concatenate(arrays: Sequence[Any], /, axis: int | None = 0, *, dtype: Any = None) -> Array:
    """Return `nf.concat` of the arrays: NumPy's name for it.

    Args:
        arrays: Arrays of equal shapes but for ``axis``; dtypes promote.
        axis: where they join; None flattens them first.
        dtype: of the result.

    Example:
        >>> import nvfp as nf
        >>> nf.concatenate([nf.zeros((1, 2), device="cpu"), nf.ones((1, 2), device="cpu")], axis=1)
        nf.array([[0., 0., 1., 1.]])
    """
    joined = nf.concat(arrays, axis=axis)
    return joined if dtype is None else nf.astype(joined, dtype, copy=False)


@public
@explained
def ravel(x: Any, /) -> Array:
    """Return all elements along one axis, in row-major order: a view where possible.

    Args:
        x: Array.

    Example:
        >>> import nvfp as nf
        >>> nf.ravel(nf.zeros((2, 3), device="cpu")).shape
        (6,)
    """
    return nf.reshape(x, (-1,))


def _at_least(given: Any, ndim: int) -> Array:
    x = any_array(f"atleast_{ndim}d", given)
    if x.ndim >= ndim:
        return x
    if ndim == 3 and x.ndim:  # [N] -> [1, N, 1], [M, N] -> [M, N, 1]
        return nf.expand_dims(x, -1 if x.ndim == 2 else (0, 2))
    return nf.expand_dims(x, tuple(range(ndim - x.ndim)))


def _each(arrays: tuple[Any, ...], ndim: int) -> Array | tuple[Array, ...]:
    return _at_least(arrays[0], ndim) if len(arrays) == 1 else tuple(_at_least(x, ndim) for x in arrays)


@public
@explained
def atleast_1d(*arrays: Any) -> Array | tuple[Array, ...]:
    """Return the arrays with at least one axis; several come back as a tuple.

    Args:
        arrays: Arrays or scalars.

    Example:
        >>> import nvfp as nf
        >>> nf.atleast_1d(nf.asarray(3.0, device="cpu"))
        nf.array([3.])
    """
    return _each(arrays, 1)


@public
@explained
def atleast_2d(*arrays: Any) -> Array | tuple[Array, ...]:
    """Return the arrays with at least two axes, new ones in front: [N] becomes [1, N].

    Args:
        arrays: Arrays or scalars.

    Example:
        >>> import nvfp as nf
        >>> nf.atleast_2d(nf.ones((3,), device="cpu")).shape
        (1, 3)
    """
    return _each(arrays, 2)


@public
@explained
def atleast_3d(*arrays: Any) -> Array | tuple[Array, ...]:
    """Return the arrays with at least three axes: [N] becomes [1, N, 1], [M, N] becomes [M, N, 1].

    Args:
        arrays: Arrays or scalars.

    Example:
        >>> import nvfp as nf
        >>> nf.atleast_3d(nf.ones((2, 3), device="cpu")).shape
        (2, 3, 1)
    """
    return _each(arrays, 3)


@public
@explained
def vstack(arrays: Sequence[Any], /, *, dtype: Any = None) -> Array:
    """Return arrays one below the other: joined along the first axis, vectors as rows.

    Args:
        arrays: Arrays [M_i, ...] of equal further axes, or vectors [N].
        dtype: of the result; dtypes promote without it.

    Example:
        >>> import nvfp as nf
        >>> nf.vstack([nf.zeros((2,), device="cpu"), nf.ones((2,), device="cpu")])
        nf.array([[0., 0.],
                  [1., 1.]])
    """
    return concatenate([_at_least(x, 2) for x in several("vstack", arrays)], axis=0, dtype=dtype)


@public
@explained
def hstack(arrays: Sequence[Any], /, *, dtype: Any = None) -> Array:
    """Return arrays side by side: joined along the second axis, vectors along their only one.

    Args:
        arrays: Arrays [M, N_i, ...] of equal other axes, or vectors [N_i].
        dtype: of the result; dtypes promote without it.

    Example:
        >>> import nvfp as nf
        >>> nf.hstack([nf.zeros((2,), device="cpu"), nf.ones((1,), device="cpu")])
        nf.array([0., 0., 1.])
    """
    found = [_at_least(x, 1) for x in several("hstack", arrays)]
    return concatenate(found, axis=0 if found[0].ndim == 1 else 1, dtype=dtype)


@public
@explained
def dstack(arrays: Sequence[Any], /, *, dtype: Any = None) -> Array:
    """Return arrays joined along the third axis (see `nf.atleast_3d` for those with fewer).

    Args:
        arrays: Arrays of equal shapes but for the third axis.
        dtype: of the result; dtypes promote without it.

    Example:
        >>> import nvfp as nf
        >>> nf.dstack([nf.zeros((2, 3), device="cpu"), nf.ones((2, 3), device="cpu")]).shape
        (2, 3, 2)
    """
    return concatenate([_at_least(x, 3) for x in several("dstack", arrays)], axis=2, dtype=dtype)


@public
@explained
def column_stack(arrays: Sequence[Any], /) -> Array:
    """Return vectors as the columns of a matrix; matrices among them give their own columns.

    Args:
        arrays: Arrays [M] or [M, N_i].

    Example:
        >>> import nvfp as nf
        >>> nf.column_stack([nf.zeros((2,), device="cpu"), nf.ones((2,), device="cpu")])
        nf.array([[0., 1.],
                  [0., 1.]])
    """
    found = several("column_stack", arrays)
    return nf.concat([x if x.ndim > 1 else nf.reshape(x, (-1, 1)) for x in found], axis=1)
