"""A state dict of Transformer Engine in a safetensors file loads: weights by name, `_extra_state` ignored and named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import nvfp as nf
from nvfp.device import Device
from nvfp.errors import StateError

KINDS = {np.dtype(np.float32): "F32", np.dtype(np.uint8): "U8"}
# Where TE's TransformerLayer keeps scaling state: bytes of a pickle, or nothing.
EXTRA = ("self_attention.layernorm_qkv", "self_attention.core_attention", "self_attention.proj", "layernorm_mlp")


def write(path: Path, state: dict[str, np.ndarray]) -> None:
    """A safetensors file by the definition of the format."""
    header, data = {}, b""
    for name, x in state.items():
        end = len(data) + x.nbytes
        header[name] = {"dtype": KINDS[x.dtype], "shape": list(x.shape), "data_offsets": [len(data), end]}
        data += x.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def layer(device: Device) -> nf.nn.TransformerLayer:
    return nf.nn.TransformerLayer(64, 128, 4, device=device)


def te_state(device: Device) -> dict[str, np.ndarray]:
    """The layer's weights with other values, each prefix's `_extra_state` among them."""
    rng = np.random.default_rng(0)
    names = layer(device).state_dict()
    state = {k: rng.normal(size=v.shape).astype(np.float32) for k, v in names.items()}
    blob = rng.integers(0, 256, 37).astype(np.uint8)  # no pickle: reading it would fail
    extra = {f"{prefix}._extra_state": blob[: 0 if i % 2 else 37] for i, prefix in enumerate(EXTRA)}
    return {**extra, **state}


def test_extra_state_is_ignored_and_named(device: Device, tmp_path: Path) -> None:
    state = te_state(device)
    write(tmp_path / "te.safetensors", state)
    module = layer(device)
    ignored = module.load_state_dict(nf.load(tmp_path / "te.safetensors", device=device))
    assert sorted(ignored) == sorted(f"{prefix}._extra_state" for prefix in EXTRA)
    for name, value in module.state_dict().items():
        assert np.array_equal(np.asarray(value), state[name]), name


def test_what_nvfp_saved_has_nothing_to_ignore(device: Device) -> None:
    module = layer(device)
    assert module.load_state_dict(module.state_dict()) == ()


def test_other_unknown_names_are_still_refused(device: Device) -> None:
    module, state = layer(device), te_state(device)
    before = {k: np.array(np.asarray(v)) for k, v in module.state_dict().items()}
    with pytest.raises(StateError, match=r"unknown .*layernorm_mlp.fc3_weight"):
        module.load_state_dict({**state, "layernorm_mlp.fc3_weight": np.zeros(3, np.float32)})
    for name, value in module.state_dict().items():
        assert np.array_equal(np.asarray(value), before[name]), name
