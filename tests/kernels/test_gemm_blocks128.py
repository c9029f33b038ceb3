"""GEMM of FP8 matrices in float32-scaled blocks of 128: pairs, shapes, scale layouts, epilogues, padding, Linear."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.formats import QuantDType, fp8_e4m3_b128
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.gemm import gemm
from nvfp.kernels.operand import Operand
from nvfp.kernels.quantize import quantize
from tests.devices import to_device, to_numpy
from tests.kernels.gemm_operands import BF16, F16, F32, SQUARE128, dense, operand, padded
from tests.kernels.test_gemm import agree
from tests.oracles import gemm as oracle
from tests.tolerances import check

ROWS = fp8_e4m3_b128
FREE, NARROW = ROWS.replace(power_of_two_scales=False), ROWS.replace(element="float8_e5m2")
FREE_SQUARE = FREE.replace(block=(128, 128))
PAIRS = [(ROWS, ROWS), (ROWS, SQUARE128), (SQUARE128, ROWS), (NARROW, SQUARE128), (FREE, NARROW), (FREE_SQUARE, FREE)]
SHAPES = [(32, 48, 256), (130, 257, 300), (5, 7, 129), (1, 1, 400), (4, 8, 128), (260, 136, 272), (128, 128, 640)]
IDS = {"ids": lambda f: f.name}


def random_sides(left: QuantDType, right: QuantDType, m: int, n: int, k: int, seed: int = 70) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return operand(rng, left, (m, k)), operand(rng, right, (n, k)).T


def scaled(x: Operand, device: Device, layout: str) -> Operand:
    """The operand with its scales in a layout, on the device."""
    if layout == "plain":
        return to_device(x, device)  # type: ignore[no-any-return]
    square = x.format.square
    scale = oracle_layout(x.scale.T if square else x.scale)
    return dataclasses.replace(to_device(x, device), scale=to_device(scale, device), scale_layout="k_major128")


def oracle_layout(matrix: np.ndarray, beyond: float = 0.0) -> np.ndarray:
    """[rows, steps] as [steps, rows to a multiple of 4]; ``beyond`` fills the padding."""
    rows, steps = matrix.shape
    found = np.full((steps, -(-rows // 4) * 4), beyond, np.float32)
    found[:, :rows] = matrix.T
    return found


@pytest.mark.parametrize(("left", "right"), PAIRS, **IDS)
def test_pairs_and_shapes(device: Device, left: QuantDType, right: QuantDType) -> None:
    for m, n, k in SHAPES:
        a, b = random_sides(left, right, m, n, k)
        expected = oracle.gemm(a, b)
        for result in (F32, BF16, F16):
            found = {}
            for layout in ("plain", "k_major128"):
                x, w = scaled(a, device, layout), scaled(b.T, device, layout).T
                found[layout] = to_numpy(gemm(x, w, dtype=result))
                check(found[layout], expected.value, "gemm_block128", scale=expected.scale)
            assert found["plain"].tobytes() == found["k_major128"].tobytes()


@pytest.mark.parametrize(("left", "right"), PAIRS[:3], **IDS)
def test_bias_alpha_and_accumulation(device: Device, left: QuantDType, right: QuantDType) -> None:
    rng, word = np.random.default_rng(71), np.asarray(np.float32(0.75))
    for m, n, k in ((32, 48, 256), (9, 21, 140), (130, 12, 128)):
        a, b = random_sides(left, right, m, n, k)
        for result in (F32, BF16):
            bias = dense(rng, (n,), BF16).astype(result)
            agree(device, a, b, "gemm_block128", dtype=result, bias=bias, fast_accumulation=True)
            agree(device, a, b, "gemm_block128", out=dense(rng, (m, n), result), accumulate=True, bias=bias, alpha=word)
            agree(device, a, b, "gemm_block128", out=dense(rng, (m, n), result).T.copy().T, accumulate=True)
            agree(device, a, b, dtype=result, exact=True)
        found = to_numpy(gemm(*(to_device(x, device) for x in (a, b)), bias=to_device(dense(rng, (n,)), device)))
        assert found.dtype == F32


@pytest.mark.parametrize(("left", "right"), PAIRS[:3], **IDS)
def test_padding_is_never_read_as_data(device: Device, left: QuantDType, right: QuantDType) -> None:
    for m, n, k in ((33, 24, 200), (5, 7, 129), (131, 20, 48)):
        a, b = random_sides(left, right, m, n, k)
        plain = agree(device, a, b, "gemm_block128", dtype=BF16)
        for zeros in (True, False):
            pa, pb = padded(a, zeros=zeros), padded(b.T, zeros=zeros).T
            np.testing.assert_array_equal(agree(device, pa, pb, "gemm_block128", dtype=BF16), plain)
        poisoned = []
        for x in (a, b.T):
            scale = oracle_layout(x.scale.T if x.format.square else x.scale, np.nan)
            laid = dataclasses.replace(to_device(x, device), scale=to_device(scale, device), scale_layout="k_major128")
            poisoned.append(laid)
        np.testing.assert_array_equal(to_numpy(gemm(poisoned[0], poisoned[1].T, dtype=BF16)), plain)


def test_what_no_mode_takes_is_expanded(device: Device) -> None:
    rng = np.random.default_rng(72)
    m, n, k = 24, 40, 260
    agree(device, *random_sides(SQUARE128, SQUARE128, m, n, k))
    agree(device, *random_sides(NARROW, NARROW, m, n, k))
    agree(device, operand(rng, ROWS, (m, k), 0), operand(rng, ROWS, (n, k)).T, "gemm_block128")  # blocks across K
    agree(device, operand(rng, ROWS, (3, m, k)), operand(rng, SQUARE128, (n, k)).T, "gemm_block128")
    agree(device, operand(rng, ROWS, (m, k)), dense(rng, (k, n), BF16))


@pytest.mark.parametrize("stored", [(False, False), (True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize(("left", "right"), PAIRS[:3], **IDS)
def test_every_storage(device: Device, left: QuantDType, right: QuantDType, stored: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(73)
    a = operand(rng, left, (140, 260), 1, transposed=stored[0])
    b = operand(rng, right, (260, 136), 0, transposed=stored[1])
    agree(device, a, b, "gemm_block128")


@pytest.mark.sanitizer
@pytest.mark.parametrize("shape", [(128, 256, 384), (150, 136, 270), (21, 35, 50)], ids=str)
@pytest.mark.parametrize("layout", ["plain", "k_major128"])
@pytest.mark.parametrize("row", [ROWS, FREE], **IDS)
def test_the_three_products_of_linear(device: Device, row: QuantDType, layout: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(74)
    m, n, k = shape
    square = row.replace(block=(128, 128))
    x, w, dy = (
        quantize(to_device(dense(rng, s, BF16), device), f, col=True, scale_layout=layout)
        for s, f in (((m, k), row), ((n, k), square), ((m, n), row))
    )
    assert x.row and x.col and w.row and w.col and dy.row and dy.col
    for a, b in ((x.row, w.row.T), (dy.row, w.col), (dy.col.T, x.col)):
        left, right = (to_numpy(dequantize(side, F32)).astype(np.float64) for side in (a, b))
        for result in (BF16, F32):
            check(to_numpy(gemm(a, b, dtype=result)), left @ right, "gemm_block128", scale=np.abs(left) @ np.abs(right))
        twice = (to_numpy(gemm(a, b, dtype=BF16)).tobytes() for _ in range(2))
        assert next(twice) == next(twice)


def test_transformer_engine_example(device: Device) -> None:
    """TE's rules worked out by hand: one row of x in a 1 x 128 block, one of w in a 128 x 128 block."""
    x, w = np.zeros((4, 128), np.float32), np.zeros((4, 128), np.float32)
    x[0, :6] = [0.8125, -0.3125, 0.1015625, -0.00390625, 0.000442504883, 0.7890625]
    w[0, :6] = [1.5, -0.25, 0.75, 0.5, -1, 0.125]
    a = quantize(to_device(x, device), ROWS).row
    b = quantize(to_device(w, device), SQUARE128).row
    assert a is not None and b is not None
    assert (to_numpy(a.scale)[0, 0], to_numpy(b.scale)[0, 0]) == (2.0**-9, 2.0**-8)
    codes = [to_numpy(side.codes)[0, :6].tobytes().hex().upper() for side in (a, b)]
    assert codes == ["7DF265C0267D", "7CE87470F860"]
    y = to_numpy(gemm(a, b.T))
    check(y[0, 0], 192968 * 2.0**-17, "gemm_block128", scale=2.0)
    assert not y[1:].any()
    if device.type == "cpu":  # Hopper's tensor cores keep 1.472168
        assert y[0, 0] == np.float32(1.47222900390625)
