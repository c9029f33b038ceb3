"""In and out: `asarray`, `asnumpy`, `from_dlpack`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from nvfp.arrays import dlpack
from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions.conversion import host, moved
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf, public
from nvfp.device import Device, check_usable, default_device
from nvfp.dtypes.dense import DENSE, DType, as_dtype, complex64, float32, is_narrow
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, DTypeError, IntegerOverflowError, ShapeError, message
from nvfp.kernels.cast import cast


@public
@explained
def asarray(
    obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None, requires_grad: bool = False
) -> Array:
    """Make an Array of (almost) anything.

    Args:
        obj: an Array; a NumPy or CuPy array; anything with ``__dlpack__``; nested lists of numbers; a scalar.
        dtype: any dtype, quantized too. By default it stays; Python floats become float32.
        device: where it goes. Arrays of other libraries on CUDA and nf Arrays stay where they are by default,
            everything else goes to `nf.default_device()`.
        copy: True copies always, False never (raises if it must), None if it must. Without a copy the
            memory is shared with ``obj``.
        requires_grad: make the result a variable (a new Array object over ``obj``'s memory where that needs no copy).

    Returns:
        An Array; ``obj`` itself if it is one and nothing changes.

    Raises:
        DTypeError: a dtype that nvfp does not have.
        IntegerOverflowError: Python integers (also in lists) that ``dtype`` does not hold; arrays wrap around, as
            every cast of integers.
        ArgumentError: ``copy=False`` and a copy is needed, or a masked NumPy array: the mask would be lost.
        DeviceError: the device cannot be used here.

    Example:
        >>> import nvfp as nf
        >>> nf.asarray([[1, 2], [3, 4]], dtype=nf.bfloat16, device="cpu")
        nf.array([[1., 2.],
                  [3., 4.]], dtype=bfloat16)
    """
    target = None if dtype is None else as_dtype(dtype)
    x, copied = _read(obj, device, target)
    place = x.device if device is None else check_usable(device, "asarray")
    changes = (target is not None and target != x.dtype) or place is not x.device
    if copy is False and (changes or copied):
        text = f"{x.dtype} on {x.device}" if changes else type(obj).__name__
        raise ArgumentError(message("asarray", "memory that can be shared with copy=False", text, "leave copy out"))
    if place is not x.device:
        x, copied = nf.to_device(x, place), True
    if target is not None and target != x.dtype:
        x, copied = nf.astype(x, target), True
    if copy and not copied:
        x = nf.copy(x)
    if requires_grad:
        x = x._placed(None)
        x.requires_grad = True
    return x


@public
@explained
def array(obj: Any, /, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Array:
    """Return a new Array with the values of anything that `asarray` takes: a copy, always.

    Args:
        obj: as in `asarray`.
        dtype: as in `asarray`.
        device: as in `asarray`.
        requires_grad: make the result a variable.

    Example:
        >>> import nvfp as nf
        >>> nf.array([1.0, 2.0], device="cpu")
        nf.array([1., 2.])
    """
    return asarray(obj, dtype=dtype, device=device, copy=True, requires_grad=requires_grad)


def _read(obj: Any, device: Any, dtype: DType | None) -> tuple[Array, bool]:
    """An Array of ``obj`` that can be cast to ``dtype``, and whether its memory is new."""
    if isinstance(obj, Array):
        return obj, False
    if type(obj).__module__.partition(".")[0] == "cupy" or (
        hasattr(obj, "__dlpack__") and not isinstance(obj, np.ndarray | np.generic)
    ):
        return from_dlpack(obj), False
    _refuse_masks("asarray", obj)
    values = _unwrapped(obj)
    try:
        found = np.asarray(values)
    except ValueError as error:
        raise ShapeError(
            message("asarray", "nested lists of equal lengths", error, "pad them, or make one each")
        ) from None
    if not isinstance(obj, np.ndarray):
        found = _held(values, found, dtype)
    default = dtype is None or isinstance(dtype, QuantDType)  # another dtype is rounded to once, from float64
    if default and not isinstance(obj, np.ndarray | np.generic) and found.dtype.isbuiltin == 1:
        with np.errstate(over="ignore"):  # beyond float32: inf, as every cast
            found = found.astype({"f": float32, "c": complex64}.get(found.dtype.kind, found.dtype), copy=False)
    raw = _canonical(found)
    x = wrap(raw.view(np.uint8), raw.dtype) if is_narrow(raw.dtype) else wrap(raw)
    target = default_device() if device is None else Device(device)
    shared = isinstance(obj, np.ndarray) and target.type == "cpu" and (raw is obj or np.may_share_memory(raw, obj))
    return nf.to_device(x, target), not shared


def _held(values: Any, found: np.ndarray, target: DType | None) -> np.ndarray:
    """What NumPy has read, if ``target`` holds its integers; NumPy reads those beyond 64 bits as objects."""
    whole = isinstance(target, np.dtype) and target.kind in "iu"
    try:
        if found.dtype.kind == "O" and all(isinstance(v, int | float) for v in found.flat):
            integers = whole or (target is None and all(isinstance(v, int) for v in found.flat))
            return np.asarray(values, dtype=(target if whole else np.int64) if integers else np.float64)
        if whole and found.dtype.kind in "iu":
            np.asarray(values, dtype=target)
    except OverflowError as error:
        do = "pass another dtype=, or an array to let it wrap around"
        raise IntegerOverflowError(message("asarray", f"integers within {target or 'int64'}", error, do)) from None
    return found


def _unwrapped(obj: Any) -> Any:
    """Nested lists with NumPy arrays in place of Arrays: NumPy would ask them element by element."""
    if isinstance(obj, Array):
        return host(obj)
    if isinstance(obj, list | tuple):
        _refuse_masks("asarray", *obj)
        return [_unwrapped(o) for o in obj] if any(isinstance(o, list | tuple | Array) for o in obj) else obj
    return obj


_OWN = frozenset(map(id, DENSE.values()))


def _refuse_masks(op: str, *values: Any) -> None:
    """Refuse masked NumPy arrays, whose masked places hold numbers that are not meant; `numpy.ma` is not loaded."""
    ma = sys.modules.get("numpy.ma")
    if ma is not None and any(isinstance(value, ma.MaskedArray) for value in values):
        do = "fill it first, e.g. with x.filled(0)"
        raise ArgumentError(message(op, "an array without a mask", "a masked NumPy array", do))


def _canonical(found: np.ndarray) -> np.ndarray:
    """The same values under the one instance of their dtype, in native byte order.

    Equal dtypes can be different objects (after unpickling, say); nvfp compares them with ``is``.
    """
    if id(found.dtype) in _OWN:
        return found
    native = found.dtype.newbyteorder("=")
    dtype = DENSE.get(native.name)
    if dtype is None or dtype != native:
        raise DTypeError(
            message("asarray", "numbers or bools", f"dtype {found.dtype}", "cast it to a dtype of nvfp first")
        )
    if found.dtype is dtype:
        return found
    return found.view(dtype) if found.dtype.isnative else found.astype(dtype)


@public
def asnumpy(x: Any, /) -> np.ndarray:
    """Return the values as a NumPy array: the same memory on the CPU, a copy from CUDA.

    Args:
        x: Array, or anything that NumPy reads. Quantized arrays are dequantized to float32.

    Returns:
        An ndarray of the dtype of ``x`` (ml_dtypes for bfloat16 and narrower).

    Raises:
        ArgumentError: a masked NumPy array.

    Example:
        >>> import nvfp as nf
        >>> nf.asnumpy(nf.ones((2,), device="cpu"))
        array([1., 1.], dtype=float32)
    """
    _refuse_masks("asnumpy", x)
    return host(x) if isinstance(x, Array) else np.asarray(x)


@public
def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """Return an Array over the memory of another library's array (torch, JAX, CuPy, ...), bfloat16 and fp8 too.

    Args:
        x: has ``__dlpack__``.
        device: where the result goes; by default the memory stays.
        copy: True copies; False raises where a copy is needed.

    Raises:
        BufferError: memory that is neither CPU nor CUDA, or what the producer raises.
        DTypeError: a dtype that nvfp does not have.
        ArgumentError: ``copy=False`` and another device, or a masked NumPy array.

    Example:
        >>> import numpy as np, nvfp as nf
        >>> a = np.zeros(2, np.float32)
        >>> x = nf.from_dlpack(a)
        >>> a[0] = 5
        >>> x
        nf.array([5., 0.])
    """
    if isinstance(x, Array):
        return asarray(x, device=device, copy=copy)
    if not (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")):
        do = "use nf.asarray for lists and scalars"
        raise DTypeError(message("from_dlpack", "an array with __dlpack__", type(x).__name__, do))
    _refuse_masks("from_dlpack", x)
    raw, dtype = dlpack.take_in(x, copy)
    found = wrap(raw, dtype)
    if device is None or check_usable(device, "from_dlpack") is found.device:
        return found
    if copy is False:
        raise ArgumentError(message("from_dlpack", f"device {found.device} with copy=False", device, "leave copy out"))
    return nf.to_device(found, device)


def place(raw: np.ndarray, device: Device, dtype: np.dtype | None = None) -> Array:
    """Wrap host memory that is nobody else's, on a device, optionally cast there."""
    on = moved(raw, device) if device.type == "cuda" else raw
    return wrap(on if dtype is None or on.dtype == dtype else cast(on, dtype))
