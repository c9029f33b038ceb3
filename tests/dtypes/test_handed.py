"""Twenty kinds of fault seen in public software: those of them that formats decide (H01 to H08, H11, H12)."""

from __future__ import annotations

import numpy as np
import pytest

from nvfp.dtypes import elements as el
from nvfp.dtypes.block import ExactBlocks, dequantize_exact, quantize_exact
from nvfp.dtypes.codec import Overflow, decode, encode
from nvfp.dtypes.elements import Element
from nvfp.dtypes.formats import FORMATS, QuantDType, fp8_e4m3, mxfp8, nvfp4
from nvfp.dtypes.packing import pack
from tests.dtypes.inputs import f32, u8

E4M3, E5M2, E2M1 = el.float8_e4m3fn, el.float8_e5m2, el.float4_e2m1fn
INF, NAN = np.inf, np.nan


def up(x: float) -> float:
    return float(np.nextafter(np.float32(x), np.float32(np.inf)))


def column(text: str) -> list[int]:
    return [int(byte, 16) for byte in text.split()]


CASTS: list[tuple[str, Element, Overflow, list[float], str]] = [
    ("H01", E4M3, "saturate", [4.25, 4.75, 17, 19, 232, 232.03684, 1.0625, 1.1875, -4.25, -4.75],
     "48 4A 58 5A 76 77 38 3A C8 CA"),
    ("H01", E5M2, "saturate", [1.125, 1.375, 1.625, 2.25, 2.75, 3.75, -1.125], "3C 3E 3E 40 42 44 BC"),
    ("H02", E2M1, "saturate", [.25, .75, 1.25, 1.75, 2.5, 3.5, 5, up(.25), up(5), .2499, 6.5, 100, -.25, -.1, -5],
     "0 2 2 4 4 6 6 1 7 0 7 7 8 8 E"),
    ("H03", E4M3, "saturate", [448, 464, 465, 480, 1000, -1000, INF, -INF, NAN], "7E 7E 7E 7E 7E FE 7E FE 7F"),
    ("H03", E4M3, "nonsat", [448, 464, 465, 480, 1000, -1000, INF, -INF, NAN], "7E 7E 7F 7F 7F FF 7F FF 7F"),
    ("H04", E5M2, "nonsat", [57344, 58000, 61439, 61440, 65536, 1e6, -1e6, INF, -INF, NAN],
     "7B 7B 7B 7C 7C 7C FC 7C FC 7F"),
    ("H04", E5M2, "saturate", [57344, 58000, 61439, 61440, 65536, 1e6, -1e6, INF, -INF, NAN],
     "7B 7B 7B 7B 7B 7B FB 7B FB 7F"),
    ("H05", E4M3, "saturate",
     [-0.0, -1e-9, 2**-10, up(2**-10), 3 * 2**-10, 5 * 2**-10, 0.9375 * 2**-6, -(2**-10)], "80 80 00 01 02 02 08 80"),
    ("H05", E5M2, "saturate", [-0.0, 2**-17, up(2**-17), 3 * 2**-17, 4.1e-25, 1e-24, 3.3e-24, 3 * 2**-16],
     "80 00 01 02 00 00 00 03"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "element", "overflow", "x", "codes"), CASTS, ids=[f"{c[0]}-{c[1].name}-{c[2]}" for c in CASTS]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_casts(case: str, element: Element, overflow: Overflow, x: list[float], codes: str, dtype: type) -> None:
    assert encode(np.array(x, np.float32).astype(dtype), element, overflow=overflow).tolist() == column(codes), case


def test_h04_decode() -> None:
    got = decode(u8(column("7B 7C FC 7D 7E 7F")), E5M2)
    np.testing.assert_array_equal(got, [57344, INF, -INF, NAN, NAN, NAN])


def test_h06_scale_bytes() -> None:
    got = decode(u8([0, 1, 126, 127, 128, 134, 254, 255]), el.float8_e8m0fnu)
    np.testing.assert_array_equal(got, [2.0**-127, 2.0**-126, 0.5, 1, 2, 128, 2.0**127, NAN])
    for byte, value in ((0, 2.0**-127), (134, 128.0), (255, NAN)):
        block = ExactBlocks(np.full(32, 0x38, np.uint8), u8([byte]))
        np.testing.assert_array_equal(dequantize_exact(block, mxfp8), np.full(32, value, np.float32))


@pytest.mark.parametrize("fmt", [*FORMATS.values(), nvfp4.replace(block=(16, 16))], ids=str)
def test_h07_zeros(fmt: QuantDType) -> None:
    blocks = quantize_exact(np.zeros((16, 32), np.float32), fmt)
    np.testing.assert_array_equal(dequantize_exact(blocks, fmt), np.zeros((16, 32)))
    scale = blocks.scale if fmt.scale_family == "float32" else decode(blocks.scale, fmt.scale)
    assert np.isfinite(scale).all()
    assert blocks.tensor_scale is None or np.isfinite(blocks.tensor_scale)


def test_h07_a_zero_block_beside_one_that_is_not() -> None:
    x = np.zeros(32, np.float32)
    x[16] = 6
    blocks = quantize_exact(x, nvfp4)
    assert blocks.scale.tolist() == [0, 0x7E]
    assert blocks.codes.tolist() == [*[0] * 16, 7, *[0] * 15]
    assert blocks.tensor_scale == np.float32(0.0022321429569274187)
    values = dequantize_exact(blocks, nvfp4)
    assert abs(values[16] - 6) <= 2.0**-21, "6 within one float32 rounding of the tensor scale"
    assert np.flatnonzero(values).tolist() == [16]


H08 = [
    1344, -896, 600, 112, 60, -50, 180, 400, 1150, *[0] * 7,
    6, -6, 5, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25, -0.25, 0.3, -2.6, 4.9, 5.1, 0, -0.0,
    10, 5, 1, -10, *[0] * 12,
]  # fmt: skip
H08_VALUES = [
    1344, -896, 672, 112, 112, -0.0, 224, 448, 1344, *[0] * 7,
    6, -6, 4, 4, 2, 2, 1, 1, 0, -0.0, 0.5, -3, 4, 6, 0, -0.0,
    9.75, 4.875, 0.8125, -9.75, *[0] * 12,
]  # fmt: skip


def test_h08_two_levels() -> None:
    blocks = quantize_exact(f32(H08), nvfp4)
    values = dequantize_exact(blocks, nvfp4)
    assert blocks.tensor_scale == 0.5
    assert blocks.scale.tolist() == [0x7E, 0x40, 0x45]
    np.testing.assert_array_equal(values, H08_VALUES)
    np.testing.assert_array_equal(np.signbit(values), np.signbit(H08_VALUES))
    packed = pack(blocks.codes).tolist()
    assert packed == column("E7 15 81 42 07 00 00 00 F7 66 44 22 80 D1 76 80 57 F1 00 00 00 00 00 00")


def test_h08_beyond_2688_and_negative_amax() -> None:
    blocks = quantize_exact(f32([26880, *[0] * 15]), nvfp4)
    assert blocks.tensor_scale == 10
    assert blocks.scale.tolist() == [0x7E]
    assert dequantize_exact(blocks, nvfp4)[0] == 26880
    blocks = quantize_exact(f32([-1344, 6, *[0] * 14]), nvfp4)
    assert blocks.tensor_scale == 0.5
    assert blocks.codes.tolist() == [15, *[0] * 15]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_h11_blocks_do_not_run_over_the_row_end(dtype: type) -> None:
    x: np.ndarray = np.ones((2, 48), dtype)
    x[1] = 2**20
    blocks = quantize_exact(x, mxfp8)
    assert blocks.scale.tolist() == [[119, 119], [139, 139]]
    np.testing.assert_array_equal(dequantize_exact(blocks, mxfp8), x)
    np.testing.assert_array_equal(dequantize_exact(quantize_exact(x.T, mxfp8, axis=0), mxfp8, axis=0), x.T)


@pytest.mark.parametrize("fmt", [f for f in FORMATS.values() if f.block is not None], ids=str)
@pytest.mark.parametrize("length", [1, 15, 17, 31, 33, 48, 63])
def test_h11_any_length(fmt: QuantDType, length: int) -> None:
    """Each row alone gives what it gives in the matrix."""
    x = np.random.default_rng(length).standard_normal((3, length)) * np.array([[1.0], [1.0], [2.0**-3]])
    amax = {"amax": np.abs(x).max()} if fmt.tensor_scale else {}
    whole = quantize_exact(x.astype(np.float32), fmt, **amax)
    for r in range(3):
        alone = quantize_exact(x[r].astype(np.float32), fmt, **amax)
        np.testing.assert_array_equal(whole.codes[r], alone.codes)
        np.testing.assert_array_equal(whole.scale[r], alone.scale)


def test_h12_strides() -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    views = [(a.T, [[0, 3], [1, 4], [2, 5]]), (a[:, ::2], [[0, 2], [3, 5]]), (a[::-1, ::-1], [[5, 4, 3], [2, 1, 0]])]
    for view, right in views:
        codes = encode(view, E4M3)
        assert codes.flags.c_contiguous
        assert decode(codes, E4M3).tolist() == right
        assert (
            dequantize_exact(quantize_exact(view * 64, fp8_e4m3, scale=1.0), fp8_e4m3).tolist()
            == (f32(right) * 64).tolist()
        )
    b = np.outer(np.ones(32, np.float32), f32([1, 2**20]))
    blocks, copied = quantize_exact(b.T, mxfp8), quantize_exact(np.ascontiguousarray(b.T), mxfp8)
    assert blocks.scale.tolist() == copied.scale.tolist() == [[119], [139]]
    np.testing.assert_array_equal(blocks.codes, copied.codes)
    np.testing.assert_array_equal(dequantize_exact(blocks, mxfp8), b.T)
