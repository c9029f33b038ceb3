"""Ten thousand damaged files and sets of tensors: an array, or the typed error; nothing else ever ends a reading."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError, deserialize

import nvfp as nf
from nvfp.dtypes.dense import as_dtype
from nvfp.errors import FileFormatError, NvfpError
from nvfp.files.header import read_header
from nvfp.files.models import Checkpoint
from nvfp.files.quant_config import plan_of
from nvfp.files.shards import Shards
from nvfp.files.tensors import quantized_parts
from tests.files.build import content, e4m3, e8m0, header, joined

Model = tuple[dict[str, np.ndarray], dict[str, Any], dict[str, str]]  # tensors, config.json, metadata
HEADERS, SETS, LOADS = 4000, 6000, 500
rng = np.random.default_rng(0)


def _bytes(*shape: int) -> np.ndarray:
    return rng.integers(0, 256, shape, dtype=np.uint8)


def _codes(*shape: int) -> np.ndarray:
    return e4m3(rng.integers(0, 127, shape))


def _float8(name: str, block: list[int]) -> str:
    data = {"block_size": block, "dtype": {"_type": "torch.dtype", "_data": "bfloat16"}}
    return json.dumps({"_type": name, "_data": data, "_tensor_data_names": ["qdata", "scale"]})


def _nvfp4(tiled: bool) -> str:
    return json.dumps({"_type": "NVFP4Tensor", "_data": {"block_size": 16, "is_swizzled_scales": tiled}})


def _group(weights: dict[str, Any]) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"], "weights": weights}}}


def _models() -> list[Model]:
    """Right models in every dialect."""
    one, word = np.float32([0.5]), np.array(0.5, np.float32)
    norm = {"norm.weight": np.ones(4, np.float32)}
    own = nf.quantize(nf.ones((4, 32), device="cpu"), nf.mxfp6_e2m3)
    row = json.dumps({"l.weight": quantized_parts(own)[1]})
    ct = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}
    tensor_names = json.dumps(["l.weight", "norm.weight"])
    plain = json.dumps({"_type": "Tensor"})
    return [
        ({**norm, "l.weight": _codes(130, 200), "l.weight_scale_inv": np.ones((2, 2), np.float32)},
         {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, {}),
        ({**norm, "l.weight_packed": _bytes(4, 8), "l.weight_scale": _codes(4, 1), "l.weight_global_scale": one,
          "l.input_global_scale": one}, {"quantization_config": _group(ct)}, {}),
        ({**norm, "l.weight_packed": _bytes(4, 16), "l.weight_scale": _bytes(4, 1)}, {}, {}),
        ({**norm, "l.weight": _codes(4, 32), "l.weight_scale": np.ones((4, 1), np.float32), "l.input_scale": one},
         {"quantization_config": _group({"num_bits": 8, "type": "float", "strategy": "channel"})}, {}),
        ({**norm, "l.weight": _bytes(4, 8), "l.weight_scale": _codes(4, 1), "l.weight_scale_2": word,
          "l.input_scale": word}, {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, {}),
        ({**norm, "e_blocks": _bytes(2, 3, 2, 16), "e_scales": _bytes(2, 3, 2), "e_bias": one},
         {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}, {}),
        ({**norm, "l._weight_qdata": _codes(4, 32), "l._weight_scale": np.ones((4, 1), np.float32)}, {},
         {"tensor_names": tensor_names, "norm.weight": plain, "l.weight": _float8("Float8Tensor", [1, 32])}),
        ({**norm, "l._weight_qdata": _bytes(4, 16), "l._weight_scale": _codes(32, 16),
          "l._weight_per_tensor_scale": word}, {},
         {"tensor_names": tensor_names, "norm.weight": plain, "l.weight": _nvfp4(True)}),
        ({**norm, "l.weight.codes": np.zeros((4, 32), np.uint8), "l.weight.scale": e8m0(np.full((4, 1), 127))}, {},
         {"nvfp.quantized": row}),
        ({**norm, "l.weight": np.ones((2, 3), np.float16), "x": np.zeros((0, 2), np.int32)}, {}, {}),
    ]  # fmt: skip


MODELS = _models()


def _read(model: Model) -> int:
    """Read every array; the number of those that are quantized."""
    tensors, config, metadata = model
    checkpoint = Checkpoint(Shards({"x": content(tensors, metadata)}), config, plan_of(config), device="cpu")
    arrays = [checkpoint[name] for name in checkpoint]
    return sum(isinstance(array, nf.QuantizedArray) for array in arrays)


def test_the_models_are_right() -> None:
    assert [_read(model) for model in MODELS] == [1] * (len(MODELS) - 1) + [0]


SPECIAL = [np.nan, np.inf, -np.inf, -1.0, 0.0, 1e-45, 3e38]
TYPES = ["uint8", "int8", "int32", "bool", "float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2",
         "float8_e8m0fnu"]  # fmt: skip
SUFFIXES = ["_scale", "_scale_inv", "_scale_2", "_packed", "_blocks", "_scales", "_global_scale", "_zero_point", "",
            ".x", "_scale_3", "_shape", "_g_idx"]  # fmt: skip
ODD: list[Any] = [None, -1, 0, 1, 2**70, 1.5, "x", "", [], {}, [1], [[]], ["re:("], {"x": 1}, True, "1e9x1", "fp8",
                  [0, 0], [2**40, 1], [16, 32], "NVFP4", 64]  # fmt: skip


def _dropped(r: random.Random, tensors: dict[str, np.ndarray]) -> None:
    del tensors[r.choice(list(tensors))]


def _renamed(r: random.Random, tensors: dict[str, np.ndarray]) -> None:
    name = r.choice(list(tensors))
    stem = r.choice([name, "l.weight", "l", "e", "norm.weight", name[: r.randrange(1, len(name) + 1)]])
    tensors[stem + r.choice(SUFFIXES)] = tensors[name] if r.random() < 0.5 else tensors.pop(name)


def _retyped(r: random.Random, tensors: dict[str, np.ndarray]) -> None:
    name = r.choice(list(tensors))
    dtype = as_dtype(r.choice(TYPES))
    value = np.zeros(tensors[name].shape, dtype)
    tensors[name] = value


def _reshaped(r: random.Random, tensors: dict[str, np.ndarray]) -> None:
    name = r.choice(list(tensors))
    shape = list(tensors[name].shape)
    kind = r.randrange(6)
    if kind == 0 or not shape:
        shape = r.choice([[], [0], [1], [2, 0], [1, 1], [3, 1, 2]])
    elif kind == 1:
        shape[r.randrange(len(shape))] = r.choice([0, 1, 2, 3, 7, 15, 17, 33])
    elif kind == 2:
        shape = shape[:-1]
    elif kind == 3:
        shape = [*shape, 1]
    elif kind == 4:
        shape = shape[::-1]
    else:
        shape = [2, *shape]
    tensors[name] = np.zeros(shape, tensors[name].dtype)


def _special(r: random.Random, tensors: dict[str, np.ndarray]) -> None:
    name = r.choice(list(tensors))
    value = np.array(tensors[name])
    if value.dtype.itemsize == 1 and value.size:
        value.reshape(-1).view(np.uint8)[r.randrange(value.size)] = r.choice([0, 0x7F, 0x80, 0xFF, 0xFE])
    elif value.size and value.dtype != np.int32:
        with np.errstate(all="ignore"):
            value.reshape(-1)[r.randrange(value.size)] = r.choice(SPECIAL)
    tensors[name] = value


TENSORS: list[Callable[[random.Random, dict[str, np.ndarray]], None]] = [
    _dropped, _renamed, _retyped, _reshaped, _special,
]  # fmt: skip


def _oddly(r: random.Random, value: Any) -> Any:
    """A JSON value with something else somewhere in it."""
    if isinstance(value, dict) and value and r.random() < 0.85:
        key = r.choice(list(value))
        return {**value, key: _oddly(r, value[key])}
    if isinstance(value, list) and value and r.random() < 0.5:
        return [_oddly(r, value[0]), *value[1:]]
    return r.choice(ODD)


def _metadata(r: random.Random, metadata: dict[str, str]) -> dict[str, str]:
    key = r.choice(list(metadata))
    text = metadata[key]
    if r.random() < 0.5:
        cut = r.randrange(len(text))
        return {
            **metadata,
            key: r.choice([text[:cut], text[:cut] + r.choice(["[", "9", '"', "{"]) + text[cut:], "[" * 5000]),
        }
    return {**metadata, key: json.dumps(_oddly(r, json.loads(text)))}


def test_sets_of_tensors() -> None:
    """Missing, foreign, ragged and empty tensors, wrong dtypes, scales that are none, odd configurations."""
    r = random.Random(1)
    read = refused = 0
    for _ in range(SETS):
        tensors, config, metadata = r.choice(MODELS)
        tensors = dict(tensors)
        for _ in range(r.choice([0, 1, 1, 1, 2, 3])):
            if tensors:
                r.choice(TENSORS)(r, tensors)
        if config and r.random() < 0.3:
            config = _oddly(r, config)
            config = config if isinstance(config, dict) else {"quantization_config": config}
        if metadata and r.random() < 0.4:
            metadata = _metadata(r, metadata)
        try:
            _read((tensors, config, metadata))
            read += 1
        except FileFormatError:
            refused += 1
        except Exception as error:
            shapes = {name: (str(t.dtype), t.shape) for name, t in tensors.items()}
            raise AssertionError(f"{shapes} {config} {metadata}") from error
    assert read > SETS / 10 and refused > SETS / 10  # both ends are met


def _damaged(r: random.Random, raw: bytes, table: dict[str, Any], data: bytes) -> bytes:
    kind = r.randrange(5)
    if kind == 0:
        return raw[: r.randrange(len(raw))]
    if kind == 1:
        at = r.randrange(min(len(raw), 400))
        return raw[:at] + bytes([r.randrange(256)]) + raw[at + 1 :]
    if kind == 2:
        return r.choice([0, 1, 2**63, 2**64 - 1, len(raw), 10**8]).to_bytes(8, "little") + raw[8:]
    if kind == 3:
        return raw + r.randbytes(r.randrange(1, 9))
    name = r.choice(list(table))
    table = {**table, name: _oddly(r, table[name])}
    return joined(table, data)


def test_headers() -> None:
    """Cut, overlapping, huge, deep and wrongly typed headers; nothing is accepted that the library refuses."""
    r = random.Random(2)
    accepted = 0
    for _ in range(HEADERS):
        tensors, _, metadata = r.choice(MODELS[1:])  # the first is larger than the others
        table, data = header(tensors, metadata), b"".join(value.tobytes() for value in tensors.values())
        raw = _damaged(r, joined(table, data), table, data)
        try:
            read_header(raw, "x")
        except FileFormatError:
            continue
        accepted += 1
        try:
            deserialize(raw)
        except SafetensorError as error:
            raise AssertionError(f"{raw[:400]!r}") from error
    assert 0 < accepted < HEADERS


def test_files_of_nvfp(tmp_path: Path) -> None:
    """`nf.load` and `nf.load_checkpoint`, whose metadata are JSON too."""
    r = random.Random(3)
    quantized = nf.quantize(nf.ones((4, 32), device="cpu"), nf.nvfp4)
    nf.save(tmp_path / "x", {"a": quantized, "b": nf.ones((3,), device="cpu", dtype="float6_e2m3fn")})
    model = nf.nn.Linear(2, 2, device="cpu")
    nf.save_checkpoint(tmp_path / "y", model, generators={"g": nf.random.default_rng(0)}, extra={"step": 1})
    generators = {"g": nf.random.default_rng(1)}
    resume = lambda path: nf.load_checkpoint(path, model, generators=generators)  # noqa: E731
    for path, load in ((tmp_path / "x", nf.load), (tmp_path / "y", resume)):
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        table = json.loads(raw[8 : 8 + length])
        for _ in range(LOADS):
            changed = dict(table)
            if r.random() < 0.7:
                changed["__metadata__"] = _metadata(r, table["__metadata__"])
                damaged = joined(changed, raw[8 + length :])
            else:
                damaged = _damaged(r, raw, table, raw[8 + length :])
            (tmp_path / "z").write_bytes(damaged)
            try:
                load(tmp_path / "z")
            except NvfpError:
                continue
            except Exception as error:
                raise AssertionError(f"{damaged[:600]!r}") from error


@pytest.mark.parametrize("seed", range(3))
def test_folders(tmp_path: Path, seed: int) -> None:
    """Indexes and configurations that are no JSON, or name other files."""
    r = random.Random(seed)
    tensors, config, _ = MODELS[1]
    (tmp_path / "a.safetensors").write_bytes(content(tensors))
    for _ in range(100):
        index = _oddly(r, {"metadata": {}, "weight_map": dict.fromkeys(tensors, "a.safetensors")})
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index)[: r.choice([None, 5])])
        (tmp_path / "config.json").write_text(json.dumps(_oddly(r, config))[: r.choice([None, None, 9])])
        try:
            nf.files.load_model(tmp_path)
        except (FileFormatError, FileNotFoundError):
            continue
