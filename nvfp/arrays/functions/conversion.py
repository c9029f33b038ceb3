"""Between dtypes and devices: `astype`, `to_device`, `copy`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import any_array, dense
from nvfp.arrays.functions.quantization import conversion_node, dequantize, quantize
from nvfp.arrays.quantized import QuantizedArray, quantized
from nvfp.arrays.registry import nf, public
from nvfp.device import Device, check_usable
from nvfp.dtypes.codec import Overflow, Rounding
from nvfp.dtypes.dense import as_dtype, float32, float64, is_narrow
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, DTypeError, StateError, message
from nvfp.kernels._dispatch import kind_of
from nvfp.kernels.cast import cast
from nvfp.kernels.elementwise import elementwise
from nvfp.optional import need

INTEGERS = frozenset(np.dtype(name) for name in ("bool", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))))


@public
def astype(
    x: Array,
    dtype: Any,
    /,
    *,
    copy: bool = True,
    device: Any = None,
    overflow: Overflow = "saturate",
    rounding: Rounding = "even",
) -> Array:
    """Return ``x`` in another dtype.

    Args:
        x: Array, dense, narrow or quantized.
        dtype: a dense, narrow or quantized dtype; a quantized one means ``nf.quantize(x, dtype)``.
        copy: False returns ``x`` itself if nothing changes.
        device: where the result goes; by default it stays.
        overflow: what a narrow or quantized dtype does beyond its largest code: ``"saturate"``, or ``"nonsat"`` (inf,
            or NaN where there is no inf). Dense floats follow IEEE 754.
        rounding: to a narrow or quantized dtype: ``"even"`` (nearest, ties to even) or ``"toward_zero"``.

    Returns:
        An Array or QuantizedArray of that dtype. Gradients pass straight through, also to a quantized
        dtype, and arrive in the dtype of ``x`` (float32 for narrow and quantized ones).

    Raises:
        DTypeError: complex to real, or an unknown dtype.

    Numerics:
        One rounding. A quantized ``x`` is dequantized in float32; to another quantized dtype it is
        quantized again from these values.

    Example:
        >>> import nvfp as nf
        >>> nf.asarray([1.0, 300.5], device="cpu").astype(nf.bfloat16)
        nf.array([  1., 300.], dtype=bfloat16)
    """
    x = any_array("astype", x) if device is None else to_device(x, device)
    target = as_dtype(dtype)
    if target == x.dtype:
        return nf.copy(x) if copy else x
    if isinstance(target, QuantDType):
        axis = x.axis if isinstance(x, QuantizedArray) else -1
        source = _floats(x) if x.dtype in INTEGERS else x
        return quantize(source, target, axis=axis, overflow=overflow, rounding=rounding)
    if isinstance(x, QuantizedArray):
        return dequantize(x, target)
    if x.dtype.kind == "c" and target.kind != "c":
        raise DTypeError(message("astype", "a complex dtype for a complex array", target, "take nf.real(x) first"))
    if "c" in (x.dtype.kind, target.kind):
        return wrap(elementwise("copy", x.raw, dtype=target), None, conversion_node("astype", x))
    raw = cast(x.raw, target, source=x.dtype if is_narrow(x.dtype) else None, overflow=overflow, rounding=rounding)
    tracked = target.kind not in "iub" or is_narrow(target)
    return wrap(raw, target, conversion_node("astype", x) if tracked else None)


def _floats(x: Array) -> Array:
    """Integers as floats that quantize as the integers do: 64-bit ones beyond 2**53 are rounded to odd."""
    wide = astype(x, float32 if x.dtype.itemsize < 4 else float64)
    if x.dtype.itemsize < 8:
        return wide
    odd = nf.bitwise_or(nf.bitwise_left_shift(nf.bitwise_right_shift(x, 11), 11), 1 << 11)
    cut = nf.logical_and(nf.not_equal(nf.bitwise_and(x, 0x7FF), 0), nf.greater_equal(nf.abs(wide), 2.0**53))
    rounded: Array = nf.where(cut, astype(odd, float64), wide)
    return rounded


def _back(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    return (to_device(g, saved[0]),)


@public
def to_device(x: Array, device: Any, /, *, stream: Any = None) -> Array:
    """Return ``x`` on another device (itself if it is there); gradients come back to its own.

    Args:
        x: Array or QuantizedArray.
        device: a Device or its name.
        stream: only None: copies use the current stream.

    Raises:
        DeviceError: the device cannot be used here.
        ArgumentError: a stream.

    Example:
        >>> import nvfp as nf
        >>> x = nf.ones((2,), device="cpu")
        >>> x.to_device("cpu") is x
        True
    """
    if stream is not None:
        raise ArgumentError(message("to_device", "stream=None", stream, "set the current CuPy stream instead"))
    x, target = any_array("to_device", x), check_usable(device, "to_device")
    if target is x.device:
        return x
    node = dense("to_device", (x,), _back, (x.device,))
    if isinstance(x, QuantizedArray):
        return quantized(x._on(lambda raw: moved(raw, target)), node)
    return wrap(moved(x.raw, target), x.dtype, node)


def bits(raw: Any) -> Any:
    """A view as unsigned integers of ml_dtypes arrays, which CuPy neither moves nor indexes; others as they are."""
    return raw if raw.dtype.isbuiltin == 1 else raw.view(np.dtype(f"uint{8 * raw.dtype.itemsize}"))


def to_host(raw: Any) -> np.ndarray:
    """Return a raw array as a NumPy array: itself, or a copy from CUDA."""
    if kind_of(raw) == "cpu":
        return raw  # type: ignore[no-any-return]
    check_not_captured("a step that leaves results on the GPU", "return them from the step and read them afterwards")
    values: np.ndarray = np.asarray(bits(raw).get()).view(raw.dtype)
    return values


def check_not_captured(expected: str, do: str) -> None:
    """Raise StateError while the current stream is being captured: a replay does not run Python again."""
    if need("cupy", extra="cuda13").cuda.get_current_stream().is_capturing():
        raise StateError(message("cuda_graph", expected, "one that moves values between host and GPU", do))


def moved(raw: Any, device: Device) -> Any:
    """Return a raw array on another device, contiguous."""
    if device.type == "cpu":
        return to_host(raw)
    cp = need("cupy", extra="cuda13")
    if isinstance(raw, np.ndarray):
        check_not_captured("a step that takes its values from inputs", "make it before, or pass it to the step")
    with cp.cuda.Device(device.index):
        return cp.asarray(bits(raw)).view(raw.dtype)


@public
def copy(x: Array, /) -> Array:
    """Return the same values in memory of their own, on the same device.

    Args:
        x: Array or QuantizedArray.

    Example:
        >>> import nvfp as nf
        >>> x = nf.ones((2,), device="cpu")
        >>> nf.copy(x) is x
        False
    """
    x = any_array("copy", x)
    if isinstance(x, QuantizedArray):
        return quantized(x._on(lambda raw: cast(raw, raw.dtype)), conversion_node("copy", x))
    raw = elementwise("copy", x.raw) if x.dtype.kind == "c" else cast(x.raw, x.raw.dtype)
    return wrap(raw, x.dtype, conversion_node("copy", x))


def host(x: Array) -> np.ndarray:
    """Return a NumPy array of an Array's values in its own dtype (quantized: float32)."""
    if isinstance(x, QuantizedArray):
        x = dequantize(x.detach())
    raw = to_host(x.raw)
    return raw if x.dtype is raw.dtype else raw.view(x.dtype)
