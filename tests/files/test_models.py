"""open_checkpoint and load_model: folders, indexes, configurations, and everything that must not be guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, FileFormatError
from tests.files.build import content, e4m3, folder

W8 = e4m3(np.full((4, 32), 0x38))
W4 = np.full((4, 16), 0x22, np.uint8)
ONE, S16, S32 = np.float32([1]), e4m3(np.full((4, 2), 0x38)), np.full((4, 1), 127, np.uint8)
NVFP4 = {"l.weight_packed": W4, "l.weight_scale": S16, "l.weight_global_scale": ONE}
FP8 = {"l.weight": W8, "l.weight_scale": ONE}
DENSE = {"l.weight": np.ones((4, 32), np.float16)}


def _ct(**group: Any) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}
    groups = {"group_0": {"targets": ["Linear"], "weights": {**weights, **group}}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


REFUSED: dict[str, tuple[dict[str, np.ndarray], dict[str, Any] | None, str]] = {
    "codes without a scale": ({"l.weight": W8}, None, r"l has weight F8_E4M3\[4, 32\]"),
    "packed codes without a scale": ({"l.weight_packed": W4}, None, "weight_packed"),
    "bytes called weight": ({"l.weight": W4}, None, "weight U8"),
    "bytes without their tensor scale": ({"l.weight": W4, "l.weight_scale": S16}, None, "weight_scale"),
    "a scale of dense numbers": ({**DENSE, "l.weight_scale": ONE}, None, "weight_scale"),
    "a scale of nothing": ({"l.weight_scale": ONE}, None, "weight_scale"),
    "an unknown scale": ({**FP8, "l.weight_scale_3": ONE}, None, "weight_scale_3"),
    "two scales": ({**FP8, "l.weight_scale_inv": ONE}, None, "weight_scale_inv"),
    "two tensor scales": (
        {"l.weight": W4, "l.weight_scale": S16, "l.weight_scale_2": ONE, "l.weight_global_scale": ONE},
        None,
        "weight_global_scale",
    ),
    "dense and packed": ({**NVFP4, "l.weight": DENSE["l.weight"]}, None, "weight_packed"),
    "a zero point": ({**FP8, "l.weight_zero_point": ONE}, None, "weight_zero_point"),
    "blocks without scales": ({"e_blocks": np.zeros((2, 1, 16), np.uint8)}, None, "e_blocks"),
    "scales without blocks": ({"e": ONE, "e_scales": S32}, None, "e_scales"),
    "blocks of 8 bytes": ({"e_blocks": np.zeros((2, 1, 8), np.uint8), "e_scales": S32[:2]}, None, "16 bytes a block"),
    "GPTQ": ({"l.qweight": np.zeros((4, 4), np.int32), "l.scales": ONE, "l.qzeros": np.zeros(1, np.int32)}, None, "q"),
    "int8": ({"l.weight": W4.view(np.int8), "l.weight_scale": ONE}, None, "weight I8"),
    "the scale of another dialect": (NVFP4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "weight_packed"),
    "another width": (NVFP4, _ct(num_bits=8), "the configuration says float8"),
    "integers": (NVFP4, _ct(type="int"), "the configuration says int4"),
    "another group": (NVFP4, _ct(group_size=32), r"scales \(4, 1\) for blocks of 32"),
    "another strategy": (FP8, _ct(num_bits=8, strategy="channel", group_size=None), "by channel"),
    "an ignored module": (NVFP4, {**_ct(), "ignore": ["l"]}, "in the ignore list"),
    "an ignored pattern": (NVFP4, {**_ct(), "ignore": ["re:.*l$"]}, "in the ignore list"),
    "an unknown method": (NVFP4, {"quant_method": "gptq"}, "quant_method that nvfp reads, got 'gptq'"),
    "a pattern that is none": (NVFP4, {**_ct(), "ignore": ["re:("]}, "the pattern"),
    "groups of text": (NVFP4, {"config_groups": "x"}, "config_groups = x"),
    "torchao without metadata": (FP8, {"quant_method": "torchao"}, "metadata that torchao writes"),
    "short scales": ({**NVFP4, "l.weight_scale": S16[:3]}, None, r"scales \(4, 2\) for blocks of 16"),
    "many tensor scales": ({**NVFP4, "l.weight_global_scale": np.ones(4, np.float32)}, None, "one tensor scale"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_is_not_understood_is_listed(tmp_path: Path, name: str) -> None:
    tensors, stated, text = REFUSED[name]
    config = None if stated is None else {"quantization_config": stated}
    with pytest.raises(FileFormatError, match=text):
        nf.files.open_checkpoint(folder(tmp_path / "m", tensors, config))


@pytest.mark.parametrize(
    ("name", "value"),
    [("weight_global_scale", v) for v in (0.0, -1.0, np.nan)] + [("input_global_scale", v) for v in (0.0, np.nan)],
)
def test_factors_that_are_none_are_refused_when_they_are_read(
    device: Any, tmp_path: Path, name: str, value: Any
) -> None:
    checkpoint = nf.files.open_checkpoint(folder(tmp_path / "m", {**NVFP4, f"l.{name}": np.float32([value])}))
    with pytest.raises(FileFormatError, match="finite decode factors"):
        [checkpoint[n] for n in checkpoint]


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_block_scales_that_are_none_are_refused_on_every_device(device: Any, tmp_path: Path, value: float) -> None:
    tensors = {**FP8, "l.weight_scale": np.float32([1, 1, value, 1])[:, None]}
    with pytest.raises(FileFormatError, match="decode factors"):
        nf.files.load_model(folder(tmp_path / "m", tensors))


def test_names_that_only_look_like_scales_are_dense(tmp_path: Path) -> None:
    names = ("norm.scale", "logit_scale", "attn.k_scale", "l.pre_quant_scale", "layer_scale_1.gamma", "blocks.0.bias")
    tensors = {name: np.ones(3, np.float32) for name in names}
    checkpoint = nf.files.open_checkpoint(folder(tmp_path / "m", {**tensors, **FP8}))
    assert list(checkpoint) == ["l.weight", *names]
    assert checkpoint.dialect == "compressed-tensors" and checkpoint["norm.scale"].dtype == nf.float32


def test_sharded_folders(device: Any, tmp_path: Path) -> None:
    """Codes and scales may lie in different files; the index decides, unlisted files are not looked at."""
    parts = [{"l.weight_packed": W4}, {"l.weight_scale": S16, "l.weight_global_scale": ONE}]
    places = {}
    for i, part in enumerate(parts):
        (tmp_path / f"{i}.safetensors").write_bytes(content(part))
        places |= dict.fromkeys(part, f"{i}.safetensors")
    (tmp_path / "other.safetensors").write_bytes(b"damaged")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert nf.files.load_model(tmp_path)["l.weight"].dtype == nf.nvfp4
    index.write_text(json.dumps({"weight_map": {**places, "m.weight": "0.safetensors"}}))
    with pytest.raises(FileFormatError, match=r"m\.weight"):
        nf.files.open_checkpoint(tmp_path)
    index.write_text(json.dumps({"weight_map": dict.fromkeys(places, "../0.safetensors")}))
    with pytest.raises(FileFormatError, match="name files of the folder itself"):
        nf.files.open_checkpoint(tmp_path)
    index.write_text(json.dumps({"weight_map": dict.fromkeys(places, "gone.safetensors")}))
    with pytest.raises(FileNotFoundError):
        nf.files.open_checkpoint(tmp_path)
    index.unlink()
    (tmp_path / "other.safetensors").write_bytes(content({"l.weight_packed": W4}))
    with pytest.raises(FileFormatError, match="each tensor in one file"):
        nf.files.open_checkpoint(tmp_path)


def test_configurations_of_modelopt(tmp_path: Path) -> None:
    tensors = {
        "l.weight": W4,
        "l.weight_scale": S16,
        "l.weight_scale_2": ONE,
        "head.weight": np.ones((2, 2), np.float32),
    }
    path = folder(tmp_path / "m", tensors, {"model_type": "llama"})
    said = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["head*"]}
    (path / "hf_quant_config.json").write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": said}))
    checkpoint = nf.files.open_checkpoint(path)
    assert checkpoint.dialect == "modelopt" and checkpoint.plan.ignore == ("head*",)
    assert checkpoint.plan.ignored("head") and not checkpoint.plan.ignored("l")
    mixed = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"l": {"quant_algo": "FP8"}}}
    (path / "hf_quant_config.json").write_text(json.dumps({"quantization": mixed}))
    with pytest.raises(FileFormatError, match="the configuration says float8"):
        nf.files.open_checkpoint(path)
    (path / "config.json").write_text(json.dumps({"quantization_config": {"quant_algo": "FP8"}}))
    with pytest.raises(FileFormatError, match=r"FP8 in config\.json and MIXED_PRECISION in hf_quant_config\.json"):
        nf.files.open_checkpoint(path)


def test_what_ignore_lists_mean(tmp_path: Path) -> None:
    """transformers names modules and all in them, Model Optimizer shell patterns, compressed-tensors expressions."""
    from nvfp.files.quant_config import plan_of

    stated: dict[str, dict[str, Any]] = {
        "fp8": {"quant_method": "fp8", "modules_to_not_convert": ["a.b", "c"]},
        "modelopt": {"quant_method": "modelopt", "exclude_modules": ["a.b*", "c"]},
        "compressed-tensors": {"quant_method": "compressed-tensors", "ignore": [r"re:a\.b(\..*)?$", "c"]},
    }
    for fields in stated.values():
        plan = plan_of({"quantization_config": fields})
        found = [plan.ignored(name) for name in ("a.b", "a.b.d", "c", "a", "a.c", "d.c", "cc")]
        assert found == [True, True, True, False, False, False, False]
    assert plan_of({}).rule("x").bits is None and not plan_of({}).ignored("x")


def test_a_checkpoint_is_a_mapping(device: Any, tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {**NVFP4, "norm.weight": np.ones(3, np.float32)})
    checkpoint = nf.files.open_checkpoint(path)
    assert len(checkpoint) == 2 and "l.weight" in checkpoint and "l.weight_packed" not in checkpoint
    assert checkpoint.get("nothing") is None and "2 arrays" in repr(checkpoint)
    assert checkpoint.entries["l.weight"].nbytes == W4.nbytes + S16.nbytes + 4
    assert checkpoint["l.weight"].device == device and nf.array_equal(checkpoint["norm.weight"], nf.ones((3,)))
    with pytest.raises(KeyError, match=r"pick one, e\.g\. of \['l\.weight'\]"):
        checkpoint["l.bias"]
    assert list(nf.files.load_model(path, include=["*.weight"], exclude="norm*")) == ["l.weight"]
    assert list(nf.files.load_model(path / "model.safetensors", include="norm.*")) == ["norm.weight"]


def test_reading_on_the_cpu_copies_nothing(tmp_path: Path) -> None:
    checkpoint = nf.files.open_checkpoint(folder(tmp_path / "m", FP8), device="cpu")
    first, second = checkpoint["l.weight"], checkpoint["l.weight"]
    assert isinstance(first, nf.QuantizedArray) and isinstance(second, nf.QuantizedArray)
    assert np.shares_memory(np.asarray(first.codes), np.asarray(second.codes))


def test_paths_and_patterns_of_another_type_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match="a path as str"):
        nf.files.open_checkpoint(3)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        nf.files.open_checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError):
        nf.files.open_checkpoint(tmp_path / "none")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(FileFormatError, match="an empty file"):
        nf.files.open_checkpoint(tmp_path)
    with pytest.raises(ArgumentError, match="include as patterns"):
        nf.files.load_model(folder(tmp_path / "m", FP8), include=[1])  # type: ignore[list-item]
