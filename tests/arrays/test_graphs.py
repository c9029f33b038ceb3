"""A training step captured by `nf.cuda_graph` and replayed equals eager, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import DeviceError, ShapeError
from nvfp.nn.functional.cross_entropy import cross_entropy
from tests.recipes.every import RECIPES


def make(recipe: Any) -> tuple[nf.nn.Module, nf.optim.AdamW, Any]:
    rng = nf.random.default_rng(0)
    options = {"dtype": nf.bfloat16, "rng": rng}
    model = nf.nn.Sequential(
        nf.nn.Embedding(64, 64, **options), nf.nn.MLP(64, 128, **options), nf.nn.Linear(64, 64, **options)
    )
    optimizer = nf.optim.AdamW(model.parameters(), lr=0.01)

    def step(ids: nf.Array, targets: nf.Array) -> nf.Array:
        optimizer.zero_grad()
        with nf.autocast(enabled=recipe is not None, recipe=recipe):
            loss = cross_entropy(model(ids), targets)
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


@pytest.mark.gpu
@pytest.mark.parametrize("name", RECIPES)
def test_replayed_steps_equal_eager_steps(name: str) -> None:
    data = np.random.default_rng(1).integers(0, 64, (6, 2, 48)).astype(np.int32)
    results = []
    for captured in (False, True):
        model, optimizer, step = make(RECIPES[name])
        run = nf.cuda_graph(step) if captured else step
        losses = []
        for i, (ids, targets) in enumerate(data):
            if i == 4:
                optimizer.lr = 0.003  # a device word: the captured graph reads the new value
            losses.append(np.asarray(run(nf.asarray(ids, device="cuda"), nf.asarray(targets, device="cuda"))).tobytes())
        state = {**model.state_dict(), **{f"o.{k}": v for k, v in optimizer.state_dict().items()}}
        results.append((losses, {k: np.asarray(v).tobytes() for k, v in state.items()}))
    assert results[0][0] == results[1][0]
    assert results[0][1] == results[1][1]


@pytest.mark.gpu
def test_a_replay_counts_what_it_wrote() -> None:
    model, _, step = make(None)
    run = nf.cuda_graph(step)
    ids = nf.asarray(np.zeros(8, np.int32), device="cuda")
    versions = []
    for _ in range(4):
        run(ids, ids)
        versions.append(model.parameters()["2.weight"].storage.version)
    assert versions == sorted(set(versions))


@pytest.mark.gpu
def test_other_shapes_are_refused() -> None:
    run = nf.cuda_graph(lambda x: x + x)
    assert np.asarray(run(nf.ones((2,), device="cuda"))).tolist() == [2, 2]
    with pytest.raises(ShapeError, match=r"\[cuda_graph\] expected inputs like the first call's"):
        run(nf.ones((3,), device="cuda"))


def test_cpu_inputs_are_refused() -> None:
    with pytest.raises(DeviceError, match=r"\[cuda_graph\]"):
        nf.cuda_graph(lambda x: x)(nf.ones((2,), device="cpu"))
