"""The dialects against the libraries that define them: what they write is read, and they read what is written."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from tests.devices import need_oracle

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]
SHAPE = (130, 96)
BLOCKS = nf.QuantDType(element="float8_e4m3fn", block=(32, 32), scale="float32", nonfinite="saturate")


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """Their loggers write to a stream that pytest closes."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def _values(dtype: Any = None) -> Any:
    """Numbers whose amax is 2688 / 1024, so that the tensor scale and its inverse are exact in every convention."""
    torch = need_oracle("torch")
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).clamp(-2, 2)
    x[3, 5] = 2.625
    return x.to(dtype or torch.float32)


def _mine() -> nf.Array:
    return nf.asarray(_values().numpy(), device="cpu")


def _equal(mine: Any, theirs: Any) -> bool:
    return bool(np.array_equal(np.asarray(mine), theirs.float().numpy()))


# torchao


def _torchao(x: Any) -> dict[str, Any]:
    need_oracle("torchao")
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    from torchao.quantization import Float8Tensor, PerBlock, PerRow, PerTensor

    torch = need_oracle("torch")
    word = torch.tensor(2.0**-10)
    return {
        "row": Float8Tensor.from_hp(x, granularity=PerRow()),
        "tensor": Float8Tensor.from_hp(x, granularity=PerTensor()),
        "block": Float8Tensor.from_hp(x[:128], granularity=PerBlock((32, 32))),
        "mx8": MXTensor.to_mx(x, torch.float8_e4m3fn, 32),
        "mx4": MXTensor.to_mx(x, torch.float4_e2m1fn_x2, 32),
        "nvfp4": NVFP4Tensor.to_nvfp4(x[:128], per_tensor_scale=word, is_swizzled_scales=False),
        "tiled": NVFP4Tensor.to_nvfp4(x[:128], per_tensor_scale=word, is_swizzled_scales=True),
        "one level": NVFP4Tensor.to_nvfp4(x[:128]),
    }


@pytest.mark.parametrize("name", ["row", "tensor", "block", "mx8", "mx4", "nvfp4", "tiled", "one level"])
def test_files_of_torchao(tmp_path: Path, name: str) -> None:
    torch = need_oracle("torch")
    need_oracle("torchao")
    from safetensors.torch import save_file
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    theirs = _torchao(_values(torch.bfloat16))[name]
    tensors, metadata = flatten_tensor_state_dict({"l.weight": theirs, "norm.weight": torch.ones(3)})
    save_file(tensors, tmp_path / "model.safetensors", metadata=metadata)
    checkpoint = nf.files.open_checkpoint(tmp_path)
    assert checkpoint.dialect == "torchao" and list(checkpoint) == ["l.weight", "norm.weight"]
    assert _equal(checkpoint["l.weight"], theirs.dequantize(torch.float32))


@pytest.mark.parametrize(
    "dtype", [nf.fp8_e4m3, nf.fp8_e5m2, BLOCKS, nf.mxfp8, nf.mxfp4, nf.nvfp4], ids=lambda fmt: str(fmt)
)
def test_torchao_reads_what_is_written(tmp_path: Path, dtype: Any) -> None:
    torch = need_oracle("torch")
    need_oracle("torchao")
    from safetensors import safe_open
    from safetensors.torch import load_file
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    q = nf.quantize(_mine()[:128], dtype)  # torchao spreads whole blocks only
    nf.files.save_model(tmp_path / "m", {"l.weight": q, "l.bias": nf.ones((3,))}, dialect="torchao", config={})
    path = tmp_path / "m/model.safetensors"
    with safe_open(path, framework="pt") as file:
        found, rest = unflatten_tensor_state_dict(load_file(path), file.metadata())
    assert not rest and set(found) == {"l.weight", "l.bias"}
    assert _equal(q, found["l.weight"].dequantize(torch.float32))
    from torchao.core.config import config_from_dict

    stated = json.loads((tmp_path / "m/config.json").read_text())["quantization_config"]
    assert config_from_dict(stated["quant_type"]["default"]) is not None


# compressed-tensors


def _scheme(preset: str) -> Any:
    need_oracle("compressed_tensors")
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme

    return preset_name_to_scheme(preset, ["Linear"])


def _compressor(name: str) -> Any:
    need_oracle("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor

    return BaseCompressor.get_value_from_registry(name)


PRESETS = {
    "float-quantized": ("FP8", nf.fp8_e4m3),
    "nvfp4-pack-quantized": ("NVFP4A16", nf.nvfp4),
    "mxfp4-pack-quantized": ("MXFP4A16", nf.mxfp4),
    "mxfp8-quantized": ("MXFP8A16", nf.mxfp8),
}


@pytest.mark.parametrize("name", list(PRESETS))
def test_files_of_compressed_tensors(tmp_path: Path, name: str) -> None:
    """Their compressor writes, nvfp reads; nvfp writes, their compressor reads."""
    compressor, torch = _compressor(name), need_oracle("torch")
    from compressed_tensors.quantization import QuantizationConfig
    from safetensors.torch import load_file, save_file

    preset, dtype = PRESETS[name]
    scheme, q = _scheme(preset), nf.quantize(_mine(), dtype)
    nf.files.save_model(tmp_path / "mine", {"l.weight": q}, dialect="compressed-tensors", config={})
    written = {k.removeprefix("l."): v for k, v in load_file(tmp_path / "mine/model.safetensors").items()}
    assert _equal(q, compressor.decompress(written, scheme)["weight"])
    stated = json.loads((tmp_path / "mine/config.json").read_text())["quantization_config"]
    config = QuantizationConfig(**stated)
    group = config.config_groups["group_0"]
    assert config.format == name and group.weights.strategy == scheme.weights.strategy
    assert (group.weights.group_size, group.weights.num_bits) == (scheme.weights.group_size, scheme.weights.num_bits)
    # the other way: the same scales, in the high precision that their compressor starts from
    scale = torch.from_numpy(np.array(np.asarray(q.scale).astype(np.float32)))
    state = {"weight": _values(), "weight_scale": scale.reshape(scale.shape or (1,))}
    if q.tensor_scale is not None:
        state["weight_global_scale"] = torch.tensor([1024.0])
    theirs = compressor.compress(state, scheme)
    (tmp_path / "theirs").mkdir()
    save_file({f"l.{k}": v.contiguous() for k, v in theirs.items()}, tmp_path / "theirs/model.safetensors")
    checkpoint = nf.files.open_checkpoint(tmp_path / "theirs")
    assert checkpoint.entries["l.weight"].kind == name
    assert _equal(checkpoint["l.weight"], compressor.decompress(theirs, scheme)["weight"])


# NVIDIA Model Optimizer


def test_files_of_modelopt(tmp_path: Path) -> None:
    need_oracle("modelopt")
    torch = need_oracle("torch")
    from modelopt.torch.quantization.qtensor import NVFP4QTensor
    from safetensors.torch import load_file, save_file

    theirs, scale, word = NVFP4QTensor.quantize(_values(), 16)
    tensors = {"l.weight": theirs._quantized_data, "l.weight_scale": scale, "l.weight_scale_2": word}
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = nf.files.open_checkpoint(tmp_path)
    assert checkpoint.dialect == "modelopt" and checkpoint["l.weight"].dtype == nf.nvfp4
    wanted = theirs.dequantize(torch.float32, scale=scale, double_scale=word, block_sizes={-1: 16})
    assert _equal(checkpoint["l.weight"], wanted)
    nf.files.save_model(tmp_path / "again", dict(checkpoint), dialect="modelopt")
    again = load_file(tmp_path / "again/model.safetensors")
    assert all(torch.equal(again[n].view(torch.uint8), t.view(torch.uint8)) for n, t in tensors.items() if t.ndim)
    assert torch.equal(again["l.weight_scale_2"], word) and word.shape == ()


# transformers


def test_fine_grained_fp8_of_transformers(tmp_path: Path) -> None:
    need_oracle("transformers")
    torch = need_oracle("torch")
    from safetensors.torch import load_file
    from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

    block = BLOCKS.replace(block=(128, 64), name="")
    q = nf.quantize(_mine(), block)
    nf.files.save_model(tmp_path / "m", {"l.weight": q}, dialect="deepseek", config={})
    found = load_file(tmp_path / "m/model.safetensors")
    stated = json.loads((tmp_path / "m/config.json").read_text())["quantization_config"]
    weight = (found["l.weight"], found["l.weight_scale_inv"])
    assert _equal(q, _dequantize_fp8_weight(*weight, stated["weight_block_size"], torch.float32))


def test_mxfp4_of_transformers(tmp_path: Path) -> None:
    need_oracle("transformers")
    torch = need_oracle("torch")
    from safetensors.torch import load_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    q = nf.quantize(nf.reshape(_mine(), (2, 65, 96)), nf.mxfp4)
    nf.files.save_model(tmp_path / "m", {"experts.down_proj": q}, dialect="gpt-oss")
    found = load_file(tmp_path / "m/model.safetensors")
    blocks, scales = found["experts.down_proj_blocks"], found["experts.down_proj_scales"]
    assert blocks.shape == (2, 65, 3, 16) and scales.shape == (2, 65, 3)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert _equal(q, theirs.transpose(1, 2))
