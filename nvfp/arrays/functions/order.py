"""Order statistics and histograms. nvfp has no sorting kernel yet: NumPy computes them on the host, in float64.

So they wait for the GPU, and have no gradients: a variable is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.convert import place
from nvfp.arrays.functions._common import array, axis_tuple
from nvfp.arrays.functions.conversion import host
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import public
from nvfp.autograd.tape import needs_grad
from nvfp.dtypes.dense import float32, float64, int64
from nvfp.errors import ArgumentError, DTypeError, GradientError, ShapeError, message

Axis = int | tuple[int, ...] | None


def _values(op: str, x: Any) -> tuple[np.ndarray, Array]:
    """The values on the host, in float64 unless they are integers, and the Array they come from."""
    x = array(op, x)
    if needs_grad(x):
        do = "use x.detach(), or work inside nf.no_grad()"
        raise GradientError(message(op, "an array without history (it has no gradient)", "requires_grad=True", do))
    if x.dtype.kind == "c":
        raise DTypeError(message(op, "a real array", x.dtype, "take nf.real(x) or nf.abs(x) first"))
    values = host(x)
    return (values if x.dtype.kind in "iu" else values.astype(np.float64)), x


def _quantile(op: str, x: Any, q: Any, axis: Axis, method: Any, keepdims: bool, top: float) -> Array:
    values, source = _values(op, x)
    axes = tuple(range(source.ndim)) if axis is None else axis_tuple(op, axis, source.ndim)
    if 0 in (source.shape[a] for a in axes):
        raise ShapeError(message(op, "at least one element", f"shape {source.shape}, axis {axis}", "drop empty axes"))
    shares = np.asarray(host(q) if isinstance(q, Array) else q)
    if shares.dtype.kind not in "iuf" or shares.ndim > 1 or not ((shares >= 0) & (shares <= top)).all():
        raise ArgumentError(message(op, f"q within 0 and {top:g}, one or several", repr(q), "correct q"))
    try:
        with np.errstate(all="ignore"):
            values = values.astype(np.float64, copy=False)  # in a narrow integer dtype differences would wrap around
            if op == "median":  # NumPy's quantiles beside an infinity are NaN
                middle = np.median(values, axis=axes, keepdims=keepdims)
                return place(np.asarray(middle), source.device, float32 if source.dtype.kind in "iub" else source.dtype)
            found = np.quantile(values, shares.astype(np.float64) / top, axis=axes, method=method, keepdims=keepdims)
    except ValueError as error:
        raise ArgumentError(message(op, "a method of numpy.quantile", repr(method), f"pick one ({error})")) from None
    target = float32 if source.dtype.kind in "iub" else source.dtype
    return place(np.asarray(found, np.float64), source.device, target)


@public
@explained
def median(x: Any, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """Return the median over axes: the middle value, or the mean of the two middle ones (NaN if there is one).

    Args:
        x: Array.
        axis: one or several axes; None: all.
        keepdims: leave the reduced axes with length 1.

    Returns:
        An Array of the dtype of ``x``, float32 for integers. Computed by NumPy on the host: waits for the GPU.

    Raises:
        ShapeError: no element.
        GradientError: a variable: the median has no gradient here.

    Numerics:
        float64, one rounding.

    Example:
        >>> import nvfp as nf
        >>> nf.median(nf.asarray([3.0, 1.0, 2.0, 10.0], device="cpu"))
        nf.array(2.5)
    """
    return _quantile("median", x, 0.5, axis, "linear", keepdims, 1.0)


@public
@explained
def quantile(x: Any, q: Any, /, axis: Axis = None, *, method: str = "linear", keepdims: bool = False) -> Array:
    """Return the values below which shares ``q`` of the elements lie.

    Args:
        x: Array.
        q: within 0 and 1, a number or several.
        axis: one or several axes of ``x``; None: all.
        method: how to choose between two elements, a name of ``numpy.quantile``.
        keepdims: leave the reduced axes with length 1.

    Returns:
        An Array of the dtype of ``x``, float32 for integers; several ``q`` are its first axis. Computed by NumPy on
        the host: waits for the GPU.

    Raises:
        ArgumentError: ``q`` out of range, or an unknown method.
        ShapeError: no element.
        GradientError: a variable: quantiles have no gradient here.

    Numerics:
        float64, one rounding.

    Example:
        >>> import nvfp as nf
        >>> nf.quantile(nf.arange(5, device="cpu"), [0.25, 0.5])
        nf.array([1., 2.])
    """
    return _quantile("quantile", x, q, axis, method, keepdims, 1.0)


@public
@explained
def percentile(x: Any, q: Any, /, axis: Axis = None, *, method: str = "linear", keepdims: bool = False) -> Array:
    """Return `nf.quantile` with ``q`` in percent.

    Args:
        x: Array.
        q: within 0 and 100, a number or several.
        axis: one or several axes of ``x``; None: all.
        method: how to choose between two elements, a name of ``numpy.quantile``.
        keepdims: leave the reduced axes with length 1.

    Raises:
        ArgumentError: ``q`` out of range, or an unknown method.
        GradientError: a variable: percentiles have no gradient here.

    Example:
        >>> import nvfp as nf
        >>> nf.percentile(nf.arange(5, device="cpu"), 75)
        nf.array(3.)
    """
    return _quantile("percentile", x, q, axis, method, keepdims, 100.0)


@public
@explained
def histogram(
    x: Any,
    /,
    bins: int | str | Sequence[float] | Array = 10,
    range: tuple[float, float] | None = None,
    *,
    weights: Any = None,
    density: bool = False,
) -> tuple[Array, Array]:
    """Return how many elements fall into each bin, and the edges of the bins.

    Args:
        x: Array; its shape does not matter.
        bins: number of bins of equal width, their edges, or a rule of ``numpy.histogram_bin_edges``.
        range: first and last edge; by default the smallest and largest element. Elements outside are not counted.
        weights: Array of the shape of ``x``: what each element adds, instead of 1.
        density: divide by the sum and the widths, so that the integral is 1.

    Returns:
        (counts, edges): counts [bins] in int64, in float32 with ``weights`` or ``density`` (float64 for a float64
        ``x``); edges [bins + 1] in float32 for floats of at most 32 bits, else float64. A bin holds its left edge,
        the last one both. Computed by NumPy on the host: waits for the GPU.

    Raises:
        ArgumentError: bins, a range or weights that NumPy refuses, or NaN without a range.
        GradientError: a variable: histograms have no gradient here.

    Example:
        >>> import nvfp as nf
        >>> counts, edges = nf.histogram(nf.asarray([1.0, 2.0, 2.5, 3.0], device="cpu"), bins=2)
        >>> counts, edges
        (nf.array([1, 3]), nf.array([1., 2., 3.]))
    """
    values, source = _values("histogram", x)
    kind = source.dtype
    real, exact = (float64 if kind is float64 else float32), kind is float64 or kind.kind in "iub"
    read = values if exact else values.astype(np.float32)  # edges are then float32 numbers: counts go by what is shown
    factors = None if weights is None else _values("histogram", weights)[0]
    try:
        edges = np.histogram_bin_edges(read, host(bins) if isinstance(bins, Array) else bins, range)
        edges = edges.astype(np.float64 if exact else np.float32)
        with np.errstate(all="ignore"):  # the density of no element is NaN
            counts, _ = np.histogram(read, edges, weights=factors, density=density)
    except (ValueError, TypeError) as error:
        do = "see numpy.histogram"
        raise ArgumentError(message("histogram", "bins, range and weights that fit", error, do)) from None
    target = int64 if weights is None and not density else real
    return place(counts, source.device, target), place(edges, source.device)
