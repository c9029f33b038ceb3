"""Dropout as a primitive and as a layer: one mask for both directions, steps, resume, graphs."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.autograd.region import region
from nvfp.device import Device
from nvfp.errors import DTypeError, ShapeError, StateError
from nvfp.nn._dropout import DropoutState
from nvfp.nn.functional.dropout import dropout


def layer(p: float = 0.5, seed: int = 0) -> nf.nn.Dropout:
    return nf.nn.Dropout(p, rng=nf.random.default_rng(seed))


def ones(device: Device, n: int = 4000, **options: Any) -> nf.Array:
    return nf.ones((n,), device=device, **options)


def values(x: nf.Array) -> np.ndarray:
    return np.asarray(x).astype(np.float32)


def step(module: nf.nn.Dropout, x: nf.Array) -> np.ndarray:
    """One training step; the mask, which is the gradient too."""
    x = nf.asarray(x.detach())
    x.requires_grad = True
    y = module(x)
    y.sum().backward()
    assert x.grad is not None
    assert np.array_equal(values(y), values(x.grad) * values(x))
    return values(x.grad)


@pytest.mark.parametrize("dtype", [nf.float32, nf.bfloat16, nf.float16], ids=str)
def test_backward_has_the_mask_of_forward(device: Device, dtype: Any) -> None:
    module, x = layer(), ones(device, dtype=dtype)
    masks = [step(module, x) for _ in range(4)]
    for i, a in enumerate(masks):
        assert set(a.tolist()) == {0, 2}
        for b in masks[:i]:
            assert abs(int((a == b).sum()) - 2000) < 4 * np.sqrt(1000)


def test_calls_of_one_step_differ_and_the_step_starts_them_anew(device: Device) -> None:
    module, other, x = layer(), layer(), ones(device)
    first, second = values(module(x)), values(module(x))
    assert not np.array_equal(first, second)
    assert np.array_equal(values(other(x)), first)
    step(module, x)
    step(other, x)
    assert np.array_equal(values(module(x)), values(other(x)))  # call 0 of step 1, however many calls step 0 had


def test_a_forward_keeps_its_mask_over_other_backwards(device: Device) -> None:
    module, x = layer(), ones(device, requires_grad=True)
    early = module(x)
    step(module, ones(device))
    step(module, ones(device))
    early.sum().backward()
    assert x.grad is not None
    assert np.array_equal(values(x.grad), values(early))


def test_one_step_per_outermost_backward(device: Device) -> None:
    modules, x = [layer(seed=k) for k in range(3)], ones(device, requires_grad=True)
    y = x
    for module in (*modules, *modules):
        y = module(y)
    y.sum().backward()
    found = [module.state_dict() for module in modules]
    assert [(int(s["dropout.step"].item()), int(s["dropout.calls"].item())) for s in found] == [(1, 0)] * 3
    z = modules[0](x).sum()

    def fail() -> None:
        with region():
            z.backward()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert modules[0].state_dict()["dropout.step"].item() == 1  # a pass that failed ends no step
    with nf.no_grad():
        modules[1](x)
    assert modules[1].state_dict()["dropout.step"].item() == 1


def test_resume(device: Device) -> None:
    module, x = layer(), ones(device)
    step(module, x)
    module(x)  # a call of the step that is not finished
    saved = {name: np.array(np.asarray(value)) for name, value in module.state_dict().items()}
    expected = [step(module, x) for _ in range(3)]
    for resumed in (layer(seed=99), module):  # a new one, and in place
        resumed.load_state_dict(saved)
        assert all(np.array_equal(step(resumed, x), mask) for mask in expected)
    for unused in (layer(seed=5),):
        unused.load_state_dict(saved)
        assert {k: int(v.item()) for k, v in unused.state_dict().items()} == {k: int(v) for k, v in saved.items()}
    copy = pickle.loads(pickle.dumps(module))
    assert np.array_equal(step(copy, x), step(module, x))


def test_state_of_nested_modules() -> None:
    model = nf.nn.Sequential(nf.nn.Linear(4, 4, device="cpu"), layer())
    assert "1.dropout.step" not in model.state_dict()
    model(nf.ones((2, 4), device="cpu"))
    state = model.state_dict()
    assert {k for k in state if "dropout" in k} == {"1.dropout.step", "1.dropout.key", "1.dropout.calls"}
    model.load_state_dict(state)
    for wrong in ({"1.dropout.step": 1}, {"1.dropout.key": -1, "1.dropout.step": 0, "1.dropout.calls": 0}):
        with pytest.raises(nf.errors.StateError):
            model.load_state_dict({**{k: v for k, v in state.items() if "dropout" not in k}, **wrong})
    with pytest.raises(nf.errors.StateError):
        model.load_state_dict({**state, "0.dropout.step": 3})


def test_residual(device: Device) -> None:
    x, r = (nf.random.default_rng(k).normal(size=(33, 7), dtype=nf.bfloat16, device=device) for k in (0, 1))
    fused, apart = layer(), layer()
    pairs = [(nf.asarray(x), nf.asarray(r)) for _ in range(2)]
    for pair in pairs:
        for a in pair:
            a.requires_grad = True
    y, z = fused(pairs[0][0], pairs[0][1]), apart(pairs[1][0]) + pairs[1][1]
    assert np.array_equal(values(y), values(z))
    y.sum().backward()
    z.sum().backward()
    for a, b in zip(*pairs):
        assert a.grad is not None
        assert b.grad is not None
        assert np.array_equal(values(a.grad), values(b.grad))


def test_when_nothing_is_dropped(device: Device) -> None:
    x = nf.asarray([1.0, -2.0], device=device)
    for module in (layer(0.0), layer().eval()):
        assert module(x).tolist() == [1, -2]
        assert module(x, x).tolist() == [2, -4]
        assert not module.state_dict()
    assert layer(1.0)(x).tolist() == [0, 0]
    assert layer(1.0)(x, x).tolist() == [1, -2]


def test_other_device_and_errors(device: Device) -> None:
    module = layer()
    module(nf.ones((3,), device="cpu"))
    module.load_state_dict({k: int(v.item()) + 1 for k, v in module.state_dict().items()})
    module(ones(device))  # the word moves with the data
    assert module.state_dict()["dropout.step"].item() == 1
    assert module.state_dict()["dropout.step"].device == device
    with pytest.raises(ValueError, match="probability"):
        nf.nn.Dropout(1.2)
    with pytest.raises(TypeError, match="rng=a Generator"):
        nf.nn.Dropout(0.1, rng=3)  # type: ignore[arg-type]
    x = ones(device)
    with pytest.raises(TypeError, match="residual of float32"):
        dropout(x, 0.5, DropoutState().draw(x.raw), residual=ones(device, dtype=nf.bfloat16))


def test_a_call_that_fails_has_drawn_nothing(device: Device) -> None:
    module, x = layer(), ones(device)
    module(x)
    for broken in (lambda: module(x, x[:3]), lambda: module(nf.arange(3, device=device))):
        with pytest.raises((ShapeError, DTypeError)):
            broken()
    assert module.state_dict()["dropout.calls"].item() == 1
    attention = nf.nn.DotProductAttention(1, 4, attention_dropout=0.5)
    q = nf.ones((1, 2, 1, 4), device=device)
    attention(q, q, q)
    with pytest.raises(ValueError, match="a mask"):
        attention(q, q, q, attn_mask_type="padding")
    assert attention.state_dict()["dropout.calls"].item() == 1


@pytest.mark.parametrize("value", [np.inf, np.nan, -1, "x"])
def test_a_state_that_is_no_number_is_refused(value: Any) -> None:
    module = layer()
    module(nf.ones((3,), device="cpu"))
    state = {**module.state_dict(), "dropout.key": value}
    with pytest.raises(StateError, match="dropout state in"):
        module.load_state_dict(state)


@pytest.mark.gpu
def test_graph_equals_eager() -> None:
    """The step word is on the device, so replays draw what eager steps draw."""
    x, w = ones(Device("cuda"), 5000), nf.parameter(ones(Device("cuda"), 5000))
    results = []
    for captured in (False, True):
        modules = [layer(0.3, seed=k) for k in range(2)]
        masks: list[np.ndarray] = []

        def run(x: nf.Array, modules: list[nf.nn.Dropout] = modules) -> tuple[nf.Array, nf.Array]:
            w.grad = None
            y = modules[1](modules[0](x * w), x)
            y = modules[0](y)
            y.sum().backward()
            assert w.grad is not None
            return y, w.grad

        call = nf.cuda_graph(run) if captured else run
        for _ in range(5):
            masks += [values(a) for a in call(x)]
        results.append((masks, int(modules[0].state_dict()["dropout.step"].item())))
    assert results[0][1] == results[1][1] == 5
    assert all(np.array_equal(a, b) for a, b in zip(results[0][0], results[1][0], strict=True))
    assert not np.array_equal(results[1][0][2], results[1][0][4])
