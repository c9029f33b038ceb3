"""Products, powers and diagonals of `nf.linalg`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import any_array, array, integer
from nvfp.arrays.functions.linalg_solving import inv
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf
from nvfp.errors import ArgumentError, ShapeError, message


def _matrices(op: str, x: Any, square: bool = False) -> Array:
    found = array(op, x)
    if found.ndim < 2 or (square and found.shape[-1] != found.shape[-2]):
        expected = "square matrices [..., N, N]" if square else "matrices [..., M, N]"
        raise ShapeError(message(op, expected, f"shape {found.shape}", "reshape it"))
    return found


@explained
def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """Return the cross product of vectors with three components.

    Args:
        x1: Array with length 3 along ``axis``.
        x2: Array likewise; the other axes broadcast.
        axis: where the components are.

    Returns:
        An Array of the broadcast shape.

    Raises:
        ShapeError: another length.

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.cross(nf.asarray([1.0, 0.0, 0.0], device="cpu"), nf.asarray([0.0, 1.0, 0.0], device="cpu"))
        nf.array([0., 0., 1.])
    """
    a, b = array("linalg.cross", x1), array("linalg.cross", x2)
    for x in (a, b):
        if not -x.ndim <= axis < x.ndim or x.shape[axis] != 3:
            do = "move the components there"
            raise ShapeError(message("linalg.cross", f"length 3 along axis {axis}", f"shape {x.shape}", do))
    return nf.cross(a, b, axis=axis)


@explained
def diagonal(x: Any, /, *, offset: int = 0) -> Array:
    """Return the diagonals of matrices.

    Args:
        x: Array [..., M, N].
        offset: above (positive) or below (negative) the main diagonal.

    Returns:
        [..., K] with the elements that there are.

    Raises:
        ShapeError: no matrices.

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.diagonal(nf.asarray([[1, 2], [3, 4]], device="cpu"), offset=1)
        nf.array([2])
    """
    x = _matrices("linalg.diagonal", x)
    return nf.diagonal(x, offset, -2, -1)


@explained
def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """Return the sum along the diagonals of matrices.

    Args:
        x: Array [..., M, N].
        offset: above (positive) or below (negative) the main diagonal.
        dtype: of the result; as in `nf.sum` without it.

    Returns:
        [...].

    Raises:
        ShapeError: no matrices.

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.trace(nf.asarray([[1.0, 2.0], [3.0, 4.0]], device="cpu"))
        nf.array(5.)
    """
    return nf.sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


@explained
def matrix_power(x: Any, n: int, /) -> Array:
    """Return the n-th power of matrices, by squaring; negative powers are those of the inverse.

    Args:
        x: Array [..., N, N].
        n: an integer.

    Returns:
        [..., N, N] in the dtype of ``x`` (float32 for negative powers of integers).

    Raises:
        ShapeError: no square matrices.
        LinAlgError: a negative power of a singular matrix.

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.matrix_power(nf.asarray([[1, 1], [0, 1]], device="cpu"), 5).tolist()
        [[1, 5], [0, 1]]
    """
    x, n = _matrices("linalg.matrix_power", x, square=True), integer("linalg.matrix_power", "n", n)
    if n < 0:
        x, n = inv(x), -n
    found: Array | None = None
    while n:
        if n & 1:
            found = x if found is None else nf.matmul(found, x)
        n >>= 1
        x = nf.matmul(x, x) if n else x
    if found is None:
        return nf.broadcast_to(nf.eye(x.shape[-1], dtype=x.dtype, device=x.device), x.shape)
    return found


@explained
def multi_dot(arrays: Sequence[Any], /) -> Array:
    """Return the product of several matrices, multiplied in the order that costs least.

    Args:
        arrays: two or more Arrays [M, N]; the first and the last may be vectors.

    Returns:
        The product; without the axis where a vector stood.

    Raises:
        ArgumentError: fewer than two.
        ShapeError: lengths that do not meet.

    Example:
        >>> import nvfp as nf
        >>> x = nf.ones((2, 3), device="cpu")
        >>> nf.linalg.multi_dot([x, nf.ones((3, 4), device="cpu"), nf.ones(4, device="cpu")])
        nf.array([12., 12.])
    """
    found = [any_array("linalg.multi_dot", x) for x in arrays]
    if len(found) < 2:
        raise ArgumentError(message("linalg.multi_dot", "two or more arrays", len(found), "pass a list of them"))
    row, column = found[0].ndim == 1, found[-1].ndim == 1
    found[0] = nf.expand_dims(found[0], 0) if row else found[0]
    found[-1] = nf.expand_dims(found[-1], 1) if column else found[-1]
    shapes = [x.shape for x in found]
    if any(len(s) != 2 for s in shapes) or any(a[1] != b[0] for a, b in pairwise(shapes)):
        raise ShapeError(message("linalg.multi_dot", "matrices whose lengths meet", shapes, "transpose some"))
    y = _multiplied(found, _splits([s[0] for s in shapes] + [shapes[-1][1]]), 0, len(found) - 1)
    gone = (*((0,) if row else ()), *((-1,) if column else ()))
    return nf.squeeze(y, gone) if gone else y


def _splits(lengths: list[int]) -> dict[tuple[int, int], int]:
    """Where each run of factors is best cut in two: dynamic programming over the lengths of runs."""
    count = len(lengths) - 1
    cost = {(i, i): 0 for i in range(count)}
    cut = {}
    for run in range(1, count):
        for i in range(count - run):
            j = i + run
            price = {k: cost[i, k] + cost[k + 1, j] + lengths[i] * lengths[k + 1] * lengths[j + 1] for k in range(i, j)}
            cut[i, j] = min(price, key=price.__getitem__)
            cost[i, j] = price[cut[i, j]]
    return cut


def _multiplied(found: list[Array], cut: dict[tuple[int, int], int], i: int, j: int) -> Array:
    if i == j:
        return found[i]
    k = cut[i, j]
    return nf.matmul(_multiplied(found, cut, i, k), _multiplied(found, cut, k + 1, j))
