"""`kernels.dequantize` against the exact twin, bit for bit, on every device."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.block import ExactBlocks, dequantize_exact, quantize_exact
from nvfp.dtypes.formats import QuantDType, fp8_e4m3, mxfp8_e4m3, nvfp4
from nvfp.dtypes.packing import unpack
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.operand import Operand
from nvfp.kernels.quantize import quantize
from tests.devices import to_device, to_numpy
from tests.kernels.quantized import BF16, BUILT, DTYPES, F16, F32, F64, KINDS, MADE, nvfp4_2d, same_bits, values

ROWS = (*BUILT, *MADE)
by_name = {"ids": lambda fmt: fmt.name}


def exact(x: np.ndarray, fmt: QuantDType, axis: int, dtype: np.dtype = F32, **options: Any) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.array(
            dequantize_exact(quantize_exact(x, fmt, axis=axis), fmt, x.shape, axis, dtype, **options), order="C"
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fmt", ROWS, **by_name)
def test_both_sides(device: Device, fmt: QuantDType, kind: str) -> None:
    x = values(kind, (37, 75))
    pair = quantize(to_device(x, device), fmt, col=True)
    for operand, axis in ((pair.row, 1), (pair.col, 0)):
        assert same_bits(dequantize(operand, F32), exact(x, fmt, axis))
        assert same_bits(dequantize(operand, F32, tensor_factors=False), exact(x, fmt, axis, tensor_factors=False))


@pytest.mark.sanitizer
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fmt", (*BUILT, MADE[3], MADE[17]), **by_name)
def test_output_dtypes(device: Device, fmt: QuantDType, dtype: np.dtype) -> None:
    for kind in ("wide", "huge"):  # huge: float16 overflows to inf
        x = values(kind, (33, 130))
        pair = quantize(to_device(x, device), fmt, col=True)
        for operand, axis in ((pair.row, 1), (pair.col, 0)):
            assert same_bits(dequantize(operand, dtype), exact(x, fmt, axis, dtype))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (33,), (2, 0, 3), (3, 5, 40), (2, 3, 4, 33), (3, 40000)], ids=str)
@pytest.mark.parametrize("fmt", BUILT, **by_name)
def test_shapes_and_axes(device: Device, fmt: QuantDType, shape: tuple[int, ...]) -> None:
    x = values("normal", shape)
    for axis in range(max(1, len(shape))):
        if (not shape and fmt.block is not None) or (isinstance(fmt.block, tuple) and axis < len(shape) - 2):
            continue
        if isinstance(fmt.block, tuple) and len(shape) < 2:
            continue
        row = quantize(to_device(x, device), fmt, axis=axis).row
        assert row is not None
        for dtype in (F32, BF16):
            assert same_bits(dequantize(row, dtype), exact(x, fmt, axis, dtype))


@pytest.mark.sanitizer
@pytest.mark.parametrize("fmt", (fp8_e4m3, mxfp8_e4m3, nvfp4, nvfp4_2d), **by_name)
@pytest.mark.parametrize("dtype", (F32, F16), ids=str)
def test_out_of_any_strides(device: Device, fmt: QuantDType, dtype: np.dtype) -> None:
    x = values("normal", (40, 64))
    pair = quantize(to_device(x, device), fmt, col=True)
    for operand, axis in ((pair.row, 1), (pair.col, 0)):
        for view in (np.s_[1, ::2, ::-1], np.s_[0, 40:, :64]):
            buffer = to_device(np.zeros((2, 80, 64), dtype), device)
            out = buffer[view]
            assert dequantize(operand, dtype, out=out) is out
            assert same_bits(out, exact(x, fmt, axis, dtype))
            assert to_numpy(buffer).astype(F32).any(axis=(1, 2)).tolist() == [view[0] == 0, view[0] == 1]


@pytest.mark.parametrize("fmt", (mxfp8_e4m3, nvfp4, nvfp4_2d, MADE[16]), **by_name)
def test_tiled_scales(device: Device, fmt: QuantDType) -> None:
    x = values("normal", (150, 200))
    pair = quantize(to_device(x, device), fmt, col=True, scale_layout="tiles128x4")
    for operand, axis in ((pair.row, 1), (pair.col, 0)):
        assert same_bits(dequantize(operand, F32), exact(x, fmt, axis))


def test_transposed_view(device: Device) -> None:
    x = values("normal", (40, 64))
    for fmt in (fp8_e4m3, mxfp8_e4m3, nvfp4, nvfp4_2d):
        row = quantize(to_device(x, device), fmt).row
        assert row is not None
        assert same_bits(dequantize(row.T, F32), np.ascontiguousarray(exact(x, fmt, 1).T))


def test_padded_codes(device: Device) -> None:
    x = values("normal", (5, 70))
    for fmt in (mxfp8_e4m3, nvfp4, fp8_e4m3):
        row = quantize(to_device(x, device), fmt).row
        assert row is not None
        codes = to_numpy(row.codes)
        poisoned = np.full((8, 96), 0x7F, np.uint8)
        poisoned[:5, : codes.shape[1]] = codes
        padded = dataclasses.replace(row, codes=to_device(poisoned, device)[:5, : codes.shape[1]])
        assert same_bits(dequantize(padded, F32), exact(x, fmt, 1))


def test_every_code_of_every_scale(device: Device) -> None:
    # H06: byte 0 is 2**-127 (a float32 subnormal), 134 is 128, 255 makes the block NaN.
    codes, scale = np.full((256, 32), 0x38, np.uint8), np.arange(256, dtype=np.uint8)[:, None]
    operand = Operand(to_device(codes, device), to_device(scale, device), None, mxfp8_e4m3, (256, 32), 1)
    got = to_numpy(dequantize(operand, F32))
    wanted = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan).astype(F32)
    assert same_bits(got, np.repeat(wanted[:, None], 32, axis=1))
    assert got[0, 0] == 2.0**-127
    assert got[134, 0] == 128.0
    assert np.isnan(got[255]).all()


@pytest.mark.parametrize("fmt", (mxfp8_e4m3, nvfp4), **by_name)
def test_all_codes_under_all_scales(device: Device, fmt: QuantDType) -> None:
    block, width = fmt.block_shape[1] if fmt.block_shape else 1, 2 if fmt.element.packed else 1
    row = np.arange(256, dtype=np.uint8)
    codes = np.repeat(row[None], 256, axis=0)
    scale = np.repeat(row[:, None], 256 * width // block, axis=1)
    factor = np.array(3.0, F32) if fmt.tensor_scale else None
    operand = Operand(codes, scale, factor, fmt, (256, 256 * width), 1)
    blocks = ExactBlocks(unpack(codes, 512) if width == 2 else codes, scale, factor)
    moved = to_device(operand, device)
    assert same_bits(dequantize(moved, F32), dequantize_exact(blocks, fmt))


def test_what_does_not_fit(device: Device) -> None:
    row = quantize(to_device(values("normal", (8, 64)), device), mxfp8_e4m3).row
    assert row is not None
    with pytest.raises(TypeError, match="float32"):
        dequantize(row, np.dtype(np.int32))
    with pytest.raises(ValueError, match="out"):
        dequantize(row, F32, out=to_device(np.empty((8, 63), F32), device))
    with pytest.raises(ValueError, match="rebuild"):
        dequantize(dataclasses.replace(row, scale=row.scale[:, :1]), F32)
    with pytest.raises(ValueError, match="rebuild"):
        dequantize(dataclasses.replace(row, shape=(8, 65)), F32)
    with pytest.raises(ValueError, match="rebuild"):
        dequantize(dataclasses.replace(row, scale_layout="k_major128"), F64)
