"""`autocast(enabled=False, calibrating=True)`: high precision now, scales for later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp import recipes
from nvfp.errors import ArgumentError, DTypeError
from nvfp.recipes import DelayedScaling


def train(steps: int, **context: Any) -> tuple[list[bytes], nf.nn.Module]:
    """Outputs and gradients of a small model."""
    rng = nf.random.default_rng(0)
    model = nf.nn.Sequential(nf.nn.Linear(16, 32, rng=rng), nf.nn.GELU(), nf.nn.LayerNormMLP(32, 16, rng=rng))
    found = []
    for i in range(steps):
        x = nf.random.default_rng(i).normal(size=(8, 16))
        x.requires_grad = True
        model.zero_grad()
        with nf.autocast(**context):
            y = model(x)
        (y * y).sum().backward()
        found += [np.asarray(a).tobytes() for a in (y, x.grad, *(p.grad for p in model.parameters().values()))]
    return found, model


def state(model: nf.nn.Module) -> dict[str, np.ndarray]:
    return {k: np.asarray(v) for k, v in model.state_dict().items() if ".scaling." in k}


def test_values_are_those_without_a_recipe(device: Any) -> None:
    recipe = DelayedScaling(amax_history_len=4)
    plain, calibrated = train(2, enabled=False), train(2, enabled=False, calibrating=True, recipe=recipe)
    assert plain[0] == calibrated[0]
    assert not state(plain[1])
    found = state(calibrated[1])
    assert {k.rpartition(".")[0] for k in found} == {
        *("0.scaling", "0.scaling.forward", "0.scaling.backward", "2.scaling"),
        *(f"2.scaling.{fc}.{which}" for fc in ("fc1", "fc2") for which in ("forward", "backward")),
    }
    for key, value in found.items():
        if key.endswith("amax_history"):
            assert np.count_nonzero(value[-2:]) == value[-2:].size and not value[:-2].any(), key


def test_a_later_run_starts_from_them(device: Any) -> None:
    """The first quantized step uses fp8_max / amax, as if it had run before; without, scale 1."""
    recipe = DelayedScaling(amax_history_len=4)
    _, model = train(1, enabled=False, calibrating=True, recipe=recipe)
    x = nf.random.default_rng(0).normal(size=(8, 16))
    x.requires_grad = True
    before = {k: v.copy() for k, v in state(model).items()}
    with nf.autocast(recipe=recipe):
        y = model(x)
        after = state(model)
        assert all(np.array_equal(before[k], after[k]) for k in before if k.endswith("forward.scale"))
    amax = np.abs(np.asarray(x)).max()
    assert before["0.scaling.forward.scale"][0] == np.float32(448) / amax
    y.sum().backward()
    history = state(model)["0.scaling.backward.amax_history"][:, 0]
    assert np.count_nonzero(history) == 2
    scale = state(model)["0.scaling.backward.scale"][0]
    assert scale == np.float32(57344) / history.max()  # E5M2's range, though nothing was E5M2 while calibrating


@pytest.mark.parametrize("recipe", [recipes.MXFP8BlockScaling(), recipes.NVFP4BlockScaling()], ids=str)
def test_nothing_to_collect(device: Any, recipe: recipes.Recipe) -> None:
    found, model = train(1, enabled=False, calibrating=True, recipe=recipe)
    assert found == train(1, enabled=False)[0] and not state(model)


def test_enabled_wins_and_nonsense_is_refused(device: Any) -> None:
    recipe = DelayedScaling(amax_history_len=4)
    assert train(2, recipe=recipe, calibrating=True)[0] == train(2, recipe=recipe)[0]
    with pytest.raises(ArgumentError, match="calibrating as a bool"):
        nf.autocast(calibrating=1)  # type: ignore[arg-type]
    layer = nf.nn.Linear(4, 4)
    with (
        nf.autocast(enabled=False, calibrating=True, recipe=recipe),
        pytest.raises(DTypeError, match="outside autocast"),
    ):
        layer(nf.ones((1, 4), dtype=nf.bfloat16))
    assert len(layer.state_dict()) == 2
