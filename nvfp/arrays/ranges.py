"""New arrays from rules: ranges, grids, triangles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.convert import place
from nvfp.arrays.creation import as_shape, on_device
from nvfp.arrays.functions._common import integer, real
from nvfp.arrays.registry import nf, public
from nvfp.dtypes.dense import as_dtype, float32, is_narrow
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, ShapeError, message


@public
def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: Any = None, device: Any = None
) -> Array:
    """Return ``start, start + step, ...`` below ``stop`` (``arange(n)``: 0 to n - 1).

    Args:
        start: first value, or the end if ``stop`` is left out.
        stop: end, not included.
        step: distance, not 0.
        dtype: by default int64 for integers, else float32.
        device: `nf.default_device()` by default.

    Raises:
        ArgumentError: ``step`` is 0.

    Numerics:
        Computed as ``start + i * step`` in float64 (int64) and rounded once.

    Example:
        >>> import nvfp as nf
        >>> nf.arange(0.0, 1.0, 0.25, device="cpu")
        nf.array([0.  , 0.25, 0.5 , 0.75])
    """
    first, last, step = (real("arange", v) for v in ((0, start, step) if stop is None else (start, stop, step)))
    count = 0 if step == 0 else (last - first) / step
    if step == 0 or not math.isfinite(count):
        raise ArgumentError(
            message("arange", "a finite range and a step that is not 0", (first, last, step), "pass other ends")
        )
    whole = all(isinstance(v, int) for v in (first, last, step))
    target = (np.dtype(np.int64) if whole else float32) if dtype is None else as_dtype(dtype)
    count = max(0, math.ceil(count))
    values = (
        np.arange(count, dtype=np.int64) * step + first if count else np.zeros(0, np.int64 if whole else np.float64)
    )
    return _placed(values, target, device)


def _placed(values: np.ndarray, dtype: Any, device: Any) -> Array:
    """Host values of at least the wanted precision, on a device in a dtype."""
    if isinstance(dtype, QuantDType) or is_narrow(dtype):
        return nf.astype(place(values, on_device(device)), dtype)
    if dtype.kind == "c":
        return place(values.astype(dtype), on_device(device))
    return place(values, on_device(device), dtype)


@public
def linspace(
    start: float, stop: float, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Array:
    """Return ``num`` evenly spaced values from ``start`` to ``stop``.

    Args:
        start: first value.
        stop: last value (with ``endpoint``), else the end that is left out.
        num: how many.
        dtype: float32 by default.
        device: `nf.default_device()` by default.
        endpoint: whether ``stop`` is the last value.

    Raises:
        ArgumentError: a negative ``num``.
        DTypeError: no real numbers, or a ``num`` that is no integer.

    Numerics:
        Computed in float64 and rounded once.

    Example:
        >>> import nvfp as nf
        >>> nf.linspace(0, 1, 5, device="cpu")
        nf.array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    count = integer("linspace", "num", num)
    if count < 0:
        raise ArgumentError(message("linspace", "num >= 0", num, "pass how many values"))
    target = float32 if dtype is None else as_dtype(dtype)
    with np.errstate(all="ignore"):
        values = np.linspace(real("linspace", start), real("linspace", stop), count, endpoint=endpoint)
    return _placed(values, target, device)


@public
def eye(rows: int, columns: int | None = None, /, k: int = 0, *, dtype: Any = None, device: Any = None) -> Array:
    """Return a matrix with ones on diagonal ``k`` and zeros elsewhere.

    Args:
        rows: number of rows.
        columns: number of columns; as many as rows by default.
        k: which diagonal; above the main one if positive.
        dtype: float32 by default.
        device: `nf.default_device()` by default.

    Example:
        >>> import nvfp as nf
        >>> nf.eye(2, device="cpu").tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    m = integer("eye", "rows", rows)
    n = m if columns is None else integer("eye", "columns", columns)
    m, n = as_shape((m, n))
    diagonal = np.eye(m, n, integer("eye", "k", k), np.float32)
    return _placed(diagonal, float32 if dtype is None else as_dtype(dtype), device)


@public
def meshgrid(*arrays: Any, indexing: str = "xy") -> tuple[Array, ...]:
    """Return coordinate matrices of coordinate vectors.

    Args:
        arrays: vectors.
        indexing: ``"xy"`` (the first two axes swapped, as in plots) or ``"ij"``.

    Raises:
        ArgumentError: another ``indexing``.

    Example:
        >>> import nvfp as nf
        >>> x, y = nf.meshgrid(nf.arange(3, device="cpu"), nf.arange(2, device="cpu"))
        >>> x.shape, y.tolist()
        ((2, 3), [[0, 0, 0], [1, 1, 1]])
    """
    if indexing not in ("xy", "ij"):
        raise ArgumentError(message("meshgrid", "indexing 'xy' or 'ij'", repr(indexing), "name one of these"))
    count = len(arrays)
    order = [1, 0, *range(2, count)] if indexing == "xy" and count > 1 else list(range(count))
    spread = [
        nf.reshape(x, tuple(-1 if axis == order[i] else 1 for axis in range(count))) for i, x in enumerate(arrays)
    ]
    return nf.broadcast_arrays(*spread) if count else ()  # type: ignore[return-value]


def _triangle(op: str, x: Any, k: int, lower: bool) -> Array:
    x = nf.asarray(x)
    if x.ndim < 2:
        raise ShapeError(message(op, "at least two axes", x.shape, "reshape it to a matrix"))
    rows, columns = x.shape[-2:]
    k = integer(op, "k", k)
    keep = np.tri(rows, columns, k if lower else k - 1, dtype=bool)
    return nf.where(nf.asarray(keep if lower else ~keep, device=x.device), x, False)  # zero, in every dtype


@public
def tril(x: Any, /, k: int = 0) -> Array:
    """Return the matrices [..., M, N] with zeros above diagonal ``k``.

    Args:
        x: Array [..., M, N].
        k: which diagonal; above the main one if positive.

    Raises:
        ShapeError: fewer than two axes.

    Example:
        >>> import nvfp as nf
        >>> nf.tril(nf.ones((2, 2), device="cpu")).tolist()
        [[1.0, 0.0], [1.0, 1.0]]
    """
    return _triangle("tril", x, k, True)


@public
def triu(x: Any, /, k: int = 0) -> Array:
    """Return the matrices [..., M, N] with zeros below diagonal ``k``.

    Args:
        x: Array [..., M, N].
        k: which diagonal; above the main one if positive.

    Raises:
        ShapeError: fewer than two axes.

    Example:
        >>> import nvfp as nf
        >>> nf.triu(nf.ones((2, 2), device="cpu")).tolist()
        [[1.0, 1.0], [0.0, 1.0]]
    """
    return _triangle("triu", x, k, False)
