"""Stochastic rounding in a layer: the kernel's own draw, streams, steps, state that resumes, sharing with dropout."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp import recipes
from nvfp.arrays.random import Generator
from nvfp.dtypes.block import dequantize_exact, quantize_exact
from nvfp.dtypes.formats import nvfp4
from nvfp.dtypes.stochastic import COL_LANE, ROW_LANE, random_numbers
from nvfp.errors import ArgumentError, StateError
from nvfp.nn.functional.linear import linear
from tests.tolerances import check

RECIPE = recipes.NVFP4BlockScaling()
NAMES = ["scaling.rounding.calls", "scaling.rounding.key", "scaling.rounding.step"]


def layer(seed: int = 0, **options: Any) -> Any:
    return nf.nn.Linear(48, 32, bias=False, dtype=nf.bfloat16, rng=nf.random.default_rng(seed), **options)


def data(seed: int = 5) -> tuple[Any, Any]:
    rng = nf.random.default_rng(seed)
    x = rng.normal(size=(40, 48), dtype=nf.bfloat16)
    x.requires_grad = True
    return x, rng.normal(size=(40, 32), dtype=nf.bfloat16)


def step(module: Any, seed: int = 5, calls: int = 1) -> list[np.ndarray]:
    """The gradients of one step."""
    x, dy = data(seed)
    module.zero_grad()
    with nf.autocast(enabled=True, recipe=RECIPE):
        y = sum(module(x) for _ in range(calls))
    y.backward(dy)
    return [np.asarray(g).astype(np.float32) for g in (x.grad, module.weight.grad)]


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.array_equal(p, q) for p, q in zip(a, b, strict=True))


def test_backward_is_that_of_the_rule(device: Any) -> None:
    """dx and dW from the exact twin's copies of dy, by the key and step of the layer's state, in two steps."""
    module = layer()
    step(module)
    key = int(np.asarray(module.state_dict()[NAMES[1]]))
    assert int(np.asarray(module.state_dict()[NAMES[2]])) == 1
    dx, dw = step(module)
    x, dy = (np.asarray(a) for a in data())
    place = {"key": key, "ordinal": 0, "step": 1}
    square = nvfp4.replace(block=(16, 16))
    w = quantize_exact(np.asarray(module.weight), square, axis=0)
    row = quantize_exact(
        dy, nvfp4, axis=1, rounding="stochastic",
        random=random_numbers(dy.shape, nvfp4.element, lane=ROW_LANE, **place),
    )  # fmt: skip
    col = quantize_exact(
        dy, nvfp4, axis=0, rotation="rht16", rounding="stochastic",
        random=random_numbers((48, 32), nvfp4.element, lane=COL_LANE, **place),
    )  # fmt: skip
    x_col = quantize_exact(x, nvfp4, axis=0, rotation="rht16")
    dy_row, wide = dequantize_exact(row, nvfp4, axis=1), dequantize_exact(w, square, axis=0)
    left, right = dequantize_exact(col, nvfp4, axis=0).T, dequantize_exact(x_col, nvfp4, axis=0)
    for got, a, b in ((dx, dy_row, wide), (dw, left, right)):
        a, b = a.astype(np.float64), b.astype(np.float64)
        check(got, a @ b, "linear_nvfp4", "bfloat16", scale=np.abs(a) @ np.abs(b))


def test_draws_differ_by_step_call_layer_and_seed(device: Any) -> None:
    module = layer()
    first = step(module)
    assert not same(first, step(module))
    assert not same(first, step(layer(1)))
    assert same(first, step(layer()))
    twice = step(layer(), calls=2)
    assert not np.array_equal(twice[0], 2 * first[0])
    assert int(np.asarray(module.state_dict()[NAMES[0]])) == 0
    mlp = nf.nn.LayerNormMLP(32, 48, rng=nf.random.default_rng(0))
    with nf.autocast(enabled=True, recipe=RECIPE):
        y = mlp(nf.ones((16, 32)))
    y.backward(nf.ones(y.shape, dtype=y.dtype))
    keys = [int(np.asarray(v)) for k, v in mlp.state_dict().items() if k.endswith("rounding.key")]
    assert len(keys) == 2
    assert keys[0] != keys[1]


def test_the_mean_of_gradients_is_that_of_dy(device: Any) -> None:
    """Over 200 steps dx comes near dy W of the quantized weight: rounding errors are no bias."""
    module = layer()
    found = np.mean([step(module)[0] for _ in range(200)], axis=0)
    square = nvfp4.replace(block=(16, 16))
    w = dequantize_exact(quantize_exact(np.asarray(module.weight), square, axis=0), square, axis=0)
    wanted = np.asarray(data()[1]).astype(np.float64) @ w
    single = np.linalg.norm(step(module)[0] - wanted) / np.linalg.norm(wanted)
    mean = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    assert mean < 0.15 * single, (single, mean)


def test_state_only_where_there_is_some_and_resume(device: Any) -> None:
    module = layer()
    assert sorted(module.state_dict()) == ["weight"]
    with nf.autocast(enabled=True, recipe=recipes.NVFP4BlockScaling(disable_stochastic_rounding=True)):
        module(data()[0])
    assert sorted(module.state_dict()) == ["weight"]
    for _ in range(3):
        step(module)
    saved = {k: np.array(np.asarray(v)) for k, v in module.state_dict().items()}
    assert sorted(saved) == [*NAMES, "scaling.version", "weight"]
    expected = [step(module) for _ in range(2)]
    fresh = layer(9)
    fresh.load_state_dict(saved)
    assert all(same(step(fresh), wanted) for wanted in expected)
    used = layer(9)
    step(used)
    used.load_state_dict(saved)
    assert all(same(step(used), wanted) for wanted in expected)
    with pytest.raises(StateError, match="the keys"):
        layer().load_state_dict({k: v for k, v in saved.items() if k != NAMES[2]})
    clones = [pickle.loads(pickle.dumps(used)), copy.deepcopy(used)]
    wanted = step(used)
    assert all(same(step(clone), wanted) for clone in clones)


def test_initial_values_do_not_depend_on_it() -> None:
    """A layer spawns its generator: what is drawn after it from the same rng is what it was."""
    rng = nf.random.default_rng(0)
    nf.nn.Linear(4, 4, rng=rng)
    other: Generator = nf.random.default_rng(0)
    other.normal(size=(4, 4))
    assert np.array_equal(np.asarray(rng.normal(size=(3,))), np.asarray(other.normal(size=(3,))))


def test_a_failed_backward_does_not_advance(device: Any) -> None:
    module = layer()
    x, _ = data()
    with nf.autocast(enabled=True, recipe=RECIPE):
        y = module(x)
    step(module)
    before = int(np.asarray(module.state_dict()[NAMES[2]]))
    with pytest.raises(Exception, match=r"\[backward\]|shape"):
        y.backward(nf.ones((3, 3), dtype=nf.bfloat16))
    assert int(np.asarray(module.state_dict()[NAMES[2]])) == before


def test_a_plan_without_state_says_so(device: Any) -> None:
    x, _ = data()
    with pytest.raises(ArgumentError, match="random= for stochastic rounding"):
        linear(x, layer().weight, plan=RECIPE.linear_plan())


@pytest.mark.gpu
def test_a_graph_draws_anew_at_every_replay() -> None:
    """The step word is read and advanced inside the graph: replays give the bits of eager steps."""
    import cupy

    eager, captured = layer(), layer()
    wanted = [step(eager) for _ in range(4)]
    x, dy = data()
    stream = cupy.cuda.Stream(non_blocking=True)

    def run() -> None:
        captured.zero_grad()
        x.grad = None
        with nf.autocast(enabled=True, recipe=RECIPE):
            y = captured(x)
        y.backward(dy)

    with stream:
        run()
        stream.begin_capture()
        run()
        graph = stream.end_capture()
        for number in range(1, 4):
            graph.launch(stream)
            stream.synchronize()
            got = [np.asarray(g).astype(np.float32) for g in (x.grad, captured.weight.grad)]
            assert same(got, wanted[number]), number
