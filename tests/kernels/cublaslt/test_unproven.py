"""MXFP8 and NVFP4 as compute capability 10.0 and newer multiply them: records, scales in tiles, padding.

Not yet run on that hardware: the emulated library reads operands and scales by the documentation's formulas.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nvfp.capability import Capability
from nvfp.device import Device
from nvfp.dtypes.formats import QuantDType, mxfp4, mxfp8_e4m3, mxfp8_e5m2, nvfp4
from nvfp.kernels import gemm as contract
from nvfp.kernels.cublaslt import plan, typemap as tm
from nvfp.kernels.cuda import _gemm_build
from nvfp.kernels.gemm import gemm
from nvfp.kernels.quantize import quantize
from tests.kernels.cublaslt.emulator import FakeLt
from tests.kernels.cublaslt.test_calls import problems
from tests.kernels.gemm_operands import BF16, F16, F32, dense, operand
from tests.kernels.test_gemm import agree

PAIRS = [
    (mxfp8_e4m3, mxfp8_e4m3, "VEC32_UE8M0"),
    (mxfp8_e5m2, mxfp8_e4m3, "VEC32_UE8M0"),
    (mxfp8_e4m3, mxfp8_e4m3.replace(block=(32, 32)), "VEC32_UE8M0"),
    (nvfp4, nvfp4, "VEC16_UE4M3"),
    (nvfp4, nvfp4.replace(block=(16, 16)), "VEC16_UE4M3"),
]
IDS = {"ids": str}


@pytest.fixture
def blackwell(device: Device, lt: FakeLt, monkeypatch: pytest.MonkeyPatch) -> FakeLt:
    """A chip that multiplies MX and NVFP4 operands, and the switch that lets nvfp hand them over."""
    monkeypatch.setenv("NVFP_UNPROVEN_GEMM", "1")
    monkeypatch.setattr(_gemm_build, "Device", lambda name: SimpleNamespace(compute_capability=(10, 0)))
    lt.major = 10
    return lt


@pytest.mark.parametrize(("left", "right", "mode"), PAIRS, **IDS)
def test_pairs_and_shapes(blackwell: FakeLt, device: Device, left: QuantDType, right: QuantDType, mode: str) -> None:
    rng = np.random.default_rng(95)
    for m, n, k in ((128, 128, 128), (40, 24, 96), (130, 264, 160), (5, 7, 70), (1, 1, 16)):
        a, b = operand(rng, left, (m, k)), operand(rng, right, (n, k)).T
        agree(device, a, b)
        agree(device, a, b, dtype=BF16, bias=dense(rng, (n,), BF16))
        agree(device, a, b, dtype=F16)
        agree(device, a, b, out=dense(rng, (m, n)), accumulate=True, alpha=np.asarray(np.float32(0.5)))
        agree(device, a, b, bias=dense(rng, (n,)))  # float32: no epilogue adds it
        for record in problems():
            assert record.x.scale == record.w.scale == mode and record.x.dtype == left.element.name
            assert record.device_alpha or mode == "VEC32_UE8M0"
            assert record.k % 32 == 0 and not record.fast_accumulation
        plan.forget_plans()


@pytest.mark.parametrize("fmt", [mxfp8_e4m3, nvfp4], **IDS)
def test_the_three_products_of_linear(blackwell: FakeLt, device: Device, fmt: QuantDType) -> None:
    rng, square = np.random.default_rng(96), fmt.replace(block=(16, 16)) if fmt is nvfp4 else fmt
    m, n, k = 64, 96, 160
    for layout in ("plain", "tiles128x4"):
        x, w, dy = (
            quantize(dense(rng, s, BF16), f, col=True, scale_layout=layout)
            for s, f in (((m, k), fmt), ((n, k), square), ((m, n), fmt))
        )
        assert x.row and x.col and w.row and w.col and dy.row and dy.col
        for a, b in ((x.row, w.row.T), (dy.row, w.col), (dy.col.T, x.col)):
            plain = [dataclasses.replace(s, scale=_plain(s), scale_layout="plain") for s in (a, b)]
            want = agree(device, *plain)
            np.testing.assert_array_equal(gemm(a, b), want)
    assert {r.x.dtype for r in problems()} == {fmt.element.name}


def _plain(x: Any) -> np.ndarray:
    from nvfp.kernels.dequantize import plain_scales

    return np.asarray(plain_scales(x).scale)


def test_what_cannot_go_in_is_expanded(blackwell: FakeLt, device: Device) -> None:
    rng = np.random.default_rng(97)
    cases = (
        (mxfp8_e5m2, mxfp8_e5m2, -1, False),
        (mxfp8_e4m3, nvfp4, -1, False),
        (mxfp4, mxfp4, -1, False),
        (nvfp4, nvfp4, 0, False),  # blocks along the other axis
        (nvfp4, nvfp4, -1, True),  # K is not stored last
    )
    for left, right, axis, transposed in cases:
        a, b = operand(rng, left, (32, 64), axis, transposed=transposed), operand(rng, right, (16, 64)).T
        agree(device, a, b)
    assert {r.x.scale for r in problems()} == {None}


def test_without_the_switch_they_are_expanded(
    blackwell: FakeLt, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Capability((10, 0)).gemm(nvfp4).level == "native"
    monkeypatch.delenv("NVFP_UNPROVEN_GEMM")
    assert "NVFP_UNPROVEN_GEMM" in Capability((10, 0)).gemm(nvfp4).reason
    rng = np.random.default_rng(98)
    agree(device, operand(rng, nvfp4, (32, 64)), operand(rng, nvfp4, (16, 64)).T, dtype=F32)
    assert [r.x.dtype for r in problems()] == ["bfloat16"]


def test_chips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVFP_UNPROVEN_GEMM", "1")
    for left, right, mode in PAIRS:
        for chip in ((10, 0), (10, 3), (12, 0), (12, 1)):
            assert str(tm.route(left, right, chip)) == f"native {mode}"
        assert tm.route(left, right, (9, 0)).modes is None


def test_layout_that_quantize_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "Device", lambda name: SimpleNamespace(compute_capability=(10, 0)))
    for switch, layout in (("0", "plain"), ("1", "tiles128x4")):
        contract._layout_on.cache_clear()
        monkeypatch.setenv("NVFP_UNPROVEN_GEMM", switch)
        assert contract._layout_on(nvfp4, 0) == layout
    contract._layout_on.cache_clear()
