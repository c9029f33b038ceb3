"""save_model: shards, index, configuration; what a dialect cannot hold; nothing is left behind by a failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, FileFormatError
from nvfp.files.writing import size_of


def test_shards_and_their_index(device: Any, tmp_path: Path) -> None:
    arrays = {f"{i}.weight": nf.full((4, 32), i, dtype=nf.bfloat16) for i in range(5)}
    arrays["1.weight"] = arrays["1.weight"].astype(nf.mxfp8)
    nf.files.save_model(tmp_path / "m", arrays, dialect="compressed-tensors", shard_size=600)
    index = json.loads((tmp_path / "m/model.safetensors.index.json").read_text())
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert sorted(set(index["weight_map"].values())) == names
    assert index["metadata"]["total_size"] == 4 * 256 + 128 + 4 and len(index["weight_map"]) == 6
    back = nf.files.load_model(tmp_path / "m")
    assert all(nf.array_equal(back[name], arrays[name]) for name in arrays)
    with safe_open(tmp_path / "m" / names[0], framework="np") as file:  # the library, and transformers' mark
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("dialect", ["nvfp", "torchao"])
def test_the_metadata_of_a_shard_are_those_of_its_tensors(tmp_path: Path, dialect: str) -> None:
    arrays = {f"{i}.weight": nf.full((4, 32), i, device="cpu").astype(nf.mxfp8) for i in range(3)}
    nf.files.save_model(tmp_path / "m", arrays, dialect=dialect, shard_size=150)
    files = sorted((tmp_path / "m").glob("*.safetensors"))
    assert len(files) == 3
    for file, (name, array) in zip(files, arrays.items(), strict=True):
        found = nf.files.load_model(file)
        assert list(found) == [name] and nf.array_equal(found[name], array)


def test_configuration_of_what_was_written(tmp_path: Path) -> None:
    q = nf.ones((4, 32), device="cpu").astype(nf.nvfp4)
    arrays = {"l.weight": q, "head.weight": nf.ones((2, 2), device="cpu"), "norm.weight": nf.ones((2,), device="cpu")}
    old = {"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}
    nf.files.save_model(tmp_path / "m", arrays, dialect="compressed-tensors", config=old)
    config = json.loads((tmp_path / "m/config.json").read_text())
    stated = config["quantization_config"]
    assert config["model_type"] == "llama" and stated["ignore"] == ["head"]
    weights = stated["config_groups"]["group_0"]["weights"]
    assert (stated["format"], weights["strategy"], weights["group_size"]) == (
        "nvfp4-pack-quantized",
        "tensor_group",
        16,
    )
    nf.files.save_model(tmp_path / "plain", {"norm.weight": arrays["norm.weight"]}, config=old)
    assert json.loads((tmp_path / "plain/config.json").read_text()) == {"model_type": "llama"}
    nf.files.save_model(
        tmp_path / "o", {**arrays, "m.input_scale": nf.ones((), device="cpu"), "m.weight": q}, dialect="modelopt"
    )
    said = json.loads((tmp_path / "o/hf_quant_config.json").read_text())["quantization"]
    assert {name: layer["quant_algo"] for name, layer in said["quantized_layers"].items()} == {
        "l": "W4A16_NVFP4",
        "m": "NVFP4",
    }
    assert nf.files.open_checkpoint(tmp_path / "o").plan.rule("m").group == 16


def test_several_formats_in_one_model(tmp_path: Path) -> None:
    x = nf.ones((4, 32), device="cpu")
    arrays = {"a.weight": x.astype(nf.nvfp4), "b.weight": x.astype(nf.fp8_e4m3), "c.weight": x.astype(nf.nvfp4)}
    nf.files.save_model(tmp_path / "m", arrays, dialect="compressed-tensors")
    checkpoint = nf.files.open_checkpoint(tmp_path / "m")
    stated = checkpoint.config["quantization_config"]
    assert stated["format"] == "mixed-precision"
    assert [group["targets"] for group in stated["config_groups"].values()] == [["a", "c"], ["b"]]
    assert [checkpoint[name].dtype for name in arrays] == [nf.nvfp4, nf.fp8_e4m3, nf.nvfp4]


X = nf.ones((4, 32), device="cpu")
WRONG: dict[str, tuple[dict[Any, Any], dict[str, Any], type[Exception], str]] = {
    "a dtype it lacks": ({"w": X.astype(nf.mxint8)}, {"dialect": "modelopt"}, FileFormatError, "of dialect modelopt"),
    "quantized and plain": ({"w": X.astype(nf.mxfp8)}, {"dialect": "plain"}, FileFormatError, "of dialect plain"),
    "blocks along another axis": ({"w": X.astype(nf.mxfp4).T}, {"dialect": "gpt-oss"}, FileFormatError, "along axis 0"),
    "odd codes": ({"w": X[:, :31].astype(nf.nvfp4)}, {"dialect": "modelopt"}, FileFormatError, "even number"),
    "ragged blocks": ({"w": X[:, :24].astype(nf.mxfp4)}, {"dialect": "gpt-oss"}, FileFormatError, "whole blocks"),
    "a root name": ({"w": X.astype(nf.mxfp8)}, {"dialect": "torchao"}, FileFormatError, "names in a module"),
    "two block shapes": (
        {"a": X.astype(nf.fp8_e4m3), "b": nf.quantize(X, nf.fp8_e4m3_b128.replace(block=(2, 2)))},
        {"dialect": "deepseek"},
        FileFormatError,
        "one block shape",
    ),
    "narrow without a scale": ({"w": X.astype(nf.float8_e4m3fn)}, {}, DTypeError, "narrow codes with their scale"),
    "a dict": ({"w": {"a": X}}, {}, DTypeError, "join the names"),
    "nothing": ({"w": None}, {}, DTypeError, "arrays by name"),
    "a number as name": ({1: X}, {}, ArgumentError, "names as str"),
    "the header's own name": ({"__metadata__": X}, {}, ArgumentError, "names as str"),
    "a dialect of its own": ({"w": X}, {"dialect": "gguf"}, ArgumentError, "a dialect out of"),
    "no size": ({"w": X}, {"shard_size": "many"}, ArgumentError, "shard_size as bytes"),
    "names that collide": (
        {"w": X.astype(nf.mxfp4), "w_scale": X}, {"dialect": "compressed-tensors"}, ArgumentError, "names that are",
    ),
    "complex": ({"w": X.astype(nf.complex64)}, {}, FileFormatError, "a dtype out of"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(WRONG))
def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, name: str) -> None:
    arrays, options, error, text = WRONG[name]
    with pytest.raises(error, match=text):
        nf.files.save_model(tmp_path / "m", arrays, **options)
    assert not list(tmp_path.iterdir())


def test_folders_are_never_written_over(tmp_path: Path) -> None:
    nf.files.save_model(tmp_path / "m", {"a": X})
    before = (tmp_path / "m/model.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match="remove it, or choose another name"):
        nf.files.save_model(tmp_path / "m", {"b": X})
    assert (tmp_path / "m/model.safetensors").read_bytes() == before and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(FileNotFoundError, match="make it first"):
        nf.files.save_model(tmp_path / "none/m", {"b": X})
    with pytest.raises(DTypeError, match="a mapping"):
        nf.files.save_model(tmp_path / "n", X)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "bytes_"), [(1, 1), ("7", 7), ("2kb", 2000), ("1.5GiB", 3 * 2**29), ("5 GB", 5 * 10**9), ("1TB", 10**12)]
)
def test_sizes(given: Any, bytes_: int) -> None:
    assert size_of(given) == bytes_


@pytest.mark.parametrize("given", [0, -1, True, None, "", "GB", "1 XB", "0.1"])
def test_sizes_that_are_none(given: Any) -> None:
    with pytest.raises(ArgumentError, match="shard_size"):
        size_of(given)


def test_default_dialects(tmp_path: Path) -> None:
    nf.files.save_model(tmp_path / "a", {"w": np.ones(3, np.float32)})
    nf.files.save_model(tmp_path / "b", {"w": X.astype(nf.mxint8)})
    assert [nf.files.open_checkpoint(tmp_path / name).dialect for name in "ab"] == ["plain", "nvfp"]
    assert nf.load(tmp_path / "b/model.safetensors")["w"].dtype == nf.mxint8  # the same layout as nf.save's
