"""New arrays: constants, ranges, grids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.convert import place
from nvfp.arrays.registry import nf, public
from nvfp.device import Device, check_usable, default_device
from nvfp.dtypes.dense import as_dtype, float32, is_narrow
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, ShapeError, message
from nvfp.kernels.elementwise import elementwise
from nvfp.optional import need

Shape = int | Sequence[int]


def _on(device: Any) -> Device:
    return default_device() if device is None else check_usable(device, "device")


def _lengths(shape: Shape) -> tuple[int, ...]:
    found = (int(shape),) if isinstance(shape, int | np.integer) else tuple(int(n) for n in shape)
    if any(n < 0 for n in found):
        raise ShapeError(message("creation", "lengths >= 0", found, "correct the shape"))
    return found


def empty_raw(shape: tuple[int, ...], dtype: np.dtype, device: Device) -> Any:
    """Return raw memory that is not initialised."""
    if device.type == "cpu":
        return np.empty(shape, dtype)
    cp = need("cupy", extra="cuda13")
    with cp.cuda.Device(device.index):
        return cp.empty(shape, dtype)


def _variable(x: Array, requires_grad: bool) -> Array:
    if requires_grad:
        x.requires_grad = True
    return x


@public
def empty(shape: Shape, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Array:
    """Return an array whose values are whatever the memory held.

    Args:
        shape: lengths, or one length.
        dtype: any dtype; float32 by default.
        device: `nf.default_device()` by default.
        requires_grad: make it a variable.

    Example:
        >>> import nvfp as nf
        >>> nf.empty((2, 3), dtype=nf.bfloat16, device="cpu").shape
        (2, 3)
    """
    target = float32 if dtype is None else as_dtype(dtype)
    if isinstance(target, QuantDType):
        return zeros(shape, dtype=target, device=device)
    lengths, where = _lengths(shape), _on(device)
    if is_narrow(target):
        return wrap(empty_raw(lengths, np.dtype(np.uint8), where), target)
    return _variable(wrap(empty_raw(lengths, target, where)), requires_grad)


@public
def full(shape: Shape, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Array:
    """Return an array of one value.

    Args:
        shape: lengths, or one length.
        fill_value: a scalar (or a 0-d array).
        dtype: any dtype; by default that of the value, float32 for Python floats.
        device: `nf.default_device()` by default.
        requires_grad: make it a variable.

    Raises:
        ShapeError: a negative length.
        DTypeError: no such dtype.

    Example:
        >>> import nvfp as nf
        >>> nf.full((2,), 7, dtype=nf.float16, device="cpu")
        nf.array([7., 7.], dtype=float16)
    """
    if isinstance(fill_value, Array | np.ndarray):
        value = nf.asarray(fill_value)
        spread = nf.broadcast_to(value, _lengths(shape))
        return nf.copy(
            nf.astype(nf.to_device(spread, _on(device)), value.dtype if dtype is None else dtype, copy=False)
        )
    kinds = {bool: "bool", int: "int64", float: "float32", complex: "complex64"}
    target = as_dtype(kinds.get(type(fill_value)) or fill_value.dtype) if dtype is None else as_dtype(dtype)
    if isinstance(target, QuantDType) or is_narrow(target):
        return nf.astype(full(shape, fill_value, dtype=float32, device=device), target)
    raw = empty_raw(_lengths(shape), target, _on(device))
    value = fill_value if type(fill_value) in kinds else fill_value.item()
    value = {"b": bool, "i": int, "u": int, "c": complex}.get(target.kind, float)(value)
    return _variable(wrap(elementwise("copy", value, dtype=target, out=raw)), requires_grad)


@public
def zeros(shape: Shape, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Array:
    """Return an array of zeros (float32 by default).

    Args:
        shape: lengths, or one length.
        dtype: any dtype; float32 by default.
        device: `nf.default_device()` by default.
        requires_grad: make it a variable.

    Example:
        >>> import nvfp as nf
        >>> nf.zeros((2, 2), device="cpu").tolist()
        [[0.0, 0.0], [0.0, 0.0]]
    """
    return full(shape, 0, dtype=float32 if dtype is None else dtype, device=device, requires_grad=requires_grad)


@public
def ones(shape: Shape, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Array:
    """Return an array of ones (float32 by default).

    Args:
        shape: lengths, or one length.
        dtype: any dtype; float32 by default.
        device: `nf.default_device()` by default.
        requires_grad: make it a variable.

    Example:
        >>> import nvfp as nf
        >>> nf.ones((2,), dtype=nf.int32, device="cpu")
        nf.array([1, 1], dtype=int32)
    """
    return full(shape, 1, dtype=float32 if dtype is None else dtype, device=device, requires_grad=requires_grad)


def _like(x: Any, dtype: Any, device: Any) -> dict[str, Any]:
    x = nf.asarray(x)
    own = x.dtype if isinstance(x.dtype, np.dtype) else float32
    return {
        "shape": x.shape,
        "dtype": own if dtype is None else dtype,
        "device": x.device if device is None else device,
    }


@public
def empty_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Array:
    """Return `nf.empty` with the shape, dtype and device of ``x`` (float32 if that is quantized).

    Args:
        x: Array.
        dtype: that of ``x`` by default.
        device: that of ``x`` by default.

    Example:
        >>> import nvfp as nf
        >>> nf.empty_like(nf.ones((2,), device="cpu")).shape
        (2,)
    """
    return empty(**_like(x, dtype, device))


@public
def zeros_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Array:
    """Return zeros with the shape, dtype and device of ``x`` (float32 if that is quantized).

    Args:
        x: Array.
        dtype: that of ``x`` by default.
        device: that of ``x`` by default.

    Example:
        >>> import nvfp as nf
        >>> nf.zeros_like(nf.ones((2,), device="cpu"))
        nf.array([0., 0.])
    """
    return zeros(**_like(x, dtype, device))


@public
def ones_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Array:
    """Return ones with the shape, dtype and device of ``x`` (float32 if that is quantized).

    Args:
        x: Array.
        dtype: that of ``x`` by default.
        device: that of ``x`` by default.

    Example:
        >>> import nvfp as nf
        >>> nf.ones_like(nf.zeros((2,), device="cpu"))
        nf.array([1., 1.])
    """
    return ones(**_like(x, dtype, device))


@public
def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Return one value with the shape, dtype and device of ``x`` (float32 if that is quantized).

    Args:
        x: Array.
        fill_value: a scalar.
        dtype: that of ``x`` by default.
        device: that of ``x`` by default.

    Example:
        >>> import nvfp as nf
        >>> nf.full_like(nf.zeros((2,), device="cpu"), 3)
        nf.array([3., 3.])
    """
    return full(fill_value=fill_value, **_like(x, dtype, device))


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
    first, last = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise ArgumentError(message("arange", "a step that is not 0", step, "pass another step"))
    whole = all(isinstance(v, int | np.integer) for v in (first, last, step))
    target = (np.dtype(np.int64) if whole else float32) if dtype is None else as_dtype(dtype)
    count = max(0, math.ceil((last - first) / step))
    values = (
        np.arange(count, dtype=np.int64) * step + first if count else np.zeros(0, np.int64 if whole else np.float64)
    )
    return _placed(values, target, device)


def _placed(values: np.ndarray, dtype: Any, device: Any) -> Array:
    """Host values of at least the wanted precision, on a device in a dtype."""
    if isinstance(dtype, QuantDType) or is_narrow(dtype):
        return nf.astype(place(values, _on(device)), dtype)
    if dtype.kind == "c":
        return place(values.astype(dtype), _on(device))
    return place(values, _on(device), dtype)


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

    Numerics:
        Computed in float64 and rounded once.

    Example:
        >>> import nvfp as nf
        >>> nf.linspace(0, 1, 5, device="cpu")
        nf.array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    return _placed(
        np.linspace(start, stop, num, endpoint=endpoint), float32 if dtype is None else as_dtype(dtype), device
    )


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
    return _placed(np.eye(rows, columns, k, np.float32), float32 if dtype is None else as_dtype(dtype), device)


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
    keep = np.tri(rows, columns, k if lower else k - 1, dtype=bool)
    return nf.where(
        nf.asarray(keep if lower else ~keep, device=x.device), x, nf.zeros((), dtype=x.dtype, device=x.device)
    )


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
