"""Running sums and products along an axis."""

from __future__ import annotations

from typing import Any, Literal

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import HALVES, array, dense, fit, like, one_axis, widened
from nvfp.arrays.functions._library import call
from nvfp.arrays.functions.reductions import accumulator
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf, public
from nvfp.dtypes.dense import float32, float64
from nvfp.errors import ShapeError, message
from nvfp.kernels.cast import cast


def _axis(op: str, x: Array, axis: int | None) -> int:
    if axis is None and x.ndim > 1:
        raise ShapeError(message(op, "an axis, as there are several", f"shape {x.shape}", "pass axis="))
    return one_axis(op, 0 if axis is None else axis, x.ndim)


def _running(op: Literal["cumulative_sum", "cumulative_prod"], x: Array, place: int, dtype: Any, initial: bool) -> Any:
    """The raw running values, computed in float32 or wider and rounded once each."""
    target = accumulator(x, dtype)
    compute = float32 if target in HALVES and x.dtype is not float64 else float64 if target in HALVES else target
    found = call(op, cast(x.raw, compute) if x.dtype is not compute and compute.kind != "c" else x.raw,
                 axis=place, dtype=compute, include_initial=initial)  # fmt: skip
    return found if compute is target else cast(found, target)


def _reversed_sum(g: Array, axis: int) -> Array:
    """Sums from each place to the end."""
    return nf.flip(nf.cumulative_sum(nf.flip(g, axis=axis), axis=axis), axis=axis)


def _past_initial(g: Array, axis: int, initial: bool) -> Array:
    return g[(slice(None),) * axis + (slice(1, None),)] if initial else g


def _sum_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    axis, initial, target = saved
    (g,) = widened(g)
    return (fit(_reversed_sum(_past_initial(g, axis, initial), axis), target),)


def _prod_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    """Before the first zero ``sum(g * out) / x``; at it the products without it; behind it nothing."""
    x, axis, initial, target = saved
    g, x = widened(_past_initial(g, axis, initial), x)
    zeros = nf.cumulative_sum(nf.equal(x, 0), axis=axis)
    first = nf.logical_and(nf.equal(x, 0), nf.equal(zeros, 1))
    others = nf.where(first, 1.0, x)
    before = _reversed_sum(g * nf.cumulative_prod(x, axis=axis), axis) / nf.where(nf.equal(x, 0), 1.0, x)
    at = _reversed_sum(g * nf.cumulative_prod(others, axis=axis), axis)
    return (fit(nf.where(nf.equal(zeros, 0), before, nf.where(first, at, 0.0)), target),)


@public
@explained
def cumulative_sum(x: Any, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False) -> Array:
    """Return the running sums along an axis: ``out[i] = x[0] + ... + x[i]``.

    Args:
        x: Array.
        axis: which axis; may be left out for a vector.
        dtype: of the result; by default that of ``x``, int64 (uint64) for integers and bools.
        include_initial: start with 0, one element more.

    Raises:
        ShapeError: a scalar, or several axes and none named.

    Numerics:
        Floats of at most 32 bits add up in float32, from front to end on the CPU; 16-bit results are rounded once each.

    Example:
        >>> import nvfp as nf
        >>> nf.cumulative_sum(nf.asarray([1.0, 2.0, 3.0], device="cpu"))
        nf.array([1., 3., 6.])
    """
    x = array("cumulative_sum", x)
    place = _axis("cumulative_sum", x, axis)
    raw = _running("cumulative_sum", x, place, dtype, include_initial)
    return wrap(raw, node=dense("cumulative_sum", (x,), _sum_vjp, (place, include_initial, like(x))))


@public
@explained
def cumulative_prod(x: Any, /, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False) -> Array:
    """Return the running products along an axis: ``out[i] = x[0] * ... * x[i]``.

    Args:
        x: Array.
        axis: which axis; may be left out for a vector.
        dtype: of the result; by default that of ``x``, int64 (uint64) for integers and bools.
        include_initial: start with 1, one element more.

    Raises:
        ShapeError: a scalar, or several axes and none named.

    Numerics:
        As `cumulative_sum`. The gradient is exact at zeros too; it cannot be differentiated again.

    Example:
        >>> import nvfp as nf
        >>> nf.cumulative_prod(nf.asarray([1.0, 2.0, 3.0], device="cpu"))
        nf.array([1., 2., 6.])
    """
    x = array("cumulative_prod", x)
    place = _axis("cumulative_prod", x, axis)
    raw = _running("cumulative_prod", x, place, dtype, include_initial)
    return wrap(raw, node=dense("cumulative_prod", (x,), _prod_vjp, (x, place, include_initial, like(x)), twice=False))


@public
@explained
def cumsum(x: Any, /, axis: int | None = None, *, dtype: Any = None) -> Array:
    """Return `nf.cumulative_sum`: NumPy's name for it, of the flattened array without an axis.

    Args:
        x: Array.
        axis: which axis; None: the flattened array.
        dtype: of the result.

    Example:
        >>> import nvfp as nf
        >>> nf.cumsum(nf.ones((2, 2), device="cpu"))
        nf.array([1., 2., 3., 4.])
    """
    x = nf.reshape(array("cumsum", x), (-1,)) if axis is None else x
    return cumulative_sum(x, axis=0 if axis is None else axis, dtype=dtype)


@public
@explained
def cumprod(x: Any, /, axis: int | None = None, *, dtype: Any = None) -> Array:
    """Return `nf.cumulative_prod`: NumPy's name for it, of the flattened array without an axis.

    Args:
        x: Array.
        axis: which axis; None: the flattened array.
        dtype: of the result.

    Example:
        >>> import nvfp as nf
        >>> nf.cumprod(nf.full((2, 2), 2.0, device="cpu"))
        nf.array([ 2.,  4.,  8., 16.])
    """
    x = nf.reshape(array("cumprod", x), (-1,)) if axis is None else x
    return cumulative_prod(x, axis=0 if axis is None else axis, dtype=dtype)
