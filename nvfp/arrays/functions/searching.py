"""Where elements are: `nonzero`, `flatnonzero`, `argwhere`. Their lengths depend on the data: they wait for the GPU."""

from __future__ import annotations

from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import array
from nvfp.arrays.functions._library import as_positions, call, wide
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf, public
from nvfp.errors import ShapeError, message


@public
@explained
def nonzero(x: Any, /) -> tuple[Array, ...]:
    """Return the indices of the elements that are not 0, one int64 vector per axis, in row-major order.

    Args:
        x: Array of at least one axis. NaN is not 0.

    Raises:
        ShapeError: a scalar.

    Example:
        >>> import nvfp as nf
        >>> nf.nonzero(nf.asarray([[0, 5], [7, 0]], device="cpu"))
        (nf.array([0, 1]), nf.array([1, 0]))
    """
    x = array("nonzero", x)
    if x.ndim == 0:
        raise ShapeError(message("nonzero", "at least one axis", "shape ()", "use bool(x), or nf.atleast_1d(x)"))
    return tuple(as_positions(found) for found in call("nonzero", wide(x)))


@public
@explained
def flatnonzero(x: Any, /) -> Array:
    """Return the indices in the flattened array of the elements that are not 0.

    Args:
        x: Array.

    Example:
        >>> import nvfp as nf
        >>> nf.flatnonzero(nf.asarray([[0, 5], [7, 0]], device="cpu"))
        nf.array([1, 2])
    """
    return nonzero(nf.reshape(array("flatnonzero", x), (-1,)))[0]


@public
@explained
def argwhere(x: Any, /) -> Array:
    """Return the indices of the elements that are not 0 as rows, [count, axes].

    Args:
        x: Array of at least one axis.

    Raises:
        ShapeError: a scalar.

    Example:
        >>> import nvfp as nf
        >>> nf.argwhere(nf.asarray([[0, 5], [7, 0]], device="cpu")).tolist()
        [[0, 1], [1, 0]]
    """
    return nf.stack(list(nonzero(x)), axis=1)
