"""convert_model and the commands of ``python -m nvfp``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp import __main__ as program
from nvfp.errors import ArgumentError, DTypeError, FileFormatError
from nvfp.files.converting import convert_model
from tests.files.build import folder

UP, DOWN, EMBED, HEAD = (
    "layers.0.mlp.up_proj.weight",
    "layers.0.mlp.down_proj.weight",
    "embed_tokens.weight",
    "lm_head.weight",
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small model in bfloat16, with a tokenizer."""
    rng = nf.random.default_rng(3)
    arrays = {name: rng.normal(size=(48, 64), dtype=nf.bfloat16) for name in (EMBED, UP, DOWN, HEAD)}
    arrays |= {"layers.0.norm.weight": nf.ones((64,), dtype=nf.bfloat16), "layers.0.mlp.up_proj.bias": nf.zeros((48,))}
    path = tmp_path / "source"
    nf.files.save_model(path, arrays, config={"model_type": "llama", "vocab_size": 48}, shard_size="8KB")
    (path / "tokenizer.json").write_text("{}")
    (path / "pytorch_model.bin").write_text("not copied")
    (path / "folder").mkdir()
    return path


@pytest.mark.parametrize(("dtype", "dialect", "kept"), [
    ("nvfp4", None, "compressed-tensors"), ("mxfp8", "modelopt", "modelopt"), ("mxfp6_e2m3", None, "nvfp"),
    ("fp8_e4m3", "torchao", "torchao"), ("fp8_e4m3", "deepseek", "deepseek"), ("mxfp4", "gpt-oss", "gpt-oss"),
])  # fmt: skip
def test_matrices_are_quantized(device: Any, source: Path, tmp_path: Path, dtype: str, dialect: Any, kept: str) -> None:
    target = tmp_path / "target"
    convert_model(source, target, dtype, dialect=dialect, shard_size="8KB")
    before, after = nf.files.open_checkpoint(source), nf.files.open_checkpoint(target)
    assert after.dialect == kept and sorted(after) == sorted(before)
    quantized = {name for name in after if isinstance(after[name], nf.QuantizedArray)}
    assert quantized == {UP, DOWN}
    made: Any = after[UP]
    options = {"tensor_scale": made.tensor_scale} if dtype == "nvfp4" else {}
    wanted = nf.quantize(before[UP], dtype, **options)
    assert nf.array_equal(after[UP], wanted)
    if dtype == "nvfp4":  # nearest to the scale of the data
        exact = np.float32(nf.abs(before[UP]).max().item()) / np.float32(2688)
        assert abs(made.tensor_scale.item() / exact - 1) < 2**-22
    assert (target / "tokenizer.json").is_file() and not (target / "pytorch_model.bin").exists()
    config = json.loads((target / "config.json").read_text())
    assert config["vocab_size"] == 48 and {"embed_tokens", "lm_head"} <= set(after.plan.ignore)
    assert len(list(target.glob("*.safetensors"))) > 1 and sorted(p.name for p in tmp_path.iterdir()) == [
        "source",
        "target",
    ]


def test_from_one_dialect_to_another_and_back_to_numbers(device: Any, source: Path, tmp_path: Path) -> None:
    convert_model(source, tmp_path / "a", "nvfp4", dialect="modelopt")
    convert_model(tmp_path / "a", tmp_path / "b", "nvfp4", dialect="torchao")
    a, b = nf.files.open_checkpoint(tmp_path / "a"), nf.files.open_checkpoint(tmp_path / "b")
    before, after = (x.raw(UP) for x in (a, b))
    assert [v.tobytes() for v in before.values()] == [v.tobytes() for v in after.values()]
    convert_model(tmp_path / "b", tmp_path / "c", "float32")
    c = nf.files.open_checkpoint(tmp_path / "c")
    assert c.dialect == "plain" and "quantization_config" not in c.config and c[HEAD].dtype == nf.bfloat16
    assert np.array_equal(np.asarray(c[UP]), np.asarray(a[UP]))
    convert_model(tmp_path / "a", tmp_path / "d", "mxfp8", dialect="modelopt", include="*up_proj.weight")
    d = nf.files.open_checkpoint(tmp_path / "d")
    assert (d[UP].dtype, d[DOWN].dtype) == (nf.mxfp8, nf.nvfp4)
    assert nf.array_equal(d[UP], a[UP].astype(nf.float32).astype(nf.mxfp8))
    assert d.config["quantization_config"]["quant_algo"] == "MIXED_PRECISION"


def test_static_input_scales_go_along(tmp_path: Path) -> None:
    q = nf.ones((4, 32), device="cpu").astype(nf.nvfp4)
    scale = nf.asarray(np.float32(0.125), device="cpu")
    nf.files.save_model(tmp_path / "a", {"l.weight": q, "l.input_scale": scale}, dialect="modelopt")
    convert_model(tmp_path / "a", tmp_path / "b", "nvfp4", dialect="compressed-tensors")
    b = nf.files.open_checkpoint(tmp_path / "b")
    assert b.raw("l.input_scale")["l.input_global_scale"].tolist() == [8] and b["l.input_scale"].item() == 0.125
    convert_model(tmp_path / "b", tmp_path / "c", "fp8_e4m3", dialect="compressed-tensors")
    c = nf.files.open_checkpoint(tmp_path / "c")
    assert list(c.raw("l.input_scale")) == ["l.input_scale"] and c["l.input_scale"].item() == 0.125


def test_patterns_and_what_they_may_not_name(source: Path, tmp_path: Path) -> None:
    convert_model(source, tmp_path / "a", "mxfp8", include=[HEAD, "*up_proj.weight"])
    a = nf.files.open_checkpoint(tmp_path / "a")
    assert [isinstance(a[name], nf.QuantizedArray) for name in (UP, DOWN, EMBED, HEAD)] == [True, False, False, False]
    convert_model(source, tmp_path / "b", "mxfp8", exclude="*mlp*")
    b = nf.files.open_checkpoint(tmp_path / "b")
    assert [isinstance(b[name], nf.QuantizedArray) for name in (UP, EMBED, HEAD)] == [False, True, True]
    with pytest.raises(FileFormatError, match="float matrices to quantize"):
        convert_model(source, tmp_path / "c", "mxfp8", include="*")
    with pytest.raises(DTypeError, match="a float dtype to convert to"):
        convert_model(source, tmp_path / "c", "int8")
    with pytest.raises(ArgumentError, match="a dialect out of"):
        convert_model(source, tmp_path / "c", "mxfp8", dialect="gguf")
    with pytest.raises(FileFormatError, match="of dialect modelopt"):
        convert_model(source, tmp_path / "c", "mxint8", dialect="modelopt")
    with pytest.raises(FileExistsError):
        convert_model(source, tmp_path / "b", "mxfp8")
    assert not (tmp_path / "c").exists() and len(list(tmp_path.iterdir())) == 3


def test_the_commands(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["convert", str(source), str(tmp_path / "t"), "--to", "nvfp4", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "2 quantized arrays" in out and "nvfp4: 2 arrays, 6144 values, 3464 bytes (4.51 bits per value)" in out
    assert program.main(["inspect", str(tmp_path / "t"), "--include", "*mlp*"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["tensor", "dialect", "dtype", "shape", "scales", "bytes"]
    row = next(line for line in lines if line.startswith(UP))
    assert row.split() == [
        UP, "compressed-tensors:nvfp4-pack-quantized", "nvfp4", "48x64", "F8_E4M3[48,4]", "F32[1]", "1732",
    ]  # fmt: skip
    assert lines[-1].startswith("total: 3 arrays") and "left in high precision: embed_tokens, lm_head" in lines[-1]


def test_blocks_of_the_command_line(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["convert", str(source), str(tmp_path / "t"), "--to", "fp8_e4m3", "--quiet", "--dialect", "deepseek"]
    assert program.main([*base, "--block", "32x32"]) == 0
    made = nf.files.open_checkpoint(tmp_path / "t")
    assert made.config["quantization_config"]["weight_block_size"] == [32, 32]
    assert made.tensors[f"{UP}_scale_inv"].shape == (2, 2) and made[UP].dtype.block == (32, 32)
    wanted = nf.quantize(nf.files.open_checkpoint(source)[UP], nf.fp8_e4m3.replace(block=(32, 32)))
    assert np.array_equal(np.asarray(made[UP]), np.asarray(wanted))
    for block in ("0", "32x", "1x2x3", "x"):
        with pytest.raises(SystemExit):
            program.main([*base, "--block", block])
    assert program.main([*base[:3], "--to", "bfloat16", "--block", "32"]) == 1
    assert "a quantized dtype with --block" in capsys.readouterr().err


def test_failed_commands_say_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["inspect", str(tmp_path / "none")]) == 1
    assert "nvfp inspect: [open_checkpoint] expected a folder or file" in capsys.readouterr().err
    bad = folder(tmp_path / "bad", {"l.weight": np.zeros((2, 16), np.uint8)})
    assert program.main(["convert", str(bad), str(tmp_path / "t"), "--to", "nvfp4"]) == 1
    assert "l has weight U8[2, 16]" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        program.main(["convert", str(bad)])
    capsys.readouterr()
    assert program.main(["--capability", "cpu"]) == 0 and "dtypes on cpu" in capsys.readouterr().out
