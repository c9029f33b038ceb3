"""`kernels.weight_only_gemm`: packing bit by bit, products against float64, what falls back, special values, errors."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from nvfp.device import Device
from nvfp.dtypes import elements as el
from nvfp.dtypes.formats import (
    QuantDType,
    fp8_e4m3,
    fp8_e4m3_b128,
    fp8_e5m2,
    mxfp4,
    mxfp6_e3m2,
    mxfp8_e4m3,
    mxfp8_e5m2,
    nvfp4,
)
from nvfp.errors import ArgumentError, DTypeError, ShapeError
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.operand import Operand
from nvfp.kernels.quantize import quantize
from nvfp.kernels.weight_only_gemm import prepack, unpack, weight_only_gemm
from tests.devices import to_device, to_numpy
from tests.kernels.gemm_operands import BF16, F16, F32, F64, SQUARE128, dense, operand
from tests.kernels.quantized import same_bits, values
from tests.oracles import weight_only_gemm as oracle
from tests.tolerances import check

NAMED = (fp8_e4m3, fp8_e5m2, fp8_e4m3_b128, mxfp8_e4m3, mxfp8_e5m2, mxfp4, nvfp4)
MADE = (
    SQUARE128,
    nvfp4.replace(block=(16, 16)),
    nvfp4.replace(block=8),
    nvfp4.replace(per_row_tensor_scale=True, name="nvfp4_rows"),
    mxfp4.replace(block=64),
    QuantDType("two_level16", el.float8_e4m3fn, 16, el.float8_e4m3fn, tensor_scale=True),
    QuantDType("fp4_tensor", el.float4_e2m1fn, None, el.float32),
    QuantDType("fp4_float32", el.float4_e2m1fn, 32, el.float32, nonfinite="saturate"),
    QuantDType("fp4_bf16", el.float4_e2m1fn, 64, el.bfloat16),
)
KEPT = (mxfp6_e3m2, nvfp4.replace(block=24), mxfp4.replace(block=16))  # no packed form
IDS = {"ids": lambda f: f.name}


def weight(fmt: QuantDType, n: int, k: int, seed: int = 80, *, transposed: bool = False) -> Operand:
    rng = np.random.default_rng(seed)
    found = operand(rng, fmt, (n, k), transposed=transposed)
    if not fmt.per_row_tensor_scale:
        return found
    return dataclasses.replace(found, tensor_scale=rng.uniform(0.5, 2, n).astype(np.float32))


def product(device: Device, x: np.ndarray, w: Operand, **options: Any) -> np.ndarray:
    """The product on the device, checked against float64."""
    moved = {
        name: to_device(value, device) if isinstance(value, np.ndarray) else value for name, value in options.items()
    }
    y = to_numpy(weight_only_gemm(to_device(x, device), prepack(to_device(w, device)), **moved))
    bias = options.get("bias")
    expected = oracle.weight_only_gemm(x, w, None if bias is None else bias.astype(y.dtype))
    check(y, expected.value, "weight_only_gemm", scale=expected.scale)
    return y


@pytest.mark.parametrize("fmt", (*NAMED, *MADE), **IDS)
def test_packing_is_exact(device: Device, fmt: QuantDType) -> None:
    """The bytes are the written ones, equal on every device, and come back; one row of each kind of weight is NaN."""
    for n, k, transposed in ((19, 140, False), (16, 64, True)):
        w = weight(fmt, n, k, transposed=transposed)
        on_cpu, packed = prepack(w), prepack(to_device(w, device))
        assert packed.operand is None
        if k == 140:
            assert np.array_equal(to_numpy(packed.codes), oracle.packed_codes(w))
        for one, other in zip(packed.arrays(), on_cpu.arrays(), strict=True):
            assert same_bits(one, other)
        assert np.array_equal(np.isnan(to_numpy(packed.factor))[:n], oracle.nan_rows(w))
        back, plain = unpack(packed), w
        if transposed:
            scale = w.scale if fmt.block is None else w.scale.swapaxes(0, 1)
            plain = dataclasses.replace(w, codes=w.codes.swapaxes(0, 1), scale=scale, transposed=False)
        assert (back.shape, back.axis, back.format) == (plain.shape, plain.axis, fmt)
        for one, other in zip(back.arrays(), plain.arrays(), strict=True):
            assert same_bits(one, np.ascontiguousarray(other).reshape(other.shape))


@pytest.mark.sanitizer
@pytest.mark.parametrize("fmt", (*NAMED, *MADE), **IDS)
def test_products(device: Device, fmt: QuantDType) -> None:
    """Few rows and many, ragged N and K, with and without bias, every pair of dtypes."""
    rng = np.random.default_rng(81)
    cases = (
        (1, 40, 256, BF16, BF16),
        (3, 19, 140, F16, F32),
        (8, 33, 257, BF16, F32),
        (16, 5, 64, F16, F16),
        (9, 20, 33, BF16, F16),
    )
    for m, n, k, source, target in cases if fmt in NAMED else cases[:2]:
        w, x = weight(fmt, n, k, seed=m), dense(rng, (m, k), source)
        product(device, x, w, dtype=target, bias=dense(rng, (n,), F32) if m != 8 else None)


def test_long_rows(device: Device) -> None:
    """Few tiles and a long K: more than one block along K on CUDA; the same bits again."""
    rng = np.random.default_rng(91)
    w, x, bias = weight(fp8_e4m3, 18, 9000), dense(rng, (2, 9000), BF16), dense(rng, (18,), BF16)
    assert product(device, x, w, bias=bias).tobytes() == product(device, x, w, bias=bias).tobytes()


@pytest.mark.parametrize("m", [0, 17, 40, 65])
def test_more_rows_than_one_pass(device: Device, m: int) -> None:
    """The rows of one pass after the other give the same bits; many go through `gemm`."""
    w, x = weight(nvfp4, 37, 100), dense(np.random.default_rng(82), (m, 100), BF16)
    y = product(device, x, w)
    assert y.shape == (m, 37)
    if 16 < m <= 64:
        assert y[16:32].tobytes() == product(device, x[16:32], w).tobytes()


def test_repeats_its_bits_and_any_strides(device: Device) -> None:
    rng = np.random.default_rng(83)
    x, w, bias = dense(rng, (5, 96), BF16), weight(mxfp8_e4m3, 48, 96), dense(rng, (48,), BF16)
    plain = product(device, x, w, bias=bias)
    for view in (np.repeat(x, 2, axis=1)[:, ::2], np.ascontiguousarray(x.T).T, x[::-1].copy()[::-1]):
        assert product(device, view, w, bias=np.repeat(bias, 2)[::2]).tobytes() == plain.tobytes()
    for shape in ((5, 48), (48, 5)):
        base = to_device(np.zeros((shape[0] + 1, shape[1] + 3), BF16), device)
        out = base[:-1, :-3] if shape[0] == 5 else base[:-1, :-3].T
        packed, moved = prepack(to_device(w, device)), to_device(x, device)
        assert weight_only_gemm(moved, packed, bias=to_device(bias, device), out=out) is out
        assert to_numpy(out).tobytes() == plain.tobytes()
        assert not to_numpy(base)[-1].any()
        assert not to_numpy(base)[:, -3:].any()


def test_poison_beside_x_is_never_read(device: Device) -> None:
    """Columns behind K and rows behind M are NaN."""
    whole = np.full((9, 128), np.nan, BF16)
    whole[:3, :72] = dense(np.random.default_rng(84), (3, 72), BF16)
    for fmt in (fp8_e4m3, nvfp4):
        w = weight(fmt, 20, 72)
        packed, x = prepack(to_device(w, device)), to_device(whole, device)[:3, :72]
        expected = oracle.weight_only_gemm(whole[:3, :72], w)
        check(to_numpy(weight_only_gemm(x, packed)), expected.value, "weight_only_gemm", scale=expected.scale)


@pytest.mark.parametrize("fmt", [fp8_e4m3, fp8_e5m2, mxfp8_e4m3, mxfp4, nvfp4, SQUARE128], **IDS)
def test_special_values(device: Device, fmt: QuantDType) -> None:
    """NaN blocks and codes make their row NaN; NaN and inf of x their own; infinite codes as in float64."""
    source = values("nonfinite", (24, 128), F32)
    w = quantize(source, fmt).row
    assert w is not None
    codes = w.codes.copy()
    if not fmt.element.packed:
        codes[3, 5] = 0xFF
    if fmt.element.has_inf:
        codes[7, 9] = fmt.element.overflow_code
    w = dataclasses.replace(w, codes=codes)
    x = dense(np.random.default_rng(85), (4, 128), BF16)
    x[1, 3], x[2, 40] = np.nan, np.inf
    with np.errstate(all="ignore"):
        y = product(device, x, w, dtype=F32)
    assert np.isnan(y[1]).all()
    assert np.array_equal(np.isnan(y[0]), oracle.nan_rows(w))


def test_ends_of_the_range(device: Device) -> None:
    """Scales at the ends of what E8M0 (inside float32) and E4M3 have, and every magnitude."""
    x = np.zeros((2, 256), F16)
    x[0, :] = 1.0
    x[1, 7] = 2.0**-20
    for fmt, ends in (
        (mxfp8_e4m3, (0, 1, 200, 235)),
        (mxfp4, (0, 127, 240)),
        (nvfp4, (0, 1, 8, 0x7E)),
        (MADE[5], (1, 0x7E)),
    ):
        w = weight(fmt, 16 * len(ends), 256)
        codes = (np.arange(w.codes.size, dtype=np.uint8) & 0x77).reshape(w.codes.shape)
        scale = np.repeat(np.uint8(ends), 16)[:, None] + np.zeros(w.scale.shape, np.uint8)
        w = dataclasses.replace(w, codes=codes, scale=scale)
        for source in (F16, BF16):
            with np.errstate(all="ignore"):
                expected = oracle.weight_only_gemm(x.astype(source), w).value.astype(F32)
            y = weight_only_gemm(to_device(x.astype(source), device), prepack(to_device(w, device)), dtype=F32)
            np.testing.assert_allclose(to_numpy(y), expected, rtol=1e-5)


@pytest.mark.parametrize("fmt", KEPT, **IDS)
def test_formats_without_a_packed_form(device: Device, fmt: QuantDType) -> None:
    w, x = weight(fmt, 20, 72), dense(np.random.default_rng(86), (3, 72), BF16)
    packed = prepack(to_device(w, device))
    assert packed.operand is unpack(packed)
    assert packed.nbytes == w.nbytes
    product(device, x, w)
    across = operand(np.random.default_rng(87), mxfp8_e4m3, (64, 40), 0)  # blocks along N
    assert prepack(across).operand is across
    product(device, dense(np.random.default_rng(88), (2, 40), F16), across)


def test_scale_layouts(device: Device) -> None:
    x = to_device(dense(np.random.default_rng(89), (128, 128), BF16), device)
    for layout in ("plain", "tiles128x4"):
        w = quantize(x, mxfp8_e4m3, scale_layout=layout).row  # type: ignore[arg-type]
        assert w is not None
        assert same_bits(dequantize(unpack(prepack(w)), F32), to_numpy(dequantize(w, F32)))


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(NAMED + MADE), st.integers(1, 20), st.integers(1, 40), st.integers(1, 200), st.integers(0, 99))
def test_drawn_shapes(fmt: QuantDType, m: int, n: int, k: int, seed: int) -> None:
    x = dense(np.random.default_rng(seed), (m, k), BF16)
    product(Device("cpu"), x, weight(fmt, n, k, seed), dtype=F32)


def test_errors() -> None:
    w, x = weight(nvfp4, 8, 32), np.ones((2, 32), BF16)
    packed = prepack(w)
    with pytest.raises(ShapeError, match=r"\[N, K\]"):
        prepack(operand(np.random.default_rng(0), nvfp4, (2, 8, 32)))
    with pytest.raises(ShapeError, match="codes and scale"):
        prepack(dataclasses.replace(w, codes=w.codes[:, :-1]))
    with pytest.raises(ArgumentError, match="rotated"):
        prepack(dataclasses.replace(w, rotation="rht16"))
    for wrong, kind in ((x[:, :-1], ShapeError), (x[0], ShapeError), (x.astype(F32), DTypeError)):
        with pytest.raises(kind):
            weight_only_gemm(wrong, packed)
    for options in ({"bias": np.ones(7, F32)}, {"out": np.ones((2, 7), BF16)}):
        with pytest.raises(ShapeError):
            weight_only_gemm(x, packed, **options)
    for options in ({"dtype": F64}, {"bias": np.ones(8, np.int32)}, {"out": np.ones((2, 8), F64)}):
        with pytest.raises(DTypeError):
            weight_only_gemm(x, packed, **options)
