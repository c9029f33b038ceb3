"""Distinct elements and membership: the standard's `unique_*` and `isin`, and NumPy's `unique`."""

from __future__ import annotations

from typing import Any, NamedTuple

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import array, promoted
from nvfp.arrays.functions._library import as_positions, call, constant, rounded, wide
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf, public


class UniqueAll(NamedTuple):
    """What `unique_all` returns."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """What `unique_counts` returns."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """What `unique_inverse` returns."""

    values: Array
    inverse_indices: Array


@public
@explained
def unique_values(x: Any, /) -> Array:
    """Return the distinct elements, in ascending order (waits for the GPU).

    Args:
        x: Array; its shape does not matter. Every NaN is distinct.

    Returns:
        A vector of the dtype of ``x``.

    Raises:
        GradientError: a variable: there is no gradient.

    Example:
        >>> import nvfp as nf
        >>> nf.unique_values(nf.asarray([3, 1, 3], device="cpu"))
        nf.array([1, 3])
    """
    x = constant("unique_values", x)
    return rounded(call("unique_values", wide(x)), x.dtype)


@public
@explained
def unique_counts(x: Any, /) -> UniqueCounts:
    """Return the distinct elements in ascending order, and how often each occurs (waits for the GPU).

    Args:
        x: Array; its shape does not matter. Every NaN is distinct.

    Returns:
        A named tuple (values, counts).

    Raises:
        GradientError: a variable: there is no gradient.

    Example:
        >>> import nvfp as nf
        >>> nf.unique_counts(nf.asarray([3, 1, 3], device="cpu")).counts
        nf.array([1, 2])
    """
    x = constant("unique_counts", x)
    values, counts = call("unique_counts", wide(x))
    return UniqueCounts(rounded(values, x.dtype), as_positions(counts))


@public
@explained
def unique_inverse(x: Any, /) -> UniqueInverse:
    """Return the distinct elements in ascending order, and for each element of ``x`` where it is among them.

    Args:
        x: Array. Every NaN is distinct.

    Returns:
        A named tuple (values, inverse_indices), the latter of the shape of ``x``.

    Raises:
        GradientError: a variable: there is no gradient.

    Example:
        >>> import nvfp as nf
        >>> nf.unique_inverse(nf.asarray([3, 1, 3], device="cpu")).inverse_indices
        nf.array([1, 0, 1])
    """
    x = constant("unique_inverse", x)
    values, inverse = call("unique_inverse", wide(x))
    return UniqueInverse(rounded(values, x.dtype), as_positions(inverse))


@public
@explained
def unique_all(x: Any, /) -> UniqueAll:
    """Return the distinct elements in ascending order, where each occurs first, their places and their counts.

    Args:
        x: Array. Every NaN is distinct.

    Returns:
        A named tuple (values, indices, inverse_indices, counts): ``indices`` count in the flattened array,
        ``inverse_indices`` have the shape of ``x``.

    Raises:
        GradientError: a variable: there is no gradient.

    Example:
        >>> import nvfp as nf
        >>> nf.unique_all(nf.asarray([3, 1, 3], device="cpu")).indices
        nf.array([1, 0])
    """
    x = constant("unique_all", x)
    values, indices, inverse, counts = call("unique_all", wide(x))
    return UniqueAll(rounded(values, x.dtype), as_positions(indices), as_positions(inverse), as_positions(counts))


@public
@explained
def unique(
    x: Any,
    /,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    *,
    equal_nan: bool = True,
) -> Array | tuple[Array, ...]:
    """Return the distinct elements in ascending order: NumPy's form of `nf.unique_all`.

    Args:
        x: Array; its shape does not matter.
        return_index: also where each occurs first in the flattened array.
        return_inverse: also where each element of ``x`` is among them, of the shape of ``x``.
        return_counts: also how often each occurs.
        equal_nan: all NaN are one element.

    Returns:
        The values, or a tuple of them and what was asked for.

    Raises:
        GradientError: a variable: there is no gradient.

    Example:
        >>> import nvfp as nf
        >>> nf.unique(nf.asarray([3, 1, 3], device="cpu"), return_counts=True)
        (nf.array([1, 3]), nf.array([1, 2]))
    """
    x = constant("unique", x)
    wanted = {"return_index": return_index, "return_inverse": return_inverse, "return_counts": return_counts}
    found = call("unique", wide(x), **wanted, equal_nan=equal_nan)
    if not any(wanted.values()):
        return rounded(found, x.dtype)
    values, *rest = found
    places = [as_positions(r) for r in rest]
    if return_inverse:
        at = 1 if return_index else 0
        places[at] = nf.reshape(places[at], x.shape)
    return (rounded(values, x.dtype), *places)


@public
@explained
def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """Return for each element of ``x1`` whether it is among those of ``x2``.

    Args:
        x1: Array or scalar.
        x2: Array or scalar.
        invert: whether it is not.

    Returns:
        A bool Array of the shape of ``x1``. NaN is among nothing.

    Raises:
        DeviceError: arrays on different devices.

    Numerics:
        Compared in ``nf.result_type(x1, x2)``; 16-bit floats as they are.

    Example:
        >>> import nvfp as nf
        >>> nf.isin(nf.asarray([1, 2, 5], device="cpu"), nf.asarray([5, 1], device="cpu"))
        nf.array([ True, False,  True])
    """
    on = next((v.device for v in (x1, x2) if isinstance(v, Array)), None)
    x1, x2 = (v if isinstance(v, Array) else nf.asarray(v, device=on) for v in (x1, x2))
    (a, b), dtype = promoted("isin", x1, x2)
    a, b = (wide(nf.astype(array("isin", v).detach(), dtype, copy=False)) for v in (a, b))
    return wrap(call("isin", a, b, invert=invert))
