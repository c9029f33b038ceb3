"""Module: registration, functional_call, moves and casts, no globals."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, ShapeError, StateError


def test_registration_and_names(device: Any) -> None:
    model = nf.nn.Sequential(nf.nn.Embedding(8, 4), nf.nn.MLP(4, 6), nf.nn.Linear(4, 8, bias=False))
    assert list(model.parameters()) == [
        "0.weight",
        "1.fc1.weight",
        "1.fc1.bias",
        "1.fc2.weight",
        "1.fc2.bias",
        "2.weight",
    ]
    assert "MLP" in repr(model) and "in_features=4" in repr(model)
    model[2].weight = nf.parameter(nf.zeros((8, 4)))
    assert not np.asarray(model.parameters()["2.weight"]).any()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        model.nothing  # noqa: B018


def test_fresh_entropy_and_seeds(device: Any) -> None:
    a, b = nf.nn.Linear(8, 8), nf.nn.Linear(8, 8)
    assert not np.array_equal(np.asarray(a.weight), np.asarray(b.weight))
    c, d = (nf.nn.Linear(8, 8, rng=nf.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(np.asarray(c.weight), np.asarray(d.weight))


def test_functional_call_reads_the_given_parameters(device: Any) -> None:
    model = nf.nn.MLP(4, 6, rng=nf.random.default_rng(0))
    x = nf.random.default_rng(1).normal(size=(3, 4))
    other = {name: nf.zeros_like(p) for name, p in model.parameters().items()}
    own = np.asarray(model(x))
    assert not np.asarray(nf.nn.functional_call(model, other, x)).any()
    assert np.array_equal(np.asarray(model(x)), own)
    only_bias = {"fc2.bias": nf.ones((4,)) + model.fc2.bias.detach()}
    np.testing.assert_allclose(np.asarray(nf.nn.functional_call(model, only_bias, x)), own + 1, rtol=1e-5, atol=1e-6)
    with pytest.raises(ArgumentError, match=r"\[functional_call\] expected names out of"):
        nf.nn.functional_call(model, {"fc3.bias": nf.ones((4,))}, x)


def test_functional_call_in_threads(device: Any) -> None:
    model = nf.nn.Linear(1, 1, bias=False)
    x = nf.ones((1, 1))
    wrong: list[float] = []

    def work(value: float) -> None:
        params = {"weight": nf.asarray(np.full((1, 1), value, np.float32), device=x.device)}
        for _ in range(50):
            got = nf.nn.functional_call(model, params, x).item()
            if got != value:
                wrong.append(got)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_value_and_grad_over_parameters_and_input(device: Any) -> None:
    model = nf.nn.Linear(3, 2, rng=nf.random.default_rng(0))
    x = nf.random.default_rng(1).normal(size=(5, 3))
    params = {name: p.detach() for name, p in model.parameters().items()}

    def loss(params: dict[str, nf.Array], x: nf.Array) -> nf.Array:
        return nf.nn.functional_call(model, params, x).sum()

    value, (grads, dx) = nf.value_and_grad(loss, argnums=(0, 1))(params, x)
    np.testing.assert_allclose(np.asarray(grads["bias"]), [5, 5])
    np.testing.assert_allclose(np.asarray(grads["weight"]), np.tile(np.asarray(x).sum(0), (2, 1)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(dx), np.tile(np.asarray(model.weight).sum(0), (5, 1)), rtol=1e-5, atol=1e-6)
    assert value.shape == () and model.weight.grad is None


def test_to_casts_and_keeps_parameter_objects(device: Any) -> None:
    model = nf.nn.Linear(4, 4, rng=nf.random.default_rng(0))
    weight = model.weight
    assert model.to(dtype=nf.bfloat16) is model
    assert model.weight is weight and weight.dtype == nf.bfloat16 and weight.requires_grad and weight.is_parameter
    assert model(nf.ones((1, 4), dtype=nf.bfloat16)).dtype == nf.bfloat16
    model.to("cpu")
    assert weight.device == "cpu"


def test_train_and_eval_reach_every_module(device: Any) -> None:
    model = nf.nn.Sequential(nf.nn.MLP(2, 2))
    model.eval()
    assert not any(m.training for _, m in model.named_modules())
    model.train()
    assert all(m.training for _, m in model.named_modules())


@pytest.mark.parametrize(
    "wrong",
    [
        {"fc2.scaling.forward.scale": np.ones(3, np.float32)},
        {"fc2.scaling.sideways.scale": np.ones(2, np.float32)},
        {"act.scaling.forward.scale": np.ones(2, np.float32)},
        {"fc2.bias": np.zeros(3, np.float32)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_state_that_does_not_fit_changes_nothing(device: Any, wrong: dict[str, np.ndarray]) -> None:
    model, other = (nf.nn.MLP(4, 6, rng=nf.random.default_rng(seed)) for seed in (0, 1))
    for m, size in ((model, 1.0), (other, 7.0)):
        with nf.autocast(enabled=True, recipe=nf.recipes.DelayedScaling(amax_history_len=3)):
            m(nf.full((2, 4), size))
    before = {k: np.array(v) for k, v in model.state_dict().items()}
    state = {k: np.array(v) for k, v in other.state_dict().items()}
    with pytest.raises((StateError, ShapeError), match=r"\[load_state_dict\]"):
        model.load_state_dict({**state, **wrong})
    after = model.state_dict()
    assert all(np.array_equal(before[k], np.asarray(after[k])) for k in before)
    model.load_state_dict(state)
    assert all(np.array_equal(state[k], np.asarray(v)) for k, v in model.state_dict().items())


@pytest.mark.parametrize("fused", [False, True])
def test_a_state_of_the_other_qkv_layout_names_the_remedy(device: Any, fused: bool) -> None:
    here, there = (nf.nn.MultiheadAttention(8, 2, fuse_qkv_params=f) for f in (fused, not fused))
    with pytest.raises(StateError, match="with the same fuse_qkv_params"):
        here.load_state_dict(there.state_dict())
    with pytest.raises(StateError, match="strict=False"):
        here.load_state_dict({})


def test_zero_grad(device: Any) -> None:
    model = nf.nn.Linear(2, 2)
    model(nf.ones((1, 2))).sum().backward()
    assert model.weight.grad is not None
    model.zero_grad()
    assert model.weight.grad is None


@pytest.mark.parametrize("dtype", [nf.int32, nf.nvfp4, nf.float8_e4m3fn, "nonsense"], ids=str)
def test_to_refuses_a_dtype_that_no_parameter_has(device: Any, dtype: Any) -> None:
    model = nf.nn.MLP(2, 3)
    before = model.fc1.weight.storage
    with pytest.raises(DTypeError):
        model.to(dtype=dtype)
    assert model.fc1.weight.storage is before and model.fc1.weight.dtype == nf.float32


@pytest.mark.parametrize("state", [None, {"fc2.bias": "abc"}, {"fc2.bias": np.zeros(3)}], ids=repr)
def test_a_state_of_another_kind_is_refused(device: Any, state: Any) -> None:
    model = nf.nn.MLP(4, 6)
    before = {k: np.array(v) for k, v in model.state_dict().items()}
    given = state if state is None else {**{k: v * 0 for k, v in before.items()}, **state}
    with pytest.raises((DTypeError, ShapeError)):
        model.load_state_dict(given)
    assert all(np.array_equal(before[k], np.asarray(v)) for k, v in model.state_dict().items())


def test_half_a_scaling_state_is_refused(device: Any) -> None:
    model = nf.nn.Linear(2, 2)
    state = {**model.state_dict(), "scaling.forward.scale": np.ones(2, np.float32)}
    with pytest.raises(StateError, match="scale and amax_history together"):
        model.load_state_dict(state)


@pytest.mark.parametrize("params", [None, {"weight": np.ones((2, 2), np.float32)}, {"weight": None}], ids=repr)
def test_functional_call_takes_arrays_only(device: Any, params: Any) -> None:
    with pytest.raises(DTypeError, match=r"\[functional_call\]"):
        nf.nn.functional_call(nf.nn.Linear(2, 2), params, nf.ones((1, 2)))


def test_a_module_without_super_init_says_so() -> None:
    class Forgot(nf.nn.Module):
        def __init__(self) -> None:
            self.size = 3

    with pytest.raises(StateError, match=r"\[Module\] expected super\(\).__init__\(\) first, got Forgot.size"):
        Forgot()


@pytest.mark.parametrize(
    "make",
    [
        lambda: nf.nn.Linear(2.5, 3),  # type: ignore[arg-type]
        lambda: nf.nn.Linear(True, 3),
        lambda: nf.nn.Linear("a", 3),  # type: ignore[arg-type]
        lambda: nf.nn.Linear(0, 3),
        lambda: nf.nn.Linear(2, 3, rng=5),  # type: ignore[arg-type]
        lambda: nf.nn.Embedding(0, 3),
        lambda: nf.nn.Activation("foo"),
        lambda: nf.nn.MLP(2, 3, 0),
        lambda: nf.nn.MLP(2, 3, activation="foo"),
        lambda: nf.nn.Sequential(nf.nn.GELU(), 1),  # type: ignore[arg-type]
    ],
)
def test_layers_refuse_nonsense_when_they_are_made(device: Any, make: Any) -> None:
    with pytest.raises((DTypeError, ArgumentError)):
        make()


def test_a_parameter_is_not_lost_by_accident(device: Any) -> None:
    layer = nf.nn.Linear(2, 2)
    with pytest.raises(DTypeError, match=r"assign nf\.parameter\(x\)"):
        layer.weight = layer.weight * 2
    assert list(layer.parameters()) == ["weight", "bias"]
    layer.bias = None
    del layer.weight
    assert list(layer.parameters()) == [] and not hasattr(layer, "weight")
    with pytest.raises(AttributeError):
        del layer.weight


def test_a_module_cannot_hold_itself() -> None:
    inner = nf.nn.Sequential(nf.nn.GELU())
    outer = nf.nn.Sequential(inner)
    with pytest.raises(ArgumentError, match="modules without a cycle"):
        inner.back = outer
    assert list(outer.parameters()) == []
