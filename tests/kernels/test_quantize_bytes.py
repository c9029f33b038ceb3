"""Bytes and scales made by Transformer Engine, NVIDIA's headers and torchao, through the kernels, on every device."""

from __future__ import annotations

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.formats import FORMATS, fp8_e4m3, fp8_e4m3_b128, fp8_e5m2, nvfp4
from nvfp.dtypes.packing import unpack
from nvfp.kernels.quantize import quantize
from tests.data.load import cases, load
from tests.devices import to_device, to_numpy


def tensors_of(file: str, case: str) -> dict[str, np.ndarray]:
    return {key.rsplit(".", 1)[1]: value for key, value in load(file).items() if key.startswith(f"{case}.")}


@pytest.mark.parametrize("case", cases("te_quantizers", "input"))
def test_te_per_tensor(device: Device, case: str) -> None:
    """Float8 current and delayed scaling on an H200: codes, transposed codes, stored scale, recorded amax."""
    tensors = tensors_of("te_quantizers", case)
    fmt = fp8_e4m3 if case.endswith("e4m3") else fp8_e5m2
    fmt = fmt.replace(power_of_two_scales=True) if case.startswith("current_pow2") else fmt
    state = to_device(np.array(37.5, np.float32), device) if case.startswith("delayed") else None
    amax = to_device(np.zeros((), np.float32), device)
    pair = quantize(to_device(tensors["input"], device), fmt, col=True, scale=state, amax_out=amax)
    for side, data in ((pair.row, "data"), (pair.col, "transpose")):
        assert side is not None
        np.testing.assert_array_equal(to_numpy(side.codes), tensors[data])
        assert to_numpy(side.scale) == tensors["scale_inv"][0]
    if "amax" in tensors:
        assert to_numpy(amax) == tensors["amax"][0]


@pytest.mark.parametrize("case", cases("te_blocks128", "rowwise_data"))
def test_te_blocks_of_128(device: Device, case: str) -> None:
    """Float8 block scaling on an H200: codes of both copies, stored scales in the order that its GEMM reads."""
    tensors = tensors_of("te_blocks128", case)
    blocks, scales = case.split(".")[:2]
    fmt = fp8_e4m3_b128 if blocks == "block1d" else fp8_e4m3_b128.replace(block=(128, 128))
    fmt = fmt if scales == "pow2" else fmt.replace(power_of_two_scales=False)
    x = to_device(tensors["input"], device)
    pair, plain = quantize(x, fmt, col=True, scale_layout="k_major128"), quantize(x, fmt, col=True)
    for side, other, which in ((pair.row, plain.row, "rowwise"), (pair.col, plain.col, "columnwise")):
        assert side is not None and other is not None
        theirs = tensors[f"{which}_scale_inv"]
        np.testing.assert_array_equal(to_numpy(side.codes), tensors[f"{which}_data"])
        np.testing.assert_array_equal(to_numpy(other.codes), tensors[f"{which}_data"])
        rows, steps = other.scale.shape
        if blocks == "block1d":
            np.testing.assert_array_equal(to_numpy(side.scale), theirs)
            np.testing.assert_array_equal(to_numpy(other.scale), theirs.T)
        else:  # what their padding holds is not meant
            np.testing.assert_array_equal(to_numpy(side.scale)[:rows, :steps], theirs[:, :steps])
            np.testing.assert_array_equal(to_numpy(other.scale), theirs[:, :steps])
            assert side.scale.shape == theirs.shape


@pytest.mark.parametrize("case", [c for c in cases("blocks_mx", "data") if not c.startswith("microxcaling")])
def test_mx(device: Device, case: str) -> None:
    _, row, rule, data = case.split(".", 3)
    x, tensors = load("blocks_mx")[f"input.f32.mx.{data}.x"], tensors_of("blocks_mx", case)
    made = quantize(to_device(x, device), FORMATS[row].replace(scale_rule=rule)).row
    assert made is not None
    np.testing.assert_array_equal(to_numpy(made.scale), tensors["scale"])
    codes, theirs = to_numpy(made.codes), tensors["data"]
    marked = np.repeat(tensors["scale"] == 0xFF, codes.shape[1] // tensors["scale"].shape[1], axis=1)
    np.testing.assert_array_equal(codes[~marked], theirs[~marked])


@pytest.mark.parametrize("case", cases("blocks_nvfp4", "data"))
def test_nvfp4(device: Device, case: str) -> None:
    """TE's reference, both sides as they are stored. It writes code 0 for what is exactly -0; all else is equal."""
    variant, data = case.split(".", 3)[2:]
    fmt = nvfp4 if variant == "1d" else nvfp4.replace(block=(16, 16))
    tensors = tensors_of("blocks_nvfp4", case)
    x = load("blocks_nvfp4")[f"input.f32.nvfp4.{data}.x"]
    pair = quantize(to_device(x, device), fmt, col=True)
    for side, prefix in ((pair.row, ""), (pair.col, "columnwise_")):
        assert side is not None
        rows, columns = side.stored_shape
        scale = np.repeat(to_numpy(side.scale), (fmt.block_shape or (1, 1))[0], axis=0)[:rows]
        np.testing.assert_array_equal(scale, tensors[f"{prefix}scale"])
        codes, theirs = (unpack(c, columns) for c in (to_numpy(side.codes), tensors[f"{prefix}data"]))
        assert ((codes == theirs) | ((codes == 8) & (theirs == 0))).all()
        assert to_numpy(side.tensor_scale) == tensors[f"{prefix}amax"][0] / np.float32(2688)
