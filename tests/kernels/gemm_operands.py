"""Operands made by hand for GEMM tests: random codes and scales in any storage order, padded or poisoned."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np

from nvfp.device import Device
from nvfp.dtypes.codec import encode
from nvfp.dtypes.formats import (
    QuantDType,
    fp8_e4m3,
    fp8_e4m3_b128,
    fp8_e5m2,
    mxfp4,
    mxfp6_e3m2,
    mxfp8_e4m3,
    mxfp8_e5m2,
    mxint8,
    nvfp4,
)
from nvfp.dtypes.grid import block_lengths, grid_shape
from nvfp.dtypes.packing import pack
from nvfp.kernels.operand import Operand
from tests.devices import to_device

BF16, F16, F32, F64 = (np.dtype(t) for t in (ml_dtypes.bfloat16, np.float16, np.float32, np.float64))
DENSE = [F32, BF16, F16, F64]
SQUARE128 = fp8_e4m3_b128.replace(block=(128, 128))
FORMATS = [
    fp8_e4m3, fp8_e5m2, fp8_e4m3_b128, SQUARE128, mxfp8_e4m3, mxfp8_e5m2, mxfp6_e3m2, mxfp4, mxint8, nvfp4,
    nvfp4.replace(block=(16, 16)), QuantDType("e3m2_b24", "float6_e3m2fn", 24, "float8_e5m2"),
    QuantDType("int4_bf16", "int4", 32, "bfloat16"), QuantDType("int4_2d", "int4", (5, 7), "float16"),
]  # fmt: skip
NAN_CODE = 0x7F


def dense(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype = F32) -> np.ndarray:
    """Standard normal numbers."""
    return np.asarray(rng.standard_normal(shape).astype(dtype))


def operand(
    rng: np.random.Generator, fmt: QuantDType, shape: tuple[int, ...], axis: int = -1, *, transposed: bool = False
) -> Operand:
    """An Operand of NumPy arrays: random codes, block scales within a few powers of two, blocks along ``axis``."""
    axis %= len(shape)
    codes = encode(1.5 * rng.standard_normal(shape), fmt.element)
    grid = () if fmt.block is None else grid_shape(shape, block_lengths(shape, fmt, axis))
    scale = np.asarray(np.exp2(rng.integers(-3, 3, grid)) * (1 if fmt.power_of_two_scales else rng.uniform(1, 2, grid)))
    stored = scale.astype(np.float32) if fmt.scale.bits == 32 else encode(scale, fmt.scale)
    stored_axis = axis
    if transposed:
        codes = codes.swapaxes(-1, -2)
        stored = stored if fmt.block is None else stored.swapaxes(-1, -2)
        stored_axis = {len(shape) - 1: len(shape) - 2, len(shape) - 2: len(shape) - 1}.get(axis, axis)
    codes = pack(codes, stored_axis) if fmt.element.packed else np.ascontiguousarray(codes)
    return Operand(
        codes=codes, scale=np.ascontiguousarray(stored).reshape(stored.shape), format=fmt, shape=shape, axis=axis,
        tensor_scale=np.asarray(rng.uniform(0.5, 2), np.float32) if fmt.tensor_scale else None, transposed=transposed,
    )  # fmt: skip


def padded(x: Operand, *, zeros: bool, rows: int = 16) -> Operand:
    """The same codes inside a larger buffer whose other bytes are NaN codes.

    Args:
        x: an 8-bit Operand.
        zeros: whether the leading dimension is padded to 16 with zeros, and the rows to ``rows``, as quantize
            does it (``padded_rows`` then says so); else the codes just lie somewhere in other people's data.
        rows: unit of the row padding.
    """
    *batch, r, c = x.codes.shape
    rp, cp = -(-r // rows) * rows, -(-c // 16) * 16
    buffer = np.full((*batch, rp, cp + (0 if zeros else 16)), NAN_CODE, np.uint8)
    if zeros:
        buffer[..., :r, :] = 0
    buffer[..., :r, :c] = x.codes
    return dataclasses.replace(x, codes=buffer[..., :r, :c], padded_rows=rp if zeros else 0)


def moved(x: Any, device: Device | str) -> Any:
    """`to_device`, but codes of a padded Operand travel with the whole buffer that they are a view of."""
    found = to_device(x, device)
    if not isinstance(x, Operand) or not x.padded_rows or found is x:
        return found
    r, c = x.codes.shape[-2:]
    return dataclasses.replace(found, codes=to_device(x.codes.base, device)[..., :r, :c])
