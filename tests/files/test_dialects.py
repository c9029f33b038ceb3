"""Every dialect by values worked out by hand, and there and back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nvfp as nf
from nvfp.dtypes.formats import FORMATS
from nvfp.dtypes.scale_layout import to_tiles128x4
from nvfp.errors import FileFormatError
from tests.files.build import e4m3, e8m0, folder

# H09: one row of 16 values, block scale 2, tensor scale 1/2.
PACKED = np.array([[0x21, 0x43, 0x65, 0x87, 0xA9, 0xCB, 0xED, 0x0F]], np.uint8)
VALUES = [0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6, 0]
HALF, TWO = np.array(0.5, np.float32), np.float32([2])
BLOCKS = nf.QuantDType(element="float8_e4m3fn", block=(128, 128), scale="float32", nonfinite="saturate")
PER_ROW = nf.QuantDType(element="float8_e4m3fn", block=96, scale="float32", nonfinite="saturate")


def _opened(path: Path, tensors: Any, config: Any = None, metadata: Any = None) -> nf.files.Checkpoint:
    return nf.files.open_checkpoint(folder(path / "model", tensors, config, metadata))


@pytest.mark.parametrize(
    ("dialect", "tensors"),
    [
        ("modelopt", {"l.weight": PACKED, "l.weight_scale": e4m3([[0x40]]), "l.weight_scale_2": HALF}),
        (
            "compressed-tensors",
            {"l.weight_packed": PACKED, "l.weight_scale": e4m3([[0x40]]), "l.weight_global_scale": TWO},
        ),
    ],
)
def test_one_nvfp4_weight_in_two_conventions(device: Any, tmp_path: Path, dialect: str, tensors: Any) -> None:
    """The divisor of one is the inverse of the multiplier of the other; the low nibble comes first."""
    checkpoint = _opened(tmp_path, tensors)
    found = checkpoint["l.weight"]
    assert isinstance(found, nf.QuantizedArray) and (checkpoint.dialect, found.dtype) == (dialect, nf.nvfp4)
    assert np.asarray(found).tobytes() == np.float32([VALUES]).tobytes() and found.device == device
    assert found.tensor_scale is not None and found.tensor_scale.item() == 0.5
    nf.files.save_model(tmp_path / "again", {"l.weight": found}, dialect=dialect)
    again = nf.files.open_checkpoint(tmp_path / "again").raw("l.weight")
    assert {name: (v.shape, v.tobytes()) for name, v in again.items()} == {
        name: (v.shape, v.tobytes()) for name, v in tensors.items()
    }


def test_ragged_blocks_of_128(device: Any, tmp_path: Path) -> None:
    """H10: the scale multiplies, whatever ``_inv`` suggests."""
    scale = np.float32([[1, 2], [4, 8]])
    weight = e4m3(np.full((130, 200), 0x38))
    found = _opened(tmp_path, {"l.weight": weight, "l.weight_scale_inv": scale})["l.weight"]
    w = np.asarray(found)
    assert found.shape == (130, 200) and found.dtype == BLOCKS
    assert [w[0, 0], w[127, 127], w[127, 128], w[128, 127], w[129, 199]] == [1, 1, 2, 4, 8] and w.sum() == 36992
    for wrong in (scale[:1], scale[:, :1]):
        path = tmp_path / str(wrong.shape)
        with pytest.raises(FileFormatError, match=r"one scale per tensor, row, group or 128x128 block"):
            nf.files.open_checkpoint(folder(path, {"l.weight": weight, "l.weight_scale_inv": wrong}))


def _fp8(strategy: str, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, **more}
    group = {"targets": ["Linear"], "weights": weights}
    return {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}}


@pytest.mark.parametrize(
    ("scale", "config", "block"),
    [
        (np.float32([3]), None, None),
        (np.array(3, np.float32), None, None),
        (np.float32([[3]]), _fp8("tensor"), None),
        (np.arange(1, 5, dtype=np.float32)[:, None], _fp8("channel"), 96),
        (np.arange(1, 5, dtype=np.float32), None, 96),
        (np.arange(1, 5).astype(ml_dtypes.bfloat16)[:, None], None, 96),
        (np.arange(1, 13, dtype=np.float32).reshape(4, 3), _fp8("group", group_size=32), 32),
        (np.arange(1, 13, dtype=np.float32).reshape(4, 3), None, 32),
        (np.float32([[1, 2, 3], [4, 5, 6]]), _fp8("block", block_structure=[2, 32]), (2, 32)),
        (np.float32([[1, 2], [4, 5]]), _fp8("block", block_structure=[3, 64]), (3, 64)),
    ],
    ids=str,
)
def test_what_a_scale_of_fp8_serves(device: Any, tmp_path: Path, scale: Any, config: Any, block: Any) -> None:
    found = _opened(tmp_path, {"l.weight": e4m3(np.full((4, 96), 0x40)), "l.weight_scale": scale}, config)["l.weight"]
    assert isinstance(found, nf.QuantizedArray) and found.dtype.block == block
    rows, columns = block if isinstance(block, tuple) else (1, block or 96)
    grid = np.asarray(scale, np.float32).reshape(-1, 1 if block in (None, 96) else scale.shape[1])
    spread = np.repeat(np.repeat(grid, rows, 0), columns, 1)[:4, :96]
    np.testing.assert_array_equal(np.asarray(found), 2 * np.broadcast_to(spread, (4, 96)))


@pytest.mark.parametrize("spelling", ["{}_blocks {}_scales", "{}.blocks {}.scales"])
def test_gpt_oss(device: Any, tmp_path: Path, spelling: str) -> None:
    """Two experts, one row of 64: bytes [2, 1, 2, 16], a power of two per 32 values."""
    codes, scales = (part.format("mlp.experts.down_proj") for part in spelling.split())
    blocks = np.zeros((2, 1, 2, 16), np.uint8)
    blocks[0, 0, 0, :2], blocks[1, 0, 1, 15] = (0x21, 0x43), 0xF7
    bytes_ = np.array([[[128, 127]], [[127, 126]]], np.uint8)
    found = _opened(tmp_path, {codes: blocks, scales: bytes_, "mlp.experts.down_proj_bias": np.ones(2, np.float32)})
    w = np.asarray(found["mlp.experts.down_proj"])
    assert w.shape == (2, 1, 64) and found["mlp.experts.down_proj"].dtype == nf.mxfp4
    assert w[0, 0, :5].tolist() == [1, 2, 3, 4, 0] and w[1, 0, 62:].tolist() == [3, -3]
    assert list(found) == ["mlp.experts.down_proj", "mlp.experts.down_proj_bias"]


def test_powers_of_two_come_as_bytes_or_by_name(device: Any, tmp_path: Path) -> None:
    for i, scale in enumerate((np.array([[128], [126]], np.uint8), e8m0([[128], [126]]))):
        mx8 = {"l.weight": e4m3(np.full((2, 32), 0x38)), "l.weight_scale": scale}
        found = _opened(tmp_path / f"{i}" if (tmp_path / f"{i}").mkdir() is None else tmp_path, mx8)["l.weight"]
        assert found.dtype == nf.mxfp8 and np.asarray(found)[:, 0].tolist() == [2, 0.5]
    (tmp_path / "v4").mkdir()
    blocks = {"l.weight": e4m3(np.full((130, 4), 0x38)), "l.weight_scale_inv": e8m0([[128], [126]])}
    found = _opened(tmp_path / "v4", blocks)["l.weight"]
    assert np.asarray(found)[[0, 129], 0].tolist() == [2, 0.5] and found.dtype.scale.name == "float8_e8m0fnu"


def test_stacks_of_experts_have_a_scale_each(device: Any, tmp_path: Path) -> None:
    tensors = {
        "e.weight": np.full((2, 1, 8), 0x22, np.uint8),
        "e.weight_scale": e4m3(np.full((2, 1, 1), 0x38)),
        "e.weight_scale_2": np.float32([1, 4]),
        "f.weight": e4m3(np.full((2, 3, 5), 0x38)),
        "f.weight_scale": np.float32([1, 4]),
    }
    checkpoint = _opened(tmp_path, tensors)
    assert np.asarray(checkpoint["e.weight"])[:, 0, 0].tolist() == [1, 4]
    assert np.asarray(checkpoint["f.weight"])[:, 2, 4].tolist() == [1, 4]
    nf.files.save_model(tmp_path / "again", dict(checkpoint), dialect="modelopt")
    again = nf.files.open_checkpoint(tmp_path / "again")
    for name, value in tensors.items():
        assert again.raw(name.partition("_")[0])[name].tobytes() == value.tobytes()


def test_tiled_scales_of_torchao(device: Any, tmp_path: Path) -> None:
    codes = np.full((2, 16), 0x22, np.uint8)
    plain = np.array([[0x38, 0x40], [0x48, 0x30]], np.uint8)
    tiled = e4m3(to_tiles128x4(plain).reshape(32, 16))
    data = {"block_size": 16, "is_swizzled_scales": True}
    entry = {"_type": "NVFP4Tensor", "_data": data, "_tensor_data_names": ["qdata", "scale"]}
    metadata = {"tensor_names": '["l.weight"]', "l.weight": json.dumps(entry)}
    found = _opened(tmp_path, {"l._weight_qdata": codes, "l._weight_scale": tiled}, None, metadata)["l.weight"]
    assert np.asarray(found)[:, ::16].tolist() == [[1, 2], [4, 0.5]]
    assert found.dtype == nf.nvfp4.replace(tensor_scale=False)


def test_static_input_scales_are_decode_factors(tmp_path: Path) -> None:
    fp4 = {"l.weight_packed": PACKED, "l.weight_scale": e4m3([[0x40]]), "l.weight_global_scale": TWO}
    fp8 = {"m.weight": e4m3([[0x38]]), "m.weight_scale": np.float32([1])}
    inputs = {"l.input_global_scale": np.float32([8]), "m.input_scale": np.float32([0.25])}
    checkpoint = _opened(tmp_path, {**fp4, **fp8, **inputs})
    found = {name: array for name, array in checkpoint.items() if name.endswith("input_scale")}
    assert {name: (x.item(), x.shape) for name, x in found.items()} == {
        "l.input_scale": (0.125, ()),
        "m.input_scale": (0.25, ()),
    }
    nf.files.save_model(tmp_path / "again", dict(checkpoint), dialect="compressed-tensors")
    again = nf.files.open_checkpoint(tmp_path / "again")
    assert again.tensors.keys() == checkpoint.tensors.keys()
    assert again.raw("l.input_scale")["l.input_global_scale"].tolist() == [8]
    groups = again.config["quantization_config"]["config_groups"]
    assert [group["input_activations"]["dynamic"] for group in groups.values()] == ["local", False]


POWERS = dataclasses.replace(BLOCKS, name="", scale=nf.mxfp8.scale, nonfinite="nan_block")
CASES = [
    ("deepseek", [nf.fp8_e4m3, BLOCKS, POWERS]),
    ("compressed-tensors", [nf.fp8_e4m3, nf.fp8_e5m2, PER_ROW, BLOCKS, nf.mxfp8, nf.mxfp8_e5m2, nf.mxfp4, nf.nvfp4]),
    ("modelopt", [nf.fp8_e4m3, PER_ROW, BLOCKS, nf.mxfp8, nf.mxfp4, nf.nvfp4]),
    ("gpt-oss", [nf.mxfp4]),
    ("torchao", [nf.fp8_e4m3, nf.fp8_e5m2, PER_ROW, BLOCKS, nf.mxfp8, nf.mxfp4, nf.nvfp4]),
    ("nvfp", [*FORMATS.values(), nf.nvfp4.replace(block=(16, 16), name="mine")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "dtype"), [(name, fmt) for name, formats in CASES for fmt in formats], ids=lambda v: str(v)
)
def test_there_and_back(device: Any, tmp_path: Path, dialect: str, dtype: Any) -> None:
    """Arrays come back with their bits, and what was read is written as the same tensors."""
    rng = nf.random.default_rng(7)
    q = nf.quantize(rng.normal(size=(130, 96)), dtype)
    if dialect == "compressed-tensors" and dtype == nf.nvfp4:  # a tensor scale that has an inverse
        q = nf.quantize(q.astype(nf.float32), dtype, tensor_scale=0.0009765625)
    arrays = {"up.weight": q, "norm.weight": rng.normal(size=(4,), dtype=nf.bfloat16), "up.bias": nf.zeros((3,))}
    nf.files.save_model(tmp_path / "a", arrays, dialect=dialect, config={"model_type": "x"})
    checkpoint = nf.files.open_checkpoint(tmp_path / "a")
    back = checkpoint["up.weight"]
    assert isinstance(back, nf.QuantizedArray) and (checkpoint.dialect, back.device) == (dialect, q.device)
    assert back.dtype.block == q.dtype.block and back.shape == q.shape
    for part in ("codes", "scale", "tensor_scale"):
        mine, found = getattr(q, part), getattr(back, part)
        assert mine is found is None or np.asarray(mine).tobytes() == np.asarray(found).tobytes()
    assert nf.array_equal(checkpoint["norm.weight"], arrays["norm.weight"])
    for source in (checkpoint, dict(checkpoint)):
        path = tmp_path / type(source).__name__
        nf.files.save_model(path, source, dialect=dialect, config=checkpoint.config)
        again = nf.files.open_checkpoint(path)
        assert again.config == checkpoint.config and list(again.tensors) == list(checkpoint.tensors)
        for name in checkpoint:
            assert {k: v.tobytes() for k, v in again.raw(name).items()} == {
                k: v.tobytes() for k, v in checkpoint.raw(name).items()
            }


def test_inverses_that_a_file_cannot_hold_are_the_nearest() -> None:
    """A tensor scale whose inverse reads as itself keeps its bits in compressed-tensors; others move by one."""
    from nvfp.files.dialects.compressed_tensors import LAYOUTS
    from nvfp.files.dialects.layout import in_file, inverse

    part = LAYOUTS[2].tensor_scale
    assert part is not None and part.inverse
    drawn = np.random.default_rng(0).uniform(1e-6, 4, 2000).astype(np.float32)
    exact = 0
    for word in drawn:
        back = inverse(in_file(part, np.asarray(word)))[0]
        steps = abs(int(back.view(np.int32)) - int(word.view(np.int32)))
        assert steps <= 1
        exact += steps == 0
        reachable = inverse(np.asarray(word))  # the inverse of something: it comes back
        assert inverse(in_file(part, reachable))[0] == reachable
    assert exact > 1000
