"""Into and out of quantized dtypes: `quantize`, `dequantize`, `fake_quant`, `requantize`."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.blocks import plain
from nvfp.arrays.functions._common import array, dense, fit, integer, is_storage
from nvfp.arrays.quantized import QuantizedArray, quantized
from nvfp.arrays.registry import nf, public
from nvfp.autograd.tape import Node
from nvfp.dtypes.codec import Overflow, Rounding
from nvfp.dtypes.dense import as_dtype, bfloat16, float16, float32, float64
from nvfp.dtypes.finfo import isdtype
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, DeviceError, DTypeError, ShapeError, message
from nvfp.kernels._check import axis_index, check_rounding
from nvfp.kernels._dispatch import place_like
from nvfp.kernels._stochastic import Rng
from nvfp.kernels.cast import cast
from nvfp.kernels.dequantize import dequantize as _dequantize
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.quantize import quantize as _quantize
from nvfp.kernels.transpose import transpose


def _straight(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    """The rule of every conversion: the gradient passes, in the dtype of the source (float32 for storage)."""
    return (fit(g, (g.shape, saved[0])),)


def conversion_node(name: str, x: Array) -> Node | None:
    """The node of a conversion of ``x``, or None where ``x`` is a constant."""
    if x._node is None:
        return None
    return dense(name, (x,), _straight, (float32 if is_storage(x.dtype) else x.dtype,))


def _check_generator(op: str, rng: Any) -> None:
    from nvfp.arrays.random import Generator  # the rooms of arrays/ load each other

    if not isinstance(rng, Generator | None):
        raise DTypeError(message(op, "rng=a Generator", repr(rng), "pass nf.random.default_rng(seed)"))


def _place(rng: Any, x: Array) -> Rng:
    """The place of a call in a random sequence: a key drawn from ``rng``."""
    from nvfp.arrays.random import default_rng

    _check_generator("quantize", rng)
    key = (rng or default_rng()).integers(2**64, dtype=np.dtype(np.uint64), device="cpu")
    return Rng(int(key.item()), 0, place_like(np.zeros((), np.int64), x.raw))


def _word(op: str, name: str, value: Any, x: Array) -> Any:
    """A user's scale as a float32 word on the device of ``x``."""
    if value is None:
        return None
    what = "the largest magnitude" if name == "amax" else "a decode factor"
    word = value if isinstance(value, Array) else nf.asarray(value, device=x.device)
    if not isdtype(word.dtype, ("real floating", "integral")):
        raise DTypeError(message(op, f"{name} as a real number", word.dtype, f"pass {what}"))
    if word.shape != ():
        raise ArgumentError(message(op, f"{name} as a scalar", f"shape {word.shape}", f"pass {what} of the tensor"))
    if word.device is not x.device:
        raise DeviceError(message(op, f"{name} on {x.device}", word.device, "move it with .to_device(...)"))
    factor = nf.astype(word.detach(), float32, copy=False)
    if _refused(value, factor):
        do = f"pass {what}" + (" of the tensor, or leave amax= out" if name == "amax" else " that float32 holds")
        raise ArgumentError(message(op, f"{name} positive and finite", value, do))
    return factor.raw


def _refused(value: Any, factor: Array) -> bool:
    """Whether a scale is no decode factor; an Array may be the 0 of a tensor of zeros, and is not read on CUDA."""
    if isinstance(value, int | float | np.generic | np.ndarray):
        with np.errstate(over="ignore", under="ignore"):
            return not 0 < np.asarray(value).astype(np.float32) < np.inf
    return factor.device.type == "cpu" and not 0 <= factor.item() < np.inf


def _multiplier(factor: Any) -> Any:
    """``min(fl(1 / s), FLT_MAX)``: with inf, where the inverse of a subnormal s overflows, zeros would become NaN."""
    return elementwise("minimum", elementwise("reciprocal", factor), float(np.finfo(np.float32).max))


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

    ``code = round(x * min(fl32(1/s), FLT_MAX))`` and value = ``code * s``, where s is the decode factor of the block
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
    multiplier = None if factor is None else _multiplier(factor)
    word = _word("quantize", "tensor_scale", tensor_scale, x)
    q = _quantize(
        x.raw, target, axis=axis, scale=multiplier, tensor_scale=word, rounding=rounding, overflow=overflow,
        convention=convention, rng=_place(rng, x) if rounding == "stochastic" else rng,
    ).side("row")  # fmt: skip
    if factor is not None:  # the user reads back what he gave, not the inverse of its rounded inverse
        q = dataclasses.replace(q, scale=cast(factor, factor.dtype))
    return quantized(q, conversion_node("quantize", x))


@public
def dequantize(q: QuantizedArray, /, dtype: Any = float32, *, convention: str | None = None, amax: Any = None) -> Array:
    """Return the values of a quantized array: ``code * scale * tensor_scale``.

    Args:
        q: QuantizedArray.
        dtype: float32, float64, float16 or bfloat16; another dense dtype by way of float32, and without a gradient.
        convention: ``"te"`` multiplies nvfp4 in Transformer Engine's order: ``code * ((scale * A) * (1 / 2688))``.
        amax: A, the amax of the tensor, for that order; without it tensor_scale * 2688, which may miss it by the last
            bit.

    Returns:
        An Array of the shape of ``q``; the gradient passes straight through.

    Raises:
        DTypeError: ``q`` is not quantized, or ``dtype`` is.

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
    node = conversion_node("dequantize", q) if direct else None
    return wrap(raw, None, node) if direct else nf.astype(wrap(raw), target, copy=False)


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

    Narrow and quantized ``x`` count as the float32 values that they hold.

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


@public
def requantize(
    q: QuantizedArray,
    dtype: Any = None,
    /,
    *,
    axis: int | None = None,
    scale: Any = None,
    tensor_scale: Any = None,
    rounding: Rounding = "even",
    overflow: Overflow = "saturate",
    convention: str | None = None,
    rng: Any = None,
) -> QuantizedArray:
    """Give a quantized array another block axis, another quantized dtype, or both.

    ``requantize(q, dtype, axis=axis) = quantize(dequantize(q), dtype, axis=axis)``, with the values in float32.
    This rounds a second time: the result is no closer to what ``q`` was made of than ``q`` is, and mostly farther.
    Quantize the source again where it still exists.

    Args:
        q: QuantizedArray.
        dtype: a quantized dtype or its name; None keeps that of ``q``.
        axis: where blocks lie afterwards; None keeps the axis of ``q``.
        scale: as in `nf.quantize`.
        tensor_scale: as in `nf.quantize`.
        rounding: as in `nf.quantize`.
        overflow: as in `nf.quantize`.
        convention: as in `nf.quantize`.
        rng: as in `nf.quantize`.

    Returns:
        A QuantizedArray of the shape of ``q``, in memory of its own. The gradient passes straight through.

    Raises:
        DTypeError: ``q`` or ``dtype`` is not quantized.
        ShapeError: no such axis, or none of the last two for blocks over both.
        ArgumentError: a scale that the format does not use, a convention that does not cover it, or an unknown
            ``rounding`` or ``overflow``.

    Numerics:
        Codes and scales stay as they are, so nothing is lost, if the dtype stays (and no scale or convention is
        given) and either the axis stays or the blocks are the same along both: one scale per tensor, or square
        blocks; 4-bit codes are packed anew. Then nothing is rounded and ``rng`` takes no draw. Every value of a NaN
        block is NaN and makes its new block one.

    Example:
        >>> import nvfp as nf
        >>> q = nf.asarray([[1.0, 4.0], [3.1, 12.0]], device="cpu").astype(nf.mxfp4)
        >>> q.requantize(axis=0)
        nf.QuantizedArray([[ 1.,  4.],
                           [ 3., 12.]], dtype=mxfp4, block=32 on axis 0)
    """
    if not isinstance(q, QuantizedArray):
        raise DTypeError(message("requantize", "a quantized array", type(q).__name__, "use nf.quantize"))
    target = q.dtype if dtype is None else as_dtype(dtype)
    if not isinstance(target, QuantDType):
        raise DTypeError(message("requantize", "a quantized dtype", target, "use q.astype for dense dtypes"))
    place = q.axis if axis is None else axis_index("requantize", axis, q.ndim)
    kept = target == q.dtype and scale is None and tensor_scale is None and convention is None
    if kept and (place == q.axis or q.dtype.square):
        check_rounding("requantize", rounding, overflow, rng)
        _check_generator("requantize", rng)
        return _turned(q, place)
    return quantize(
        q, target, axis=place, scale=scale, tensor_scale=tensor_scale, rounding=rounding, overflow=overflow,
        convention=convention, rng=rng,
    )  # fmt: skip


def _turned(q: QuantizedArray, axis: int) -> QuantizedArray:
    """A copy of ``q`` whose blocks, which are the same along both axes, count as lying along ``axis``."""
    if axis < q.ndim - 2 and (q.dtype.block_shape or (1, 1))[0] > 1:
        expected, got = f"one of the last two axes for blocks of {q.dtype.block}", f"axis {axis} of {q.ndim} dimensions"
        raise ShapeError(message("requantize", expected, got, "move that axis last"))
    copied: Any = nf.copy(q)
    operand = plain(copied.operand)
    if operand.format.element.packed and axis != q.axis:
        rest = [a for a in range(q.ndim) if a not in (axis, q.axis)]
        order = (*rest, axis, q.axis)
        codes = transpose(operand.codes.transpose(order), packed=True, columns=q.shape[q.axis])
        back = (*rest, q.axis, axis)
        operand = dataclasses.replace(operand, codes=codes.transpose([back.index(a) for a in range(q.ndim)]))
    return quantized(dataclasses.replace(operand, axis=axis, padded_rows=0), conversion_node("requantize", q))
