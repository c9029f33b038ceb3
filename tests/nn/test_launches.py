"""How many kernels a training step launches, and that no CuPy ufunc or copy is among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from tests.recipes.every import RECIPES

pytestmark = pytest.mark.gpu

# Launches of ours in one step of Linear(256, 128) with bias on (64, 256), forward + sum + backward.
# fprop, dgrad and wgrad GEMMs are cuBLASLt's and not counted. What each recipe adds is listed.
LAUNCHES = {
    "bf16": 5,
    "fp8": 12,
    "fp8-current": 17,
    "mxfp8": 16,
    "nvfp4": 24,
}


def step(model: nf.nn.Linear, x: nf.Array, recipe: Any) -> None:
    with nf.autocast(enabled=recipe is not None, recipe=recipe):
        y = model(x)
    y.backward(nf.ones_like(y))
    model.zero_grad()


@pytest.mark.parametrize("name", RECIPES)
def test_launches_per_step(name: str) -> None:
    from nvfp.kernels.cuda._launch import count_launches

    model = nf.nn.Linear(256, 128, dtype=nf.bfloat16, rng=nf.random.default_rng(0))
    x = nf.random.default_rng(1).normal(size=(64, 256), dtype=nf.bfloat16)
    x.requires_grad = True
    step(model, x, RECIPES[name])
    x.grad = None
    with count_launches() as counter:
        step(model, x, RECIPES[name])
    assert counter.n <= LAUNCHES[name], f"{counter.n} launches"


@pytest.mark.parametrize("name", RECIPES)
def test_no_cupy_ufunc_or_copy_in_a_training_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    model = nf.nn.MLP(64, 128, dtype=nf.bfloat16, rng=nf.random.default_rng(0))
    optimizer = nf.optim.AdamW(model.parameters(), lr=1e-3)
    targets = nf.asarray(np.arange(32, dtype=np.int32) % 64)
    x = nf.random.default_rng(1).normal(size=(32, 64), dtype=nf.bfloat16)

    def train() -> None:
        with nf.autocast(enabled=RECIPES[name] is not None, recipe=RECIPES[name]):
            loss = nf.nn.cross_entropy(model(x), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    train()
    used: list[str] = []
    for function in (
        "copy",
        "ascontiguousarray",
        "asarray",
        "array",
        "zeros",
        "ones",
        "full",
        "add",
        "multiply",
        "maximum",
        "concatenate",
    ):
        original = getattr(cupy, function)

        def spy(*args: Any, _name: str = function, _call: Any = original, **kwargs: Any) -> Any:
            used.append(_name)
            return _call(*args, **kwargs)

        monkeypatch.setattr(cupy, function, spy)
    train()
    assert used == []
