"""New arrays: constants, ranges, grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import integers
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf, public
from nvfp.device import Device, check_usable, default_device
from nvfp.dtypes.dense import as_dtype, float32, is_narrow
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import DTypeError, IntegerOverflowError, ShapeError, message
from nvfp.kernels.elementwise import elementwise
from nvfp.optional import need

Shape = int | Sequence[int]


def on_device(device: Any) -> Device:
    """Return a usable device: the default one for None."""
    return default_device() if device is None else check_usable(device, "device")


def as_shape(shape: Shape) -> tuple[int, ...]:
    """Return lengths >= 0 of a shape argument."""
    found = integers("creation", "shape", shape)
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
@explained
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
        return zeros(shape, dtype=target, device=device, requires_grad=requires_grad)
    lengths, where = as_shape(shape), on_device(device)
    if is_narrow(target):
        return _variable(wrap(empty_raw(lengths, np.dtype(np.uint8), where), target), requires_grad)
    return _variable(wrap(empty_raw(lengths, target, where)), requires_grad)


@public
@explained
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
        DTypeError: no such dtype, or a value that it does not take.
        IntegerOverflowError: an integer that the dtype does not hold.

    Example:
        >>> import nvfp as nf
        >>> nf.full((2,), 7, dtype=nf.float16, device="cpu")
        nf.array([7., 7.], dtype=float16)
    """
    if isinstance(fill_value, Array | np.ndarray):
        value = nf.asarray(fill_value)
        spread = nf.broadcast_to(value, as_shape(shape))
        placed = nf.astype(nf.to_device(spread, on_device(device)), value.dtype if dtype is None else dtype, copy=False)
        return _variable(nf.copy(placed), requires_grad)
    if not isinstance(fill_value, bool | int | float | complex | np.generic):
        raise DTypeError(message("full", "a number as fill_value", type(fill_value).__name__, "pass a scalar"))
    kinds = {bool: "bool", int: "int64", float: "float32", complex: "complex64"}
    target = as_dtype(kinds.get(type(fill_value)) or np.asarray(fill_value).dtype if dtype is None else dtype)
    if isinstance(target, QuantDType) or is_narrow(target):
        return _variable(nf.astype(full(shape, fill_value, dtype=float32, device=device), target), requires_grad)
    lengths, value = as_shape(shape), _as_kind(fill_value, target)
    raw = empty_raw(lengths, target, on_device(device))
    if (
        type(raw) is np.ndarray and raw.size <= 4096 and raw.dtype.isbuiltin == 1
    ):  # small: without the kernel's contract
        with np.errstate(over="ignore"):
            raw.fill(value)
        return _variable(wrap(raw), requires_grad)
    return _variable(wrap(elementwise("copy", value, dtype=target, out=raw)), requires_grad)


def _as_kind(value: Any, dtype: np.dtype) -> Any:
    """A number as the Python scalar that a dtype takes."""
    value = value.item() if isinstance(value, np.generic) else value
    try:
        found = {"b": bool, "i": int, "u": int, "c": complex}.get(dtype.kind, float)(value)
    except (TypeError, ValueError, OverflowError):
        raise DTypeError(message("full", f"a number that {dtype} holds", repr(value), "pass another dtype=")) from None
    if dtype.kind in "iu" and not np.iinfo(dtype).min <= found <= np.iinfo(dtype).max:
        raise IntegerOverflowError(message("full", f"a number that {dtype} holds", value, "pass another dtype="))
    return found


@public
@explained
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
@explained
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
