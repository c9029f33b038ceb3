"""main_grad, gradients put off, inputs kept as they came: `fuse_wgrad_accumulation` and its kin, under every recipe."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, GradientError, ShapeError, StateError
from nvfp.recipes import DelayedScaling, Float8CurrentScaling
from tests.recipes.every import RECIPES

LAYERS: dict[str, Callable[..., nf.nn.Module]] = {
    "Linear": lambda **o: nf.nn.Linear(32, 16, **o),
    "parts": lambda **o: nf.nn.Linear(32, 16, parameters_split={"query": 8, "key": 4, "value": 4}, **o),
    "LayerNormLinear": lambda **o: nf.nn.LayerNormLinear(32, 16, **o),
    "LayerNormMLP": lambda **o: nf.nn.LayerNormMLP(32, 16, activation="swiglu", **o),
}


def gradients(recipe: Any, model: nf.nn.Module, firsts: tuple[Any, ...] = (None,)) -> dict[str, bytes]:
    """Gradients after one backward pass per entry of ``firsts``, each on other data."""
    for i, first in enumerate(firsts):
        x = nf.random.default_rng(i).normal(size=(5, 32))
        x.requires_grad = True
        with nf.autocast(enabled=recipe is not None, recipe=recipe):
            y = model(x, is_first_microbatch=first)
        (y * y).sum().backward()
        model.backward_dw()
    found = {name: p.grad if p.main_grad is None else p.main_grad for name, p in model.parameters().items()}
    return {name: np.asarray(g).tobytes() for name, g in found.items()}


def make(layer: str, **options: Any) -> nf.nn.Module:
    return LAYERS[layer](rng=nf.random.default_rng(0), **options)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", RECIPES)
def test_main_grad_and_late_gradients_equal_the_plain_ones(device: Any, name: str, layer: str) -> None:
    recipe = RECIPES[name]
    plain = gradients(recipe, make(layer), (True,))  # float32 parameters: the same sums, rounded nowhere
    fused = make(layer, fuse_wgrad_accumulation=True)
    assert gradients(recipe, fused, (True,)) == plain
    weights = {n: p for n, p in fused.parameters().items() if n.endswith("weight") and not n.startswith("layer_norm")}
    assert all(p.grad is None and p.main_grad.dtype == nf.float32 for p in weights.values())
    assert gradients(recipe, make(layer, delay_wgrad_compute=True), (True,)) == plain
    assert gradients(recipe, make(layer, delay_wgrad_compute=True, fuse_wgrad_accumulation=True), (True,)) == plain


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", RECIPES)
def test_what_is_frozen_changes_no_other_gradient(device: Any, name: str, layer: str) -> None:
    """Each kind of parameter without a gradient, then all of them: the others' gradients have the same bits."""
    wanted: dict[str, Any] = {}
    for frozen in (None, "bias", "weight", ""):
        model = make(layer)
        for key, p in model.parameters().items():
            p.requires_grad = frozen is None or not key.endswith(frozen)
        x = nf.random.default_rng(0).normal(size=(5, 32))
        x.requires_grad = True
        with nf.autocast(enabled=RECIPES[name] is not None, recipe=RECIPES[name]):
            y = model(x)
        (y * y).sum().backward()
        found = {key: p.grad for key, p in model.parameters().items()} | {"x": x.grad}
        wanted = wanted or found
        for key, gradient in found.items():
            if frozen is not None and key != "x" and key.endswith(frozen):
                assert gradient is None
            else:
                assert np.array_equal(np.asarray(gradient), np.asarray(wanted[key])), (frozen, key)


def test_main_grad_adds_and_starts_anew(device: Any) -> None:
    model = make("Linear", fuse_wgrad_accumulation=True, bias=False, dtype=nf.bfloat16)
    x = nf.ones((1, 32), dtype=nf.bfloat16)
    seen = []

    def step(first: bool | None) -> float:
        model(x, is_first_microbatch=first).sum().backward()
        return float(np.asarray(model.weight.main_grad)[0, 0])

    seen = [step(first) for first in (None, None, True, False, False)]
    assert seen == [1.0, 2.0, 1.0, 2.0, 3.0]
    address = model.weight.main_grad.raw
    model.zero_grad()
    assert model.weight.main_grad.raw is address
    assert step(None) == 1.0
    model.weight.overwrite_main_grad = True
    assert [step(None), step(False)] == [1.0, 1.0]
    y, z = model(x, is_first_microbatch=True), model(x)  # two uses of one step: the second adds
    (y + z).sum().backward()
    assert float(np.asarray(model.weight.main_grad)[0, 0]) == 2.0


def test_main_grad_is_float32_in_memory_of_the_users(device: Any) -> None:
    model = make("Linear", fuse_wgrad_accumulation=True, dtype=nf.bfloat16)
    mine = nf.zeros((16, 32))
    model.weight.main_grad = mine
    x = nf.random.default_rng(0).normal(size=(5, 32), dtype=nf.bfloat16)
    y = model(x)
    dy = nf.random.default_rng(1).normal(size=(5, 16), dtype=nf.bfloat16)
    y.backward(dy)
    exact = np.asarray(dy).astype(np.float64).T @ np.asarray(x).astype(np.float64)
    assert model.weight.grad is None
    assert abs(np.asarray(mine) - exact).max() < 1e-5 * abs(exact).max()  # bfloat16 errs by 2e-3
    (model.weight * 2).sum().backward()  # gradients of other functions go there too
    assert np.allclose(np.asarray(mine), exact + 2, rtol=1e-5, atol=1e-5)
    for wrong in (nf.zeros((16, 32), dtype=nf.bfloat16), nf.zeros((16,)), 3):
        with pytest.raises(ShapeError, match="main_grad"):
            model.weight.main_grad = wrong
    with pytest.raises(GradientError, match="main_grad"):
        nf.ones((2,)).main_grad = nf.ones((2,))


def test_functions_of_parameters_return_their_gradients(device: Any) -> None:
    model = make("Linear", fuse_wgrad_accumulation=True, delay_wgrad_compute=True)
    x = nf.ones((2, 32))
    found = nf.grad(lambda p: nf.nn.functional_call(model, p, x).sum())(model.parameters())
    assert np.asarray(found["weight"]).tolist() == np.full((16, 32), 2.0).tolist()
    assert model.weight.main_grad is None


def test_a_part_with_another_gradient_keeps_it(device: Any) -> None:
    model = make("parts", fuse_wgrad_accumulation=True, bias=False)
    x = nf.ones((1, 32))
    (model(x) * 0 + 5).sum().backward()
    y = model(x, is_first_microbatch=True)
    (model.key_weight * 2).sum().backward()  # comes before the layer's own
    y.sum().backward()
    found = [float(np.asarray(p.main_grad)[0, 0]) for p in model.parameters().values()]
    assert found == [1.0, 3.0, 1.0]


def test_parts_with_gradients_elsewhere_are_refused(device: Any) -> None:
    model = make("parts", fuse_wgrad_accumulation=True)
    model.key_weight.main_grad = nf.zeros((4, 32))
    with pytest.raises(StateError, match="as the layer has made it"):
        model(nf.ones((2, 32)))


def test_a_step_does_not_miss_what_waits(device: Any) -> None:
    model = make("LayerNormMLP", delay_wgrad_compute=True)
    optimizer = nf.optim.AdamW(model.parameters())
    x = nf.random.default_rng(0).normal(size=(5, 32))
    for _ in range(2):  # a pipeline may run ahead
        model(x).sum().backward()
    with pytest.raises(StateError, match="backward_dw"):
        optimizer.step()
    assert optimizer.step_count == 0
    assert model.fc1_weight.grad is None
    model.backward_dw()
    twice = np.asarray(model.fc1_weight.grad)
    model.zero_grad()
    model(x).sum().backward()
    nf.nn.Sequential(model).backward_dw()  # a container passes it on
    assert np.allclose(twice, 2 * np.asarray(model.fc1_weight.grad), rtol=1e-6, atol=0)
    optimizer.step()
    model.backward_dw()  # nothing waits: nothing happens


def test_optimizers_read_main_grad(device: Any) -> None:
    ends = []
    for fuse in (False, True):
        model = make("parts", fuse_wgrad_accumulation=fuse)
        optimizer = nf.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            gradients(RECIPES["mxfp8"], model, (True, False))
            optimizer.step()
        ends.append([np.asarray(p) for p in model.parameters().values()])
    for a, b in zip(*ends, strict=True):  # added inside the GEMM or after it: one rounding apart
        assert np.allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [n for n, r in RECIPES.items() if not isinstance(r, DelayedScaling)])
def test_save_original_input_gives_the_same_bits(device: Any, name: str) -> None:
    plain = gradients(RECIPES[name], make("Linear"))
    assert gradients(RECIPES[name], make("Linear", save_original_input=True)) == plain


def test_save_original_input_is_refused_before_anything_changes(device: Any) -> None:
    model = make("Linear", save_original_input=True)
    with nf.autocast(recipe=DelayedScaling()), pytest.raises(ArgumentError, match="save_original_input"):
        model(nf.ones((2, 32)))
    assert list(model.state_dict()) == ["weight", "bias"]
    x = nf.ones((2, 32))
    with nf.autocast(recipe=Float8CurrentScaling()):
        y = model(nf.parameter(x))
    y.sum().backward()


def test_copies_keep_the_arguments_and_not_what_waits(device: Any) -> None:
    model = make("Linear", fuse_wgrad_accumulation=True, delay_wgrad_compute=True)
    model(nf.ones((2, 32))).sum().backward()
    twin = copy.deepcopy(model)
    assert gradients(None, twin) == gradients(None, make("Linear", fuse_wgrad_accumulation=True))


@pytest.mark.parametrize("recipe", [Float8CurrentScaling(), DelayedScaling(amax_history_len=2)], ids=str)
def test_quantized_results_between_layers(device: Any, recipe: Any) -> None:
    a, b = (nf.nn.Linear(32, 32, dtype=nf.bfloat16, rng=nf.random.default_rng(i)) for i in (0, 1))
    found: list[dict[str, Any]] = []
    for narrow in (False, True):
        for model in (a, b):
            model.zero_grad()
        x = nf.random.default_rng(3).normal(size=(2, 5, 32), dtype=nf.bfloat16)
        x.requires_grad = True
        with nf.autocast(recipe=recipe):
            h = a(x, fp8_output=narrow)
            y = b(h, fp8_grad=narrow)
        (y * y).sum().backward()
        assert (isinstance(h, nf.QuantizedArray), y.dtype, h.shape) == (narrow, nf.bfloat16, (2, 5, 32))
        found.append({n: np.asarray(v).astype(np.float32) for n, v in (("y", y), ("x", x.grad), ("a", a.weight.grad))})
    if isinstance(recipe, Float8CurrentScaling):  # the same scale from the same amax: the same codes
        assert found[0]["y"].tobytes() == found[1]["y"].tobytes()
        assert all(np.array_equal(found[0][k], found[1][k]) for k in found[0])
    else:
        keys = [k for k in a.state_dict() if "output" in k] + [k for k in b.state_dict() if "gradient" in k]
        assert len(keys) == 6
        assert np.asarray(a.state_dict()["scaling.output.scale"]) != 1.0  # it has followed its amax
        assert np.asarray(b.state_dict()["scaling.gradient.scale"]) != 1.0
        for model in (a, b):
            model.load_state_dict(model.state_dict())


def test_what_cannot_leave_quantized_is_refused(device: Any) -> None:
    model, x = make("Linear"), nf.ones((2, 32))
    for recipe, match in ((None, "none"), (RECIPES["mxfp8"], "mxfp8_e4m3"), (RECIPES["fp8-block"], "b128")):
        for argument in ("fp8_output", "fp8_grad"):
            with nf.autocast(enabled=recipe is not None, recipe=recipe), pytest.raises(ArgumentError, match=match):
                model(x, **{argument: True})
    x.requires_grad = True
    with nf.autocast(recipe=Float8CurrentScaling()), pytest.raises(ArgumentError, match="made by a quantized layer"):
        model(nf.sin(x), fp8_grad=True)
    with nf.autocast(recipe=Float8CurrentScaling()), pytest.raises(ArgumentError, match="bool"):
        model(x, fp8_output=1)
