"""Bytes and scales made by Transformer Engine's kernels, its CPU reference, NVIDIA's headers and torchao."""

from __future__ import annotations

import numpy as np
import pytest

from nvfp.dtypes.block import dequantize_exact, quantize_exact
from nvfp.dtypes.formats import FORMATS, fp8_e4m3, fp8_e5m2, nvfp4
from nvfp.dtypes.packing import unpack
from tests.data.load import cases, load
from tests.oracles.quantize import quantize


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


@pytest.mark.parametrize("case", [c for c in cases("blocks_mx", "data") if not c.startswith("microxcaling")])
def test_mx(case: str) -> None:
    """Rule ceil from NVIDIA's headers; ceil (on NaN and inf), floor and even from torchao; int8 from gfloat."""
    _, row, rule, data = case.split(".", 3)
    fmt = FORMATS[row].replace(scale_rule=rule)
    x = load("blocks_mx")[f"input.f32.mx.{data}.x"]
    blocks = quantize_exact(x, fmt)
    codes, scale = load("blocks_mx")[f"{case}.data"], load("blocks_mx")[f"{case}.scale"]
    codes = unpack(codes, x.shape[1]) if fmt.element.packed else codes
    np.testing.assert_array_equal(blocks.scale, scale)
    marked = np.repeat(scale == 0xFF, 32, axis=1)  # the codes of a NaN block are not meant
    np.testing.assert_array_equal(blocks.codes[~marked], codes[~marked])
    assert np.isnan(dequantize_exact(blocks, fmt)[marked]).all()
    assert not np.isnan(dequantize_exact(blocks, fmt)[~marked]).any()


@pytest.mark.parametrize("case", cases("blocks_mx", "data"))
def test_mx_conventions(case: str) -> None:
    """torchao and microxcaling by name; NVIDIA's headers follow Transformer Engine's rule, and gfloat OCP's."""
    reference, row, rule, data = case.split(".", 3)
    name = {"cuda_headers": "te", "gfloat": "ocp"}.get(reference, reference)
    if name == "te" and not row.startswith("mxfp8"):
        return
    fmt = FORMATS[row].replace(scale_rule=rule) if name == "torchao" else FORMATS[row]
    blocks = quantize_exact(load("blocks_mx")[f"input.f32.mx.{data}.x"], fmt, convention=name)
    codes, scale = load("blocks_mx")[f"{case}.data"], load("blocks_mx")[f"{case}.scale"]
    codes = unpack(codes, blocks.codes.shape[1]) if fmt.element.packed else codes
    np.testing.assert_array_equal(blocks.scale, scale)
    marked = np.repeat(scale == 0xFF, 32, axis=1)
    np.testing.assert_array_equal(blocks.codes[~marked], codes[~marked])


@pytest.mark.parametrize("case", cases("blocks_checkpoints", "data"))
def test_checkpoint_conventions(case: str) -> None:
    """NVFP4 weights as modelopt and compressed-tensors write them; the latter stores the encode factor."""
    name, _, _, data = case.split(".", 3)
    tensors = load("blocks_checkpoints")
    x = tensors[f"input.f32.nvfp4.{data}.x"]
    blocks = quantize_exact(x, nvfp4, convention=name.replace("_", "-"))
    np.testing.assert_array_equal(blocks.scale, tensors[f"{case}.scale"])
    np.testing.assert_array_equal(blocks.codes, unpack(tensors[f"{case}.data"], x.shape[1]))
    if name == "modelopt":
        assert blocks.tensor_scale == tensors[f"{case}.scale_2"].reshape(())
    else:
        assert blocks.tensor_scale == np.float32(1) / tensors[f"{case}.global_scale"].reshape(())
    given = quantize_exact(x, nvfp4, convention=name.replace("_", "-"), amax=np.abs(x).max())
    np.testing.assert_array_equal(given.codes, blocks.codes)


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


def test_minus_zero_in_the_reference() -> None:
    """docs/formats.md: Transformer Engine's PyTorch reference writes code 0 for -0 in FP4, nvfp code 8."""
    seen = 0
    for case in cases("blocks_nvfp4", "data"):
        x = load("blocks_nvfp4")[f"input.f32.nvfp4.{case.split('.', 3)[3]}.x"]
        zeros = (x == 0) & np.signbit(x)
        codes = unpack(load("blocks_nvfp4")[f"{case}.data"], x.shape[1])
        assert not codes[zeros].any()
        assert (quantize_exact(x, nvfp4).codes[zeros] == 8).all()
        seen += np.count_nonzero(zeros)
    assert seen > 10


def without_minus_zero(codes: np.ndarray) -> np.ndarray:
    return np.where(codes == 8, 0, codes)


def test_the_data_covers_what_it_should() -> None:
    kinds = {case.split(".", 3)[3].rsplit("-", 1)[0] for case in cases("blocks_nvfp4", "data")}
    assert {"normal", "outliers", "ties", "ties2d", "order", "tiny", "clamp", "wide"} <= kinds
    kinds = {case.split(".", 3)[3].rsplit("-", 1)[0] for case in cases("blocks_mx", "data")}
    assert {"normal", "outliers", "ties", "element_ties", "edges", "tiny", "wide", "nonfinite"} <= kinds
    assert len(cases("te_quantizers", "input")) == 16
