"""Training under every recipe and mix: resumed at step k, interleaved, in threads: the bits of one run alone."""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp import recipes
from tests.recipes.every import MIXES as RECIPES


class Run:
    """A small model trained by plain gradient descent; ``bits`` is all that it shows."""

    def __init__(self, recipe: recipes.Recipe, seed: int = 0) -> None:
        rng = nf.random.default_rng(seed)
        self.recipe, self.seed, self.bits = recipe, seed, b""
        self.model = nf.nn.Sequential(nf.nn.Linear(20, 16, rng=rng), nf.nn.LayerNormMLP(16, 24, rng=rng))

    def step(self, number: int) -> None:
        x = nf.random.default_rng(100 * self.seed + number).normal(size=(6, 20), dtype=nf.bfloat16)
        self.model.zero_grad()
        with nf.autocast(recipe=self.recipe):
            y = self.model(x)
        (y * y).sum().backward()
        for p in self.model.parameters().values():
            p.storage.write_((p.detach() - 0.05 * p.grad).raw)
        self.bits += np.asarray(y).tobytes()

    def saved(self) -> dict[str, np.ndarray]:
        return {k: np.array(np.asarray(v)) for k, v in self.model.state_dict().items()}

    def all(self) -> tuple[bytes, list[tuple[str, bytes]]]:
        return self.bits, sorted((k, v.tobytes()) for k, v in self.saved().items())


def train(run: Run, steps: range) -> Run:
    for number in steps:
        run.step(number)
    return run


@pytest.mark.parametrize("name", RECIPES)
def test_resume_and_two_models_at_once(device: Any, name: str) -> None:
    recipe = RECIPES[name]
    first = train(Run(recipe), range(2))
    saved, bits = first.saved(), len(first.bits)
    alone = train(first, range(2, 4)).all()

    resumed = Run(recipe, 7)  # other weights, another key: all of it is loaded
    resumed.seed = 0
    resumed.model.load_state_dict(saved)
    train(resumed, range(2, 4))
    assert (resumed.bits, resumed.all()[1]) == (alone[0][bits:], alone[1])

    again = Run(recipe)
    other = Run(recipe, 1)
    for number in range(4):  # interleaved
        again.step(number)
        other.step(number)
    assert again.all() == alone


def test_in_threads(device: Any) -> None:
    names = ("delayed_called", "nvfp4_default", "policy")
    alone = [train(Run(RECIPES[name], i), range(2)).all() for i, name in enumerate(names)]
    runs = [Run(RECIPES[name], i) for i, name in enumerate(names)]
    threads = [threading.Thread(target=copy_context().run, args=(train, run, range(2))) for run in runs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [run.all() for run in runs] == alone


def test_a_state_of_a_later_version_is_refused(device: Any) -> None:
    run = train(Run(RECIPES["delayed"]), range(1))
    saved = run.saved()
    assert saved["0.scaling.version"] == 1
    fresh = Run(RECIPES["delayed"], 1)
    before = fresh.all()
    for version in (np.asarray(2), np.asarray(0), np.asarray([1, 1])):
        with pytest.raises(nf.errors.StateError, match=r"scaling\.version"):
            fresh.model.load_state_dict({**saved, "0.scaling.version": version})
    for value in (np.zeros(2, np.float32), np.full(2, np.nan, np.float32), np.full(2, np.inf, np.float32)):
        with pytest.raises(nf.errors.StateError, match="scales above 0 and finite"):
            fresh.model.load_state_dict({**saved, "0.scaling.forward.scale": value})
    assert fresh.all() == before
    plain = {k: v for k, v in saved.items() if "scaling" not in k}
    fresh.model.load_state_dict(plain)  # no state at all is fine
    assert fresh.all()[1] == sorted((k, v.tobytes()) for k, v in plain.items())
