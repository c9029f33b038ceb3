"""Checkpoints: a resumed run has the bits of the run that went on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, FileFormatError, StateError
from tests.recipes.every import RECIPES


def make(seed: int) -> tuple[nf.nn.MLP, nf.optim.AdamW, Any]:
    model = nf.nn.MLP(32, 64, dtype=nf.bfloat16, rng=nf.random.default_rng(seed))
    return model, nf.optim.AdamW(model.parameters(), lr=0.01), nf.random.default_rng(seed + 1)


def steps(model: nf.nn.MLP, optimizer: nf.optim.AdamW, rng: Any, recipe: Any, n: int) -> None:
    for _ in range(n):
        x = rng.normal(size=(16, 32), dtype=nf.bfloat16)
        with nf.autocast(enabled=recipe is not None, recipe=recipe):
            loss = (model(x) * x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", RECIPES)
def test_resume_is_bit_exact(device: Any, tmp_path: Path, name: str) -> None:
    path, recipe = tmp_path / "run.safetensors", RECIPES[name]
    model, optimizer, rng = make(0)
    steps(model, optimizer, rng, recipe, 3)
    nf.save_checkpoint(path, model, optimizer, generators={"data": rng}, extra={"step": 3})
    other, other_optimizer, other_rng = make(7)
    assert nf.load_checkpoint(path, other, other_optimizer, generators={"data": other_rng}) == {"step": 3}
    steps(model, optimizer, rng, recipe, 3)
    steps(other, other_optimizer, other_rng, recipe, 3)
    for state, again in (
        (model.state_dict(), other.state_dict()),
        (optimizer.state_dict(), other_optimizer.state_dict()),
    ):
        assert state.keys() == again.keys()
        for key in state:
            assert np.asarray(state[key]).tobytes() == np.asarray(again[key]).tobytes(), key


def test_no_hidden_keys_without_scaling_state() -> None:
    model, _, _ = make(0)
    assert sorted(model.state_dict()) == ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]


def test_plain_weights_load_into_a_scaled_model_and_back(tmp_path: Path) -> None:
    model, optimizer, rng = make(0)
    steps(model, optimizer, rng, RECIPES["fp8"], 1)
    plain, _, _ = make(1)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if "scaling" not in k})
    state = {**model.state_dict(), "fc1._extra_state": np.zeros(3, np.uint8)}
    plain.load_state_dict(state)
    steps(plain, *make(0)[1:], RECIPES["fp8"], 1)
    assert sorted(plain.state_dict()) == sorted(model.state_dict())


def test_errors(tmp_path: Path) -> None:
    model, _, _ = make(0)
    nf.save(tmp_path / "x.safetensors", nf.ones((1,)))
    with pytest.raises(FileFormatError, match="checkpoint of version 1"):
        nf.load_checkpoint(tmp_path / "x.safetensors", model)
    before = np.array(model.fc1.weight)
    with pytest.raises(StateError, match=r"missing .*fc1.bias"):
        model.load_state_dict({"fc1.weight": np.zeros((64, 32), np.float32)})
    with pytest.raises(StateError, match="unknown"):
        model.load_state_dict({**model.state_dict(), "nonsense": np.zeros(1)})
    assert np.asarray(model.fc1.weight).tobytes() == before.tobytes()


def test_what_cannot_be_saved_or_found_is_named(tmp_path: Path) -> None:
    model, optimizer, rng = make(0)
    path = tmp_path / "run"
    with pytest.raises(ArgumentError, match="an extra that JSON can hold"):
        nf.save_checkpoint(path, model, extra={"loss": np.float32(1)})
    with pytest.raises(DTypeError, match="model as Module"):
        nf.save_checkpoint(path, model.parameters())  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
    nf.save_checkpoint(path, model, optimizer, generators={"data": rng})
    other, _, _ = make(5)
    before = np.array(other.fc1.weight)
    with pytest.raises(StateError, match=r"\[load_checkpoint\] expected generators out of \['data'\]"):
        nf.load_checkpoint(path, other, generators={"noise": rng})
    assert np.array_equal(before, np.asarray(other.fc1.weight))
