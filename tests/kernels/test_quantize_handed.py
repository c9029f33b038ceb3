"""Kinds of fault seen in public software (H01 to H08, H11, H12), through the kernels, on every device."""

from __future__ import annotations

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.codec import Overflow
from nvfp.dtypes.elements import Element
from nvfp.dtypes.formats import QuantDType, fp8_e4m3, mxfp8, nvfp4
from nvfp.kernels.cast import cast
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.operand import Operand
from nvfp.kernels.quantize import quantize
from tests.devices import to_device, to_numpy
from tests.dtypes.test_handed import CASTS, H08, H08_VALUES, column
from tests.kernels.quantized import BF16, BUILT, F32, F64, MADE, same_bits

E4M3 = fp8_e4m3.element.dtype


def row(x: np.ndarray, fmt: QuantDType, device: Device, axis: int = -1) -> Operand:
    made = quantize(to_device(x, device), fmt, axis=axis).row
    assert made is not None
    return made


def values(operand: Operand) -> np.ndarray:
    return to_numpy(dequantize(operand, F32))


@pytest.mark.parametrize(
    ("case", "element", "overflow", "x", "codes"), CASTS, ids=[f"{c[0]}-{c[1].name}-{c[2]}" for c in CASTS]
)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_h01_to_h05(
    device: Device, dtype: np.dtype, case: str, element: Element, overflow: Overflow, x: list[float], codes: str
) -> None:
    source = np.array(x, F32).astype(dtype)
    got = to_numpy(cast(to_device(source, device), element.dtype, overflow=overflow))
    assert got.tolist() == column(codes), case
    # The same bytes when a quantizer writes them: multiplier 1, every packed and unpacked element.
    fmt = QuantDType("plain", element, None, "float32", nonfinite="saturate")  # type: ignore[arg-type]
    word = to_device(np.ones((), F32), device)
    made = quantize(to_device(source, device), fmt, scale=word, overflow=overflow).row
    assert made is not None
    exact = to_numpy(made.codes)
    nibbles = np.stack([exact & 15, exact >> 4], -1).reshape(-1)[: len(x)] if element.packed else exact
    assert nibbles.tolist() == column(codes), case


def test_h04_and_h06_decode(device: Device) -> None:
    e5m2 = to_device(np.array(column("7B 7C FC 7D 7E 7F"), np.uint8), device)
    got = to_numpy(cast(e5m2, F32, source=np.dtype("float8_e5m2")))
    np.testing.assert_array_equal(got, np.float32([57344, np.inf, -np.inf, np.nan, np.nan, np.nan]))
    for byte, value in ((0, 2.0**-127), (134, 128.0), (255, np.nan)):
        codes, scale = np.full((1, 32), 0x38, np.uint8), np.array([[byte]], np.uint8)
        block = Operand(to_device(codes, device), to_device(scale, device), None, mxfp8, (1, 32), 1)
        np.testing.assert_array_equal(values(block), np.full((1, 32), value, F32))


@pytest.mark.parametrize("fmt", (*BUILT, *MADE), ids=lambda fmt: fmt.name)
def test_h07_zeros(device: Device, fmt: QuantDType) -> None:
    for zero in (0.0, -0.0):
        x = np.full((40, 64), zero, F32)
        pair = quantize(to_device(x, device), fmt, col=True)
        for side in (pair.row, pair.col):
            assert side is not None
            back = values(side)
            assert (back == 0).all()
            assert fmt.element.integer or (np.signbit(back) == np.signbit(x)).all()
            scale = to_numpy(side.scale)
            assert np.isfinite(scale).all() if scale.dtype == F32 else not (scale == fmt.scale.nan_code).any()
            assert side.tensor_scale is None or np.isfinite(to_numpy(side.tensor_scale))


def test_h07_a_zero_block_beside_one_that_is_not(device: Device) -> None:
    x = np.zeros(32, F32)
    x[16] = 6
    made = row(x, nvfp4, device)
    assert to_numpy(made.scale).tolist() == [0, 0x7E]
    assert to_numpy(made.codes).tolist() == [*[0] * 8, 7, *[0] * 7]
    assert to_numpy(made.tensor_scale) == np.float32(0.0022321429569274187)
    back = values(made)
    assert abs(back[16] - 6) <= 2.0**-21
    assert np.flatnonzero(back).tolist() == [16]


def test_h08_two_levels(device: Device) -> None:
    made = row(np.array(H08, F32), nvfp4, device)
    assert to_numpy(made.tensor_scale) == 0.5
    assert to_numpy(made.scale).tolist() == [0x7E, 0x40, 0x45]
    assert to_numpy(made.codes)[8:16].tolist() == column("F7 66 44 22 80 D1 76 80")
    back = values(made)
    np.testing.assert_array_equal(back, H08_VALUES)
    np.testing.assert_array_equal(np.signbit(back), np.signbit(H08_VALUES))
    beyond = row(np.array([26880, *[0] * 15], F32), nvfp4, device)
    assert to_numpy(beyond.tensor_scale) == 10
    assert to_numpy(beyond.scale).tolist() == [0x7E]
    assert values(beyond)[0] == 26880
    negative = row(np.array([-1344, 6, *[0] * 14], F32), nvfp4, device)
    assert to_numpy(negative.tensor_scale) == 0.5


@pytest.mark.parametrize("dtype", [F32, BF16, F64], ids=str)
def test_h11_blocks_do_not_run_over_the_row_end(device: Device, dtype: np.dtype) -> None:
    x = np.ones((2, 48), dtype)
    x[1] = 2**20
    for made in (row(x, mxfp8, device), row(np.ascontiguousarray(x.T), mxfp8, device, axis=0).T):
        scale = to_numpy(made.scale)
        assert (scale.T if made.transposed else scale).tolist() == [[119, 119], [139, 139]]
        assert made.shape == (2, 48)
        np.testing.assert_array_equal(values(made), x.astype(F32))


@pytest.mark.parametrize("fmt", (mxfp8, nvfp4, MADE[7], MADE[17]), ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("length", [1, 15, 17, 31, 33, 48, 63])
def test_h11_each_row_alone_gives_what_it_gives_in_the_matrix(device: Device, fmt: QuantDType, length: int) -> None:
    x = np.random.default_rng(length).standard_normal((3, length)).astype(F32) * np.array([[1], [2**20], [2**-9]], F32)
    amax = {"amax": to_device(np.array(np.abs(x).max()), device)} if fmt.tensor_scale else {}
    whole = quantize(to_device(x, device), fmt, **amax).row
    assert whole is not None
    for r in range(3):
        alone = quantize(to_device(x[r], device), fmt, **amax).row
        assert alone is not None
        assert same_bits(alone.codes, to_numpy(whole.codes)[r])
        assert same_bits(alone.scale, to_numpy(whole.scale)[r])


def test_h12_strides(device: Device) -> None:
    a = np.arange(6, dtype=F32).reshape(2, 3)
    for view, right in (
        (a.T, [[0, 3], [1, 4], [2, 5]]),
        (a[:, ::2], [[0, 2], [3, 5]]),
        (a[::-1, ::-1], [[5, 4, 3], [2, 1, 0]]),
    ):
        codes = cast(to_device(view, device), E4M3)
        assert to_numpy(cast(codes, F32, source=E4M3)).tolist() == right
    b = np.outer(np.ones(32, F32), np.array([1, 2**20], F32))
    made, copied = row(b.T, mxfp8, device), row(np.ascontiguousarray(b.T), mxfp8, device)
    assert to_numpy(made.scale).tolist() == to_numpy(copied.scale).tolist() == [[119], [139]]
    assert same_bits(made.codes, to_numpy(copied.codes))
    np.testing.assert_array_equal(values(made), b.T)
