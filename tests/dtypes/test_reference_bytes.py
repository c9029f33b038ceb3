"""Bytes and scales made by Transformer Engine's kernels, its CPU reference, NVIDIA's headers and torchao."""

from __future__ import annotations

import numpy as np
import pytest

from nvfp.dtypes import elements as el
from nvfp.dtypes.block import dequantize_exact, quantize_exact
from nvfp.dtypes.formats import FORMATS, QuantDType, fp8_e4m3, fp8_e5m2, nvfp4
from nvfp.dtypes.packing import unpack
from tests.data.load import cases, load
from tests.oracles.quantize import quantize

MXFP4 = QuantDType("mxfp4", el.float4_e2m1fn, 32, el.float8_e8m0fnu)


@pytest.mark.parametrize("case", cases("te_quantizers", "input"))
def test_te_per_tensor(case: str) -> None:
    """Float8 current and delayed scaling on an H200: codes, transposed codes, stored scale, recorded amax."""
    tensors = {
        key.rsplit(".", 1)[1]: value for key, value in load("te_quantizers").items() if key.startswith(f"{case}.")
    }
    fmt = fp8_e4m3 if case.endswith("e4m3") else fp8_e5m2
    fmt = fmt.replace(power_of_two_scales=True) if case.startswith("current_pow2") else fmt
    blocks = quantize_exact(tensors["input"], fmt, scale=37.5 if case.startswith("delayed") else None)
    np.testing.assert_array_equal(blocks.codes, tensors["data"])
    np.testing.assert_array_equal(blocks.codes.T, tensors["transpose"])
    assert blocks.scale == tensors["scale_inv"][0]
    if "amax" in tensors:
        assert np.abs(tensors["input"].astype(np.float32)).max() == tensors["amax"][0]


@pytest.mark.parametrize("case", [c for c in cases("blocks_mx", "data") if ".mxfp8_" in c])
def test_mxfp8(case: str) -> None:
    """Rule ceil from NVIDIA's headers, rules ceil (on NaN and inf) and floor from torchao."""
    _, row, rule, data = case.split(".", 3)
    fmt = FORMATS[row].replace(scale_rule=rule)
    x = load("blocks_mx")[f"input.f32.mx.{data}.x"]
    blocks = quantize_exact(x, fmt)
    codes, scale = load("blocks_mx")[f"{case}.data"], load("blocks_mx")[f"{case}.scale"]
    np.testing.assert_array_equal(blocks.scale, scale)
    marked = np.repeat(scale == 0xFF, 32, axis=1)  # the codes of a NaN block are NaN, of whatever bits
    np.testing.assert_array_equal(blocks.codes[~marked], codes[~marked])
    assert np.isnan(dequantize_exact(blocks, fmt)[marked]).all()


@pytest.mark.parametrize("case", [c for c in cases("blocks_mx", "data") if ".mxfp4." in c])
def test_rule_even(case: str) -> None:
    data = case.split(".", 3)[3]
    blocks = quantize_exact(load("blocks_mx")[f"input.f32.mx.{data}.x"], MXFP4.replace(scale_rule="even"))
    np.testing.assert_array_equal(blocks.scale, load("blocks_mx")[f"{case}.scale"])
    np.testing.assert_array_equal(blocks.codes, unpack(load("blocks_mx")[f"{case}.data"], blocks.codes.shape[1]))


@pytest.mark.parametrize("side", ["", "columnwise_"], ids=["row", "col"])
@pytest.mark.parametrize("case", cases("blocks_nvfp4", "data"))
def test_nvfp4(case: str, side: str) -> None:
    """TE's reference, both sides as they are stored. It writes code 0 for what is exactly -0; all else is equal."""
    variant, data = case.split(".", 3)[2:]
    fmt = nvfp4 if variant == "1d" else nvfp4.replace(block=(16, 16))
    tensors = load("blocks_nvfp4")
    pair = quantize(tensors[f"input.f32.nvfp4.{data}.x"], fmt, row=not side, col=bool(side))
    operand = pair.col if side else pair.row
    assert operand is not None
    rows, columns = operand.stored_shape
    scale = operand.scale if variant == "1d" else np.repeat(operand.scale, 16, axis=0)[:rows]
    np.testing.assert_array_equal(scale, tensors[f"{case}.{side}scale"])
    codes, theirs = unpack(operand.codes, columns), unpack(tensors[f"{case}.{side}data"], columns)
    np.testing.assert_array_equal(without_minus_zero(codes), without_minus_zero(theirs))
    assert operand.tensor_scale == tensors[f"{case}.{side}amax"].reshape(()) / np.float32(2688)


def without_minus_zero(codes: np.ndarray) -> np.ndarray:
    return np.where(codes == 8, 0, codes)


def test_the_data_covers_what_it_should() -> None:
    kinds = {case.split(".", 3)[3].rsplit("-", 1)[0] for case in cases("blocks_nvfp4", "data")}
    assert {"normal", "outliers", "ties", "ties2d", "order", "tiny", "clamp", "wide"} <= kinds
    kinds = {case.split(".", 3)[3].rsplit("-", 1)[0] for case in cases("blocks_mx", "data")}
    assert {"normal", "outliers", "ties", "element_ties", "edges", "tiny", "wide", "nonfinite"} <= kinds
    assert len(cases("te_quantizers", "input")) == 16
