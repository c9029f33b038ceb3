"""A pass that fails leaves the state of before: scaling state, random numbers, gradients that were put off."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp import recipes
from nvfp.errors import ArgumentError, StateError
from nvfp.recipes import CustomRecipe, DelayedScaling, NVFP4BlockScaling, factories as ready

RECIPES: dict[str, recipes.Recipe] = {
    "delayed": DelayedScaling(amax_history_len=3),
    "delayed_called": DelayedScaling(amax_history_len=2, amax_compute_algo=lambda h: nf.max(h, axis=0)),
    "nvfp4": NVFP4BlockScaling(),
    "mxfp8_nvfp4": CustomRecipe(ready.mxfp8_fwd_nvfp4_bwd_factory),
}


class Stop(BaseException):
    """No Exception, as KeyboardInterrupt is none."""


def failing(x: nf.Array) -> nf.Array:
    """Identity whose gradient raises."""

    def forward(a: nf.Array) -> tuple[nf.Array, None]:
        return a, None

    def backward(_: None, dy: nf.Array) -> tuple[nf.Array]:
        raise Stop

    return nf.custom_vjp(lambda a: a, forward, backward)(x)


def model(**options: Any) -> nf.nn.Sequential:
    rng = nf.random.default_rng(0)
    return nf.nn.Sequential(nf.nn.Linear(16, 16, rng=rng, **options), nf.nn.LayerNormMLP(16, 24, rng=rng, **options))


def step(module: nf.nn.Module, recipe: recipes.Recipe, seed: int, *, fails: str = "") -> list[bytes]:
    """Output and gradients of one step; ``fails``: in front of the model in the backward pass, or behind it."""
    x = nf.random.default_rng(seed).normal(size=(6, 16))
    x.requires_grad = True
    module.zero_grad()
    with nf.autocast(recipe=recipe):
        y = module(failing(x) if fails == "behind" else x)
    y = failing(y) if fails == "before" else y
    (y * y).sum().backward()
    module.backward_dw()
    found = (y, x.grad, *(p.grad for p in module.parameters().values()))
    return [np.asarray(a).tobytes() for a in found]


def gradient_state(module: nf.nn.Module) -> dict[str, bytes]:
    """What a backward pass may change (the forward pass before it had succeeded)."""
    state = module.state_dict()
    return {k: np.asarray(v).tobytes() for k, v in state.items() if "backward" in k or "rounding" in k}


@pytest.mark.parametrize("fails", ["before", "behind"])
@pytest.mark.parametrize("name", RECIPES)
def test_a_failed_backward(device: Any, name: str, fails: str) -> None:
    recipe, module, other = RECIPES[name], model(delay_wgrad_compute=True), model()
    for m in (module, other):
        step(m, recipe, 0)
    before = gradient_state(module)
    with pytest.raises(Stop):
        step(module, recipe, 1, fails=fails)
    assert gradient_state(module) == before and before
    with nf.autocast(recipe=recipe):  # the other one sees the same forward passes
        other(nf.random.default_rng(1).normal(size=(6, 16)))
    twin = model()
    twin.load_state_dict({k: np.array(np.asarray(v)) for k, v in module.state_dict().items()})
    want = step(other, recipe, 2)
    assert step(module, recipe, 2) == want  # and nothing of the failed step waits for backward_dw
    assert step(twin, recipe, 2) == want


def test_gradients_that_were_put_off_before_stay(device: Any) -> None:
    module, recipe = model(delay_wgrad_compute=True), RECIPES["delayed"]
    for fails in ("", "behind"):
        x = nf.random.default_rng(3).normal(size=(6, 16))
        x.requires_grad = True
        with nf.autocast(recipe=recipe):
            y = module(failing(x) if fails else x)
        if fails:
            with pytest.raises(Stop):
                y.sum().backward()
        else:
            y.sum().backward()
    optimizer = nf.optim.AdamW(module.parameters())
    with pytest.raises(StateError, match="backward_dw"):
        optimizer.step()
    module.backward_dw()
    optimizer.step()  # one gradient of each weight waited, and no more


def test_a_function_that_fails_at_the_end_of_a_step(device: Any) -> None:
    """All histories and scales stay; the loop can go on."""
    fail = False

    def newest(history: nf.Array) -> nf.Array:
        return nf.zeros((5,)) if fail else history[0]

    recipe = DelayedScaling(amax_history_len=2, amax_compute_algo=newest)
    module = model()
    step(module, recipe, 0)
    before = {k: np.asarray(v).tobytes() for k, v in module.state_dict().items()}
    fail = True
    x = nf.random.default_rng(1).normal(size=(6, 16))
    with pytest.raises(ArgumentError, match="amax_compute_algo"), nf.autocast(recipe=recipe):
        module(x).sum().backward()
    assert {k: np.asarray(v).tobytes() for k, v in module.state_dict().items()} == before
    fail = False
    step(module, recipe, 1)


def test_modules_are_pickled_whatever_functions_the_recipe_has(device: Any) -> None:
    recipe = RECIPES["delayed_called"]  # its lambda cannot be pickled
    module = model()
    step(module, recipe, 0)
    twins = (pickle.loads(pickle.dumps(module)), copy.deepcopy(module))
    want = [step(module, recipe, n) for n in (1, 2)]
    assert all([step(twin, recipe, n) for n in (1, 2)] == want for twin in twins)


@pytest.mark.parametrize("value", [np.nan, -1.0])
def test_amaxes_that_are_none_are_refused(device: Any, value: float) -> None:
    module = model()
    step(module, RECIPES["delayed"], 0)
    saved = {k: np.array(np.asarray(v)) for k, v in module.state_dict().items()}
    for key in [k for k in saved if k.endswith("amax_history")]:
        bad = saved[key].copy()
        bad[-1, 0] = value
        with pytest.raises(StateError, match="amaxes of 0 and above"):
            module.load_state_dict({**saved, key: bad})
    infinite = saved["0.scaling.forward.amax_history"].copy()
    infinite[-1, 0] = np.inf
    module.load_state_dict({**saved, "0.scaling.forward.amax_history": infinite})  # an inf that was seen


@pytest.mark.parametrize("name", ["rounding.key", "rounding.step", "rounding.calls", "version"])
def test_fractions_are_no_counters(device: Any, name: str) -> None:
    module = model()
    step(module, RECIPES["nvfp4"], 0)
    saved = {k: np.array(np.asarray(v)) for k, v in module.state_dict().items()}
    with pytest.raises(StateError):
        module.load_state_dict({**saved, f"0.scaling.{name}": np.asarray(1.5)})
