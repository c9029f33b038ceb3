"""Whole arrays against the worked examples of every scale family: codes, bytes, scales, dequantized values."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from nvfp.dtypes import elements as el
from nvfp.dtypes.block import dequantize_exact, quantize_exact
from nvfp.dtypes.codec import decode
from nvfp.dtypes.formats import QuantDType, fp8_e4m3, fp8_e5m2, mxfp8_e4m3, mxfp8_e5m2, nvfp4
from nvfp.dtypes.packing import pack
from tests.dtypes.inputs import f32


def bits(x: npt.ArrayLike) -> int:
    return int(np.asarray(x, np.float32).view(np.uint32))


def column(text: str) -> list[int]:
    return [int(byte, 16) for byte in text.split()]


# Input, codes, dequantized values (9 significant digits).
CURRENT = (
    fp8_e4m3, 0x432AAAAB, 0x3BC00000,
    [2.625, -1.1875, 0.40625, -0.015625, 0.0009765625, -2, 0],
    "7E F5 69 C3 23 FB 00",
    [2.625, -1.21875, 0.421875, -0.01611328125, 0.00100708008, -2.0625, 0],
)  # fmt: skip
CURRENT_POW2 = (
    fp8_e4m3.replace(power_of_two_scales=True), 0x43000000, 0x3C000000,
    [2.625, -1.1875, 0.40625, -0.015625, 0.0009765625, -2, 0],
    "7A F2 65 C0 20 F8 00",
    [2.5, -1.25, 0.40625, -0.015625, 0.0009765625, -2, 0],
)  # fmt: skip
GRADIENT = (
    fp8_e5m2, 0x47955555, 0x375B6DB7,
    [0.75, -0.1015625, 0.0078125, -(2.0**-15), 2.0**-17],
    "7B F0 61 C1 39",
    [0.75, -0.107142858, 0.00837053545, -3.26974041e-05, 8.17435102e-06],
)  # fmt: skip
B128 = QuantDType("b128", el.float8_e4m3fn, 128, el.float32, nonfinite="saturate")
BLOCK_INPUT = [0.8125, -0.3125, 0.1015625, -0.00390625, 0.000442504883, 0.7890625, *[0] * 122]
BLOCK_POW2 = (
    B128.replace(power_of_two_scales=True), 0x44000000, 0x3B000000, BLOCK_INPUT,
    "7D F2 65 C0 26 7D" + " 00" * 122,
    [0.8125, -0.3125, 0.1015625, -0.00390625, 0.000427246094, 0.8125, *[0] * 122],
)  # fmt: skip
BLOCK_FP32 = (
    B128, 0x4409D89E, 0x3AEDB6DB, BLOCK_INPUT,
    "7E F3 66 C1 28 7E" + " 00" * 122,
    [0.8125, -0.319196433, 0.1015625, -0.00408063596, 0.000453404005, 0.8125, *[0] * 122],
)  # fmt: skip


@pytest.mark.parametrize(
    "example", [CURRENT, CURRENT_POW2, GRADIENT, BLOCK_POW2, BLOCK_FP32], ids=lambda example: str(example[0])
)
def test_float32_scales(example: tuple[QuantDType, int, int, list[float], str, list[float]]) -> None:
    fmt, multiplier, stored, x, codes, values = example
    blocks = quantize_exact(np.array(x, ml_dtypes.bfloat16), fmt)
    assert blocks.multiplier is not None
    assert (bits(blocks.multiplier.ravel()[0]), bits(blocks.scale.ravel()[0])) == (multiplier, stored)
    assert blocks.codes.tolist() == column(codes)
    np.testing.assert_allclose(dequantize_exact(blocks, fmt), values, rtol=2e-9)
    assert blocks.scale.shape == (() if fmt.block is None else (1,))


# Element row, first elements of a block of 32, E8M0 byte, codes, dequantized values.
MX = [
    (
        mxfp8_e4m3, [3.75, -1, 0.30078125, -0.0078125, 0.00048828125, 2.625, 0, -0.000244140625], 0x79,
        "77 E8 5A B0 10 72 00 88",
        [3.75, -1, 0.3125, -0.0078125, 0.00048828125, 2.5, 0, -0.000244140625],
    ),
    (mxfp8_e4m3, [3.5, -1, 0.30078125], 120, "7E F0 62", [3.5, -1, 0.3125]),
    (mxfp8_e4m3, [3.515625, -1], 121, "76 E8", [3.5, -1]),
    (mxfp8_e5m2, [3.75, -1, 0.30078125, -0.000244140625], 0x72, "78 F0 69 C0", [4, -1, 0.3125, -0.000244140625]),
    (mxfp8_e4m3.replace(scale_rule="floor"), [3.75], 120, "7E", [3.5]),
    (mxfp8_e4m3, [0.0, -0.0], 0, "00 80", [0, -0.0]),
]  # fmt: skip


@pytest.mark.parametrize(("fmt", "head", "byte", "codes", "values"), MX)
def test_e8m0_scales(fmt: QuantDType, head: list[float], byte: int, codes: str, values: list[float]) -> None:
    blocks = quantize_exact(np.array([*head, *[0] * (32 - len(head))], np.float32), fmt)
    assert blocks.scale.tolist() == [byte]
    assert blocks.codes.tolist() == column(codes) + [0] * (32 - len(head))
    np.testing.assert_array_equal(dequantize_exact(blocks, fmt)[: len(head)], f32(values))


def test_mx_dot_of_codes() -> None:
    """The GEMM example: codes of both operands, and their dot product under the two scales."""
    x = quantize_exact([3.75, -1, 0.30078125, -0.0078125, 0.00048828125, 2.625, 0, -0.000244140625], mxfp8_e4m3)
    w = quantize_exact([1, 0.5, -0.75, 2, 1.25, -0.3125, 1, 1], mxfp8_e4m3)
    assert w.codes.tolist() == column("70 68 EC 78 72 E2 70 70")
    assert (x.scale.tolist(), w.scale.tolist()) == ([121], [120])
    dot = float(decode(x.codes, el.float8_e4m3fn) @ decode(w.codes, el.float8_e4m3fn))
    assert (dot, dot * 2.0**-13) == (18179, 2.2191162109375)


ROW = [
    6.5, -3.25, 1, 0.375, -0.09375, 2.140625, 0, 4.75,
    -5.5, 0.54296875, 0.8125, 1.625, -1.90625, 3, -0.2734375, 0.05859375,
    0.4375, -0.1875, 0.0302734375, 0.25, -0.015625, 0, 0.109375, -0.40625,
    0.3125, 0.0625, -0.0625, 0.1640625, 0.03125, 0.203125, -0.34375, 0.001953125,
]  # fmt: skip
ROW_CODES = [
    7, 13, 2, 1, 8, 4, 0, 6, 15, 1, 1, 3, 12, 5, 9, 0,
    7, 13, 1, 5, 8, 0, 3, 15, 6, 2, 10, 4, 1, 5, 14, 0,
]  # fmt: skip
# The table's values, made in TE's order of operations: fl(q * fl(fl(s * A) * fl(1 / 2688))).
TE_VALUES = [
    6.5, -3.25, 1.08333337, 0.541666687, 0, 2.16666675, 0, 4.33333349,
    -6.5, 0.541666687, 0.541666687, 1.625, -2.16666675, 3.25, -0.541666687, 0,
    0.435267866, -0.217633933, 0.0362723209, 0.217633933, 0, 0, 0.108816966, -0.435267866,
    0.290178567, 0.0725446418, -0.0725446418, 0.145089284, 0.0362723209, 0.217633933, -0.290178567, 0,
]  # fmt: skip


def test_nvfp4_row() -> None:
    blocks = quantize_exact(np.array(ROW, ml_dtypes.bfloat16), nvfp4)
    assert blocks.scale.tolist() == [0x7E, 0x5F]
    assert blocks.codes.tolist() == ROW_CODES
    assert pack(blocks.codes).tolist() == column("D7 12 48 60 1F 31 5C 09 D7 51 08 F3 26 4A 51 0E")
    assert blocks.tensor_scale == np.float32(6.5) / np.float32(2688)


def test_nvfp4_dequantizes_in_its_own_order() -> None:
    """fl(exact code * scale, times the tensor scale); TE multiplies the factors first: a last bit may differ."""
    blocks = quantize_exact(ROW, nvfp4)
    code, scale = decode(blocks.codes, el.float4_e2m1fn), np.repeat(decode(blocks.scale, el.float8_e4m3fn), 16)
    exact = (code * scale).astype(np.float32)
    np.testing.assert_array_equal(dequantize_exact(blocks, nvfp4, tensor_factors=False), exact)
    np.testing.assert_array_equal(dequantize_exact(blocks, nvfp4), exact * (np.float32(6.5) / np.float32(2688)))

    factor = scale.astype(np.float32) * np.float32(6.5) * np.float32(1 / 2688)
    assert (bits(factor[0]), bits(factor[16])) == (0x3F8AAAAB, 0x3D949249)
    theirs = code.astype(np.float32) * factor
    np.testing.assert_allclose(theirs, TE_VALUES, rtol=5e-9)  # the table has 9 digits
    np.testing.assert_allclose(dequantize_exact(blocks, nvfp4), theirs, rtol=2.0**-23)


def test_nvfp4_underflow_of_a_block_scale() -> None:
    """The scale rounds to 0: codes become the largest ones over it, and decode to zeros of their sign."""
    x = np.zeros(48)
    x[0], x[16:18], x[32] = 6.5, (2.0**-17, -(2.0**-18)), 2.0**-16
    blocks = quantize_exact(x, nvfp4)
    assert blocks.scale.tolist() == [0x7E, 0, 1]
    assert blocks.codes[16:18].tolist() == [7, 15]
    values = dequantize_exact(blocks, nvfp4)[16:18]
    assert values.tolist() == [0, 0]
    assert np.signbit(values).tolist() == [False, True]


def test_nvfp4_order_case() -> None:
    x = np.zeros(32)
    x[0], x[16] = 1.015625, 0.76171875
    assert quantize_exact(x, nvfp4).scale.tolist() == [0x7E, 0x7B]


def test_nvfp4_dot() -> None:
    """Block dots and their sum of the worked GEMM."""
    w = np.zeros(32)
    w[:8], w[16:20] = [0.5, -0.25, 0.125, 1, 0.75, -0.375, 0, 0.25], [1, 0.5, -0.5, 0.25]
    x, y = quantize_exact(ROW, nvfp4), quantize_exact(w, nvfp4)
    assert pack(y.codes).tolist() == column("B5 72 C6 30 00 00 00 00 57 3D 00 00 00 00 00 00")
    dots = (decode(x.codes, el.float4_e2m1fn) * decode(y.codes, el.float4_e2m1fn)).reshape(2, 16).sum(1)
    scale = decode(x.scale, el.float8_e4m3fn) * decode(y.scale, el.float8_e4m3fn)
    assert (dots.tolist(), scale.tolist(), float(dots @ scale)) == ([28.5, 30], [200704, 13440], 6123264)
