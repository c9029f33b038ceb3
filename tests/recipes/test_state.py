"""Delayed scaling through a module: handed case H13, when a step ends, and what a failure leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp import recipes
from nvfp.errors import ShapeError
from tests.devices import to_numpy


def layer(weight: Any = None, **kwargs: Any) -> nf.nn.Linear:
    made = nf.nn.Linear(1, 1, bias=False, **kwargs)
    made.weight.storage.write_(nf.asarray(np.full((1, 1), 1.0 if weight is None else weight, np.float32)).raw)
    return made


def forward_scale(module: nf.nn.Linear) -> float:
    return float(to_numpy(module._site.states["forward"].scale)[0])


def run(module: nf.nn.Linear, recipe: recipes.Recipe, amax: float) -> nf.Array:
    with nf.autocast(enabled=True, recipe=recipe):
        return module(nf.asarray(np.full((1, 1), amax, np.float32)))


@pytest.mark.parametrize(
    ("kwargs", "scales"),
    [
        ({}, [56, 56, 56, 224, 448]),
        ({"amax_compute_algo": "most_recent"}, [56, 224, 448, 448, 448]),
        ({"margin": 2}, [14, 14, 14, 56, 112]),
        ({"amax_history_len": 2}, [56, 56, 224, 448, 448]),
    ],
)
def test_h13_scale_after_each_step(device: Any, kwargs: dict[str, Any], scales: list[float]) -> None:
    recipe = recipes.DelayedScaling(fp8_format=recipes.Format.E4M3, **{"amax_history_len": 3, **kwargs})
    module = layer()
    seen = []
    for amax in (8, 2, 1, 1, 1):
        run(module, recipe, amax)
        seen.append(forward_scale(module))
    assert seen == scales
    run(module, recipe, np.inf)
    after = forward_scale(module)
    assert np.isfinite(after) and after == (448 if "margin" not in kwargs else 112)


def test_h13_a_module_that_did_not_run_changes_nothing(device: Any) -> None:
    recipe = recipes.DelayedScaling(fp8_format=recipes.Format.E4M3, amax_history_len=3)
    module, other = layer(), layer()
    for step, amax in enumerate((8, 2, 1, 1, 1)):
        if step == 2:
            before = {k: np.array(v) for k, v in module.state_dict().items()}
            run(other, recipe, 3.0)
            after = module.state_dict()
            assert all(np.array_equal(before[k], np.asarray(after[k])) for k in before)
        run(module, recipe, amax)
    assert forward_scale(module) == 448


def test_a_step_quantizes_with_the_scale_from_before_it(device: Any) -> None:
    recipe = recipes.DelayedScaling(fp8_format=recipes.Format.E4M3, amax_history_len=3)
    module = layer()
    assert run(module, recipe, 1000.0).item() == 448.0  # scale 1: saturates
    assert run(module, recipe, 1000.0).item() == pytest.approx(1000.0, rel=0.07)


def test_backward_inside_the_context_ends_a_step(device: Any) -> None:
    recipe = recipes.DelayedScaling(amax_history_len=4)
    module = layer()
    x = nf.asarray(np.full((1, 1), 8.0, np.float32), requires_grad=True)
    with nf.autocast(enabled=True, recipe=recipe):
        module(x).sum().backward()
        assert forward_scale(module) == 56
        assert float(to_numpy(module._site.states["backward"].scale)[0]) == 57344
        module(x).sum().backward()
        history = to_numpy(module._site.states["forward"].amax_history)[:, 0]
        assert history.tolist() == [0, 0, 8, 8]
    assert to_numpy(module._site.states["forward"].amax_history)[:, 0].tolist() == [0, 0, 8, 8]  # the exit adds no step


def test_value_and_grad_inside_the_context_ends_a_step(device: Any) -> None:
    recipe = recipes.DelayedScaling(amax_history_len=4)
    module = layer()

    def loss(params: dict[str, nf.Array], x: nf.Array) -> nf.Array:
        return nf.nn.functional_call(module, params, x).sum()

    params = {name: p.detach() for name, p in module.parameters().items()}
    with nf.autocast(enabled=True, recipe=recipe):
        for amax in (8.0, 4.0):
            nf.value_and_grad(loss, argnums=(0, 1))(params, nf.asarray(np.full((1, 1), amax, np.float32)))
    for which, newest in (("forward", [0, 0, 8, 4]), ("backward", [0, 0, 1, 1])):
        assert to_numpy(module._site.states[which].amax_history)[:, 0].tolist() == newest


def test_backward_outside_ends_the_gradient_step_once(device: Any) -> None:
    module = layer()
    x = nf.asarray(np.full((1, 1), 2.0, np.float32), requires_grad=True)
    y = run(module, recipes.DelayedScaling(amax_history_len=3), 2.0)
    with nf.autocast(enabled=True, recipe=recipes.DelayedScaling(amax_history_len=3)):
        y = module(x)
    y.backward(nf.asarray(np.full((1, 1), 4.0, np.float32)))
    assert to_numpy(module._site.states["backward"].amax_history)[:, 0].tolist() == [0, 0, 4]
    assert to_numpy(module._site.states["forward"].amax_history)[:, 0].tolist() == [0, 2, 2]


def test_an_exception_records_nothing(device: Any) -> None:
    recipe = recipes.DelayedScaling(amax_history_len=3)
    module = layer()
    run(module, recipe, 8.0)
    before = {k: np.array(v) for k, v in module.state_dict().items()}

    def fail() -> None:
        with nf.autocast(enabled=True, recipe=recipe):
            module(nf.asarray(np.full((1, 1), 99.0, np.float32)))
            module(nf.asarray(np.ones((1, 3), np.float32)))

    with pytest.raises(ShapeError):
        fail()
    after = {k: np.array(v) for k, v in module.state_dict().items()}
    assert all(np.array_equal(before[k], after[k]) for k in before)


def test_evaluation_uses_scales_and_records_nothing(device: Any) -> None:
    recipe = recipes.DelayedScaling(amax_history_len=3)
    module = layer()
    run(module, recipe, 8.0)
    before = {k: np.array(v) for k, v in module.state_dict().items()}
    module.eval()
    run(module, recipe, 2.0)
    assert all(np.array_equal(before[k], np.asarray(v)) for k, v in module.state_dict().items())


def test_two_models_interleaved_equal_each_alone(device: Any) -> None:
    recipe = recipes.DelayedScaling(amax_history_len=4)
    amaxes = ([8.0, 1.0, 3.0], [0.5, 100.0, 7.0])
    alone = []
    for values in amaxes:
        module = layer()
        for v in values:
            run(module, recipe, v)
        alone.append({k: np.array(v) for k, v in module.state_dict().items()})
    pair = (layer(), layer())
    for values in zip(*amaxes, strict=True):
        with nf.autocast(enabled=True, recipe=recipe):
            for module, v in zip(pair, values, strict=True):
                module(nf.asarray(np.full((1, 1), v, np.float32)))
    for module, want in zip(pair, alone, strict=True):
        assert all(np.array_equal(want[k], np.asarray(v)) for k, v in module.state_dict().items())


def test_recipe_changed_in_mid_training(device: Any) -> None:
    module = layer()
    e4m3 = recipes.DelayedScaling(fp8_format=recipes.Format.E4M3, amax_history_len=4)
    for v in (8.0, 4.0, 2.0):
        run(module, e4m3, v)
    run(module, recipes.DelayedScaling(fp8_format=recipes.Format.E4M3, amax_history_len=3), 1.0)
    assert to_numpy(module._site.states["forward"].amax_history)[:, 0].tolist() == [0, 2, 1]
    assert forward_scale(module) == 112
    run(module, recipes.DelayedScaling(fp8_format=recipes.Format.E4M3, amax_history_len=6), 1.0)
    assert to_numpy(module._site.states["forward"].amax_history)[:, 0].tolist() == [0, 0, 0, 2, 1, 1]


def test_loading_writes_scaling_state_in_place(device: Any) -> None:
    recipe = recipes.DelayedScaling(amax_history_len=3)
    module, other = layer(), layer()
    run(module, recipe, 8.0)
    run(other, recipe, 2.0)
    state = module._site.states["forward"]
    arrays = (state.scale, state.amax_history)
    module.load_state_dict({k: np.array(v) for k, v in other.state_dict().items()})
    assert module._site.states["forward"] is state
    assert state.scale is arrays[0] and state.amax_history is arrays[1]
    assert to_numpy(state.scale).tolist() == to_numpy(other._site.states["forward"].scale).tolist()
    run(module, recipe, 1.0)
    run(other, recipe, 1.0)
    assert forward_scale(module) == forward_scale(other)
