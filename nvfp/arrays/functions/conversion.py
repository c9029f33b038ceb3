"""Between dtypes and devices: `astype`, `quantize`, `dequantize`, `fake_quant`, `to_device`, `copy`."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import any_array, array, dense, fit, integer, is_storage
from nvfp.arrays.quantized import QuantizedArray, quantized
from nvfp.arrays.registry import nf, public
from nvfp.autograd.tape import Node
from nvfp.device import Device, check_usable
from nvfp.dtypes.codec import Overflow, Rounding
from nvfp.dtypes.dense import as_dtype, bfloat16, float16, float32, float64, is_narrow
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, DeviceError, DTypeError, message
from nvfp.kernels._dispatch import place_like
from nvfp.kernels._stochastic import Rng
from nvfp.kernels.cast import cast
from nvfp.kernels.dequantize import dequantize as _dequantize
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.quantize import quantize as _quantize
from nvfp.optional import need

INTEGERS = frozenset(np.dtype(name) for name in ("bool", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))))


def _straight(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    """The rule of every conversion: the gradient passes, in the dtype of the source (float32 for storage)."""
    return (fit(g, (g.shape, saved[0])),)


def _conversion(name: str, x: Array) -> Node | None:
    if x._node is None:
        return None
    return dense(name, (x,), _straight, (float32 if is_storage(x.dtype) else x.dtype,))


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
        source = astype(x, float32) if x.dtype in INTEGERS else x
        return quantize(source, target, axis=axis, overflow=overflow, rounding=rounding)
    if isinstance(x, QuantizedArray):
        return dequantize(x, target)
    if x.dtype.kind == "c" and target.kind != "c":
        raise DTypeError(message("astype", "a complex dtype for a complex array", target, "take nf.real(x) first"))
    if "c" in (x.dtype.kind, target.kind):
        return wrap(elementwise("copy", x.raw, dtype=target), None, _conversion("astype", x))
    raw = cast(x.raw, target, source=x.dtype if is_narrow(x.dtype) else None, overflow=overflow, rounding=rounding)
    tracked = target.kind not in "iub" or is_narrow(target)
    return wrap(raw, target, _conversion("astype", x) if tracked else None)


def _place(rng: Any, x: Array) -> Rng:
    """The place of a call in a random sequence: a key drawn from ``rng``."""
    from nvfp.arrays.random import Generator, default_rng  # the rooms of arrays/ load each other

    if not isinstance(rng, Generator | None):
        raise DTypeError(message("quantize", "rng=a Generator", repr(rng), "pass nf.random.default_rng(seed)"))
    key = (rng or default_rng()).integers(2**64, dtype=np.dtype(np.uint64), device="cpu")
    return Rng(int(key.item()), 0, place_like(np.zeros((), np.int64), x.raw))


def _word(op: str, name: str, value: Any, x: Array) -> Any:
    """A user's scale as a float32 word on the device of ``x``."""
    if value is None:
        return None
    word = value if isinstance(value, Array) else nf.asarray(value, device=x.device)
    if word is not value and word.ndim == 0 and word.dtype.kind in "iuf" and not 0 < value < np.inf:
        raise ArgumentError(message(op, f"{name} positive and finite", value, "pass a decode factor"))
    if word.shape != ():
        raise ArgumentError(
            message(op, f"{name} as a scalar", f"shape {word.shape}", "pass one decode factor per tensor")
        )
    if word.device is not x.device:
        raise DeviceError(message(op, f"{name} on {x.device}", word.device, "move it with .to_device(...)"))
    return nf.astype(word.detach(), float32, copy=False).raw


@public
def quantize(
    x: Any,
    dtype: Any,
    /,
    *,
    axis: int = -1,
    scale: Any = None,
    tensor_scale: Any = None,
    rounding: Rounding = "even",
    overflow: Overflow = "saturate",
    convention: str | None = None,
    rng: Any = None,
) -> QuantizedArray:
    """Quantize an array: codes and scales of ``dtype``, with blocks along ``axis``.

    ``code = round(x * fl32(1/s))`` and value = ``code * s``, where s is the decode factor of the block
    (times the tensor scale, for formats that have one).

    Args:
        x: floating Array [..., N].
        dtype: a quantized dtype or its name, e.g. ``nf.mxfp8``.
        axis: where blocks of consecutive elements lie. Its length need not divide by the block.
        scale: decode factor s of formats with one scale per tensor; computed from max|x| without it.
        tensor_scale: decode factor of two-level formats (nvfp4); max|x| / 2688 without it.
        rounding: of the elements: ``"even"`` (nearest, ties to even), ``"toward_zero"`` or ``"stochastic"``.
        overflow: ``"saturate"``, or ``"nonsat"``: an element beyond the largest code becomes inf, or NaN where its
            format has no inf.
        convention: a stack whose bytes are wanted in place of nvfp's, for formats whose rule in it is known:
            ``"te"``, ``"ocp"``, ``"torchao"`` (by the dtype's ``scale_rule``), ``"modelopt"``,
            ``"compressed-tensors"``, ``"mlx"``, ``"microxcaling"``; see docs/formats.md.
        rng: a `nf.random.Generator` for stochastic rounding: each call takes one draw of it. Without one fresh entropy.

    Returns:
        A QuantizedArray of the shape of ``x``. The gradient passes straight through.

    Raises:
        DTypeError: ``dtype`` is not quantized, or ``x`` is not floating.
        ArgumentError: a scale that the format does not use, or a convention that does not cover it.

    Numerics:
        Bit for bit the same on CPU and CUDA; see `nvfp.kernels.quantize`.

    Example:
        >>> import nvfp as nf
        >>> q = nf.quantize(nf.asarray([0.3, 1.0, 17.0], device="cpu"), nf.fp8_e4m3, scale=1.0)
        >>> q.astype(nf.float32)
        nf.array([ 0.3125,  1.    , 16.    ])
    """
    x, target = array("quantize", x), as_dtype(dtype)
    if not isinstance(target, QuantDType):
        raise DTypeError(message("quantize", "a quantized dtype", target, "use x.astype for dense dtypes"))
    if not x._differentiable:
        raise DTypeError(message("quantize", "a floating array", x.dtype, "cast it to float32 first"))
    axis = integer("quantize", "axis", axis)
    factor = _word("quantize", "scale", scale, x)
    multiplier = None if factor is None else elementwise("reciprocal", factor)
    word = _word("quantize", "tensor_scale", tensor_scale, x)
    q = _quantize(
        x.raw, target, axis=axis, scale=multiplier, tensor_scale=word, rounding=rounding, overflow=overflow,
        convention=convention, rng=_place(rng, x) if rounding == "stochastic" else rng,
    ).side("row")  # fmt: skip
    if factor is not None:  # the user reads back what he gave, not the inverse of its rounded inverse
        q = dataclasses.replace(q, scale=cast(factor, factor.dtype))
    return quantized(q, _conversion("quantize", x))


@public
def dequantize(q: QuantizedArray, /, dtype: Any = float32, *, convention: str | None = None, amax: Any = None) -> Array:
    """Return the values of a quantized array: ``code * scale * tensor_scale``.

    Args:
        q: QuantizedArray.
        dtype: float32, float64, float16 or bfloat16.
        convention: ``"te"`` multiplies nvfp4 in Transformer Engine's order: ``code * ((scale * A) * (1 / 2688))``.
        amax: A, the amax of the tensor, for that order; without it tensor_scale * 2688, which may miss it by the last
            bit.

    Returns:
        An Array of the shape of ``q``; the gradient passes straight through.

    Raises:
        DTypeError: ``q`` is not quantized, or ``dtype`` is another one.

    Numerics:
        The product in float32, then one rounding; bit for bit the same on CPU and CUDA.

    Example:
        >>> import nvfp as nf
        >>> nf.dequantize(nf.asarray([1.0, 3.1], device="cpu").astype(nf.mxfp8))
        nf.array([1., 3.])
    """
    if not isinstance(q, QuantizedArray):
        raise DTypeError(message("dequantize", "a quantized array", type(q).__name__, "quantize it first"))
    target = as_dtype(dtype)
    if isinstance(target, QuantDType):
        raise DTypeError(message("dequantize", "a dense floating dtype", target, "use nf.quantize for another format"))
    direct = target in (float32, float64, float16, bfloat16)
    word = _word("dequantize", "amax", amax, q)
    raw = _dequantize(q.operand, target if direct else float32, convention=convention, amax=word)
    node = _conversion("dequantize", q) if direct else None
    return wrap(raw, None, node) if direct else astype(wrap(raw), target, copy=False)


@public
def fake_quant(
    x: Any,
    dtype: Any,
    /,
    *,
    axis: int = -1,
    scale: Any = None,
    tensor_scale: Any = None,
    rounding: Rounding = "even",
    overflow: Overflow = "saturate",
    convention: str | None = None,
    rng: Any = None,
) -> Array:
    """Return what ``x`` becomes in a quantized dtype: quantized and dequantized, in the dtype of ``x``.

    Args:
        x: floating Array.
        dtype: a quantized dtype or its name.
        axis: where blocks lie.
        scale: as in `nf.quantize`.
        tensor_scale: as in `nf.quantize`.
        rounding: as in `nf.quantize`.
        overflow: as in `nf.quantize`.
        convention: as in `nf.quantize`.
        rng: as in `nf.quantize`.

    Raises:
        DTypeError: ``dtype`` is not quantized, or ``x`` is not floating.

    Notes:
        The gradient passes straight through.

    Example:
        >>> import nvfp as nf
        >>> nf.fake_quant(nf.asarray([448.0, 1100.0, 2688.0], device="cpu"), nf.nvfp4)
        nf.array([ 448.,  896., 2688.])
    """
    x = array("fake_quant", x)
    q = quantize(
        x, dtype, axis=axis, scale=scale, tensor_scale=tensor_scale, rounding=rounding, overflow=overflow,
        convention=convention, rng=rng,
    )  # fmt: skip
    return dequantize(q, x.dtype)


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
    if isinstance(raw, np.ndarray):
        return raw
    values: np.ndarray = np.asarray(bits(raw).get()).view(raw.dtype)
    return values


def moved(raw: Any, device: Device) -> Any:
    """Return a raw array on another device, contiguous."""
    if device.type == "cpu":
        return to_host(raw)
    cp = need("cupy", extra="cuda13")
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
        return quantized(x._on(lambda raw: cast(raw, raw.dtype)), _conversion("copy", x))
    raw = elementwise("copy", x.raw) if x.dtype.kind == "c" else cast(x.raw, x.raw.dtype)
    return wrap(raw, x.dtype, _conversion("copy", x))


def host(x: Array) -> np.ndarray:
    """Return a NumPy array of an Array's values in its own dtype (quantized: float32)."""
    if isinstance(x, QuantizedArray):
        x = dequantize(x.detach())
    raw = to_host(x.raw)
    return raw if x.dtype is raw.dtype else raw.view(x.dtype)
