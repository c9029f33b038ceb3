"""Codes and scales that a user brings, checked and made an `Operand`: what `QuantizedArray.from_parts` stands on."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp import config
from nvfp.arrays.array import Array, wrap
from nvfp.arrays.dlpack import take_in_codes
from nvfp.arrays.registry import nf
from nvfp.dtypes.dense import as_dtype, float32
from nvfp.dtypes.elements import Element
from nvfp.dtypes.finfo import isdtype
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, DeviceError, DTypeError, ShapeError, message
from nvfp.kernels._check import axis_index
from nvfp.kernels.operand import Operand, codes_shape, scale_shape

_OP = "from_parts"


def operand_of(codes: Any, scale: Any, dtype: Any, *, axis: int, tensor_scale: Any, shape: Any) -> Operand:
    """Return the operand of parts in logical order; arguments and errors are those of `QuantizedArray.from_parts`."""
    format = as_dtype(dtype)
    if not isinstance(format, QuantDType):
        raise DTypeError(message(_OP, "a quantized dtype", format, "use nf.asarray for dense arrays"))
    codes = _codes(codes, format)
    raw_codes = _part("codes", codes, shown(format.element), np.dtype(np.uint8))
    kept = float32 if format.scale_family == "float32" else format.scale.storage
    raw_scale = _part("scale", _beside(codes, "scale", scale), format.scale.dtype, kept)
    if (tensor_scale is None) == format.tensor_scale:
        expected = "a tensor_scale" if format.tensor_scale else "no tensor_scale"
        raise DTypeError(message(_OP, f"{expected} for {format}", tensor_scale, "pass what the format has"))
    word = None if tensor_scale is None else _tensor_scale(_beside(codes, "tensor_scale", tensor_scale))
    axis = _axis(format, axis, raw_codes.ndim)
    whole = _whole_shape(raw_codes.shape, axis, format, shape)
    expected_scale = scale_shape(format, whole, axis)
    if raw_scale.shape != expected_scale:
        do = "give one scale per block; lengths are rounded up"
        raise ShapeError(message(_OP, f"scales of shape {expected_scale}", raw_scale.shape, do))
    rows = (*whole[:axis], *whole[axis + 1 :]) if format.per_row_tensor_scale else ()
    if word is not None and word.shape != rows:
        do = "pass one per row" if format.per_row_tensor_scale else "pass one per tensor"
        raise ShapeError(message(_OP, f"a tensor_scale of shape {rows}", word.shape, do))
    _check_values(format, raw_codes, raw_scale, word)
    return Operand(raw_codes, raw_scale, word, format, whole, axis)


def shown(element: Element) -> np.dtype:
    """The dtype that codes show: the element's, or uint8 for packed ones."""
    return np.dtype(np.uint8) if element.packed else element.dtype


def _codes(codes: Any, format: QuantDType) -> Array:
    """Codes as an Array; torch's packed 4-bit tensors, which no dense dtype of nvfp stands for, as their bytes."""
    if format.element.packed and not isinstance(codes, Array | np.ndarray) and hasattr(codes, "__dlpack_device__"):
        raw = take_in_codes(codes)
        if raw is not None:
            return wrap(raw)
    return nf.asarray(codes)


def _beside(codes: Array, name: str, value: Any) -> Array:
    """A part on the device of the codes: data of the host goes there, an Array must be there."""
    if isinstance(value, Array) and value.device is not codes.device:
        do = "move one with .to_device(...)"
        raise DeviceError(message(_OP, f"{name} on {codes.device}, where the codes are", value.device, do))
    return nf.asarray(value, device=codes.device)


def _part(name: str, x: Array, dtype: np.dtype, raw_dtype: np.dtype) -> Any:
    if x.dtype not in (dtype, raw_dtype):
        expected = f"{name} as {raw_dtype}" + (f" or {dtype}" if dtype != raw_dtype else "")
        number = name == "scale" and (raw_dtype == float32 or isdtype(x.dtype, "real floating"))
        raise DTypeError(message(_OP, expected, x.dtype, f"cast it to {dtype}" if number else "pass codes, not values"))
    return x.raw if x.raw.dtype == raw_dtype else x.raw.view(raw_dtype)


def _tensor_scale(word: Array) -> Any:
    """The float32 factors; a single one may be any real number."""
    real = isinstance(word.dtype, np.dtype) and word.dtype.kind in "iuf"
    if word.dtype != float32 and not (real and word.shape == ()):
        raise DTypeError(message(_OP, "tensor_scale as float32, or one number", word.dtype, "cast it to float32"))
    return nf.astype(word.detach(), float32, copy=False).raw


def _axis(format: QuantDType, axis: int, ndim: int) -> int:
    across = (format.block_shape or (1, 1))[0]
    if ndim == 0 and (format.block is not None or format.element.packed):
        raise ShapeError(message(_OP, f"codes with an axis for {format}", "shape ()", "reshape them"))
    axis = axis_index(_OP, axis, ndim) if ndim else 0
    if across > 1 and (ndim < 2 or axis < ndim - 2):
        expected, got = f"one of the last two axes for blocks of {format.block}", f"axis {axis} of {ndim} dimensions"
        raise ShapeError(message(_OP, expected, got, "move that axis last"))
    return axis


def _whole_shape(codes: tuple[int, ...], axis: int, format: QuantDType, shape: Any) -> tuple[int, ...]:
    """The shape in elements; a given one must fit the codes."""
    if shape is None:
        return tuple(2 * n if format.element.packed and i == axis else n for i, n in enumerate(codes))
    lengths = shape if isinstance(shape, tuple | list) else ()
    whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in lengths)
    if not isinstance(shape, tuple | list) or len(lengths) != len(codes) or not whole:
        expected = f"a shape of {len(codes)} lengths"
        raise ShapeError(message(_OP, expected, shape, "leave it out, or correct it"))
    given = tuple(int(n) for n in lengths)
    if min(given, default=0) < 0:
        raise ShapeError(message(_OP, "lengths of 0 or more", shape, "leave it out, or correct it"))
    stored = codes_shape(format, given, axis)
    if stored != codes:
        do = "pack two 4-bit codes per byte" if format.element.packed else "leave shape out, or correct it"
        raise ShapeError(message(_OP, f"codes of shape {stored} for {given}", codes, do))
    return given


def _check_values(format: QuantDType, codes: Any, scale: Any, word: Any) -> None:
    """Refuse codes and factors that no format holds; on CUDA only under NVFP_DEBUG, as reading waits for the GPU."""
    if not isinstance(codes, np.ndarray) and not config.flag("NVFP_DEBUG"):
        return
    element, finite = format.element, format.nonfinite == "saturate"
    width = element.bits
    if 4 < width < 8 and codes.size and int(codes.max()) >> width:
        got = f"code {int(codes.max())}"
        raise ArgumentError(message(_OP, f"codes below {1 << width} for {element.name}", got, "clear the upper bits"))
    read: Any = nf.asnumpy(nf.asarray(scale))
    values = read.view(format.scale.dtype).astype(np.float32)  # NumPy knows the values of every scale format
    marks = "" if finite else ", or NaN for a NaN block"
    _check_factors("scale", values, f"decode factors >= 0 and finite{marks}", nan=not finite)
    if word is not None:
        _check_factors("tensor_scale", nf.asnumpy(nf.asarray(word)), "decode factors >= 0 and finite", nan=False)


def _check_factors(name: str, values: Any, expected: str, *, nan: bool) -> None:
    good = (values >= 0) & (values < np.inf)
    good = good | np.isnan(values) if nan else good
    if not good.all():
        got = values[~good].flat[0]
        raise ArgumentError(message(_OP, f"{name} as {expected}", got, "pass the scales that the codes were made with"))
