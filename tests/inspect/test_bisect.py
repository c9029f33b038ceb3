"""`bisect`: finds a planted fault, leaves everything as it was, spends what it is given."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, GradientError
from nvfp.inspect.bisection import ROLES, only
from nvfp.inspect.recording import sites
from tests.recipes.every import RECIPES

QUANTIZED = [name for name in RECIPES if name != "bf16"]


class Model(nf.nn.Module):
    """Two layers, dropout between them. One huge feature, which nobody uses, spoils the scale of the second's input."""

    def __init__(self) -> None:
        super().__init__()
        rng = nf.random.default_rng(0)
        self.first = nf.nn.Linear(32, 64, rng=rng)
        self.dropout = nf.nn.Dropout(0.1, rng=rng)
        self.second = nf.nn.Linear(64, 8, rng=rng)
        with nf.no_grad():
            self.second.weight[:, 0] = 0.0

    def forward(self, x: nf.Array) -> nf.Array:
        h = self.dropout(self.first(x))
        peak = nf.asarray(np.float32([1e9] + [1.0] * 63)).astype(h.dtype)
        return self.second(h * peak)


def batch() -> nf.Array:
    return nf.random.default_rng(5).normal(size=(16, 32))


def loss(y: nf.Array) -> nf.Array:
    return ((y - 1.0) * (y - 1.0)).mean()


def snapshot(model: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(value).copy() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("switch", ["on", "off"])
def test_it_names_the_tensor_that_hurts(device: Any, switch: Any) -> None:
    """With one scale per tensor every other feature of that input becomes 0."""
    found = nf.inspect.bisect(Model(), batch(), loss=loss, recipe=RECIPES["fp8-current"], switch=switch, progress=False)
    assert len(found) == 6 and found.runs == 8
    assert {t for f in found for t in f.tensors} == {(n, r) for n in ("first", "second") for r in ROLES}
    assert found[0].tensors == (("second", "x"),)
    assert abs(found[0].loss_difference) > 3 * abs(found[1].loss_difference) and found[0].gradient_cosine < 0.9


@pytest.mark.parametrize("name", QUANTIZED)
def test_nothing_changes(device: Any, name: str) -> None:
    """State, seeds, gradients and the autocast around are as before, so training goes on with the same bits."""
    recipe = RECIPES[name]
    models = [Model(), Model()]
    outcome = []
    for i, model in enumerate(models):
        for step in range(2):
            with nf.autocast(recipe=recipe):
                value = loss(model(batch()))
                if i:
                    before = snapshot(model)
                    nf.inspect.bisect(model, batch(), loss=loss, progress=False, budget=4)
                    after = snapshot(model)
                    assert before.keys() == after.keys()
                    assert all(np.array_equal(before[k], after[k]) for k in before)
                    assert all(site.watch is None for _, site in sites(model)) and nf.recipes.current_recipe() is recipe
            value.backward()
            outcome.append((float(value), {k: np.asarray(p.grad) for k, p in model.parameters().items()}, step))
    if name == "nvfp4-default":
        return  # the seed of stochastic rounding is fresh in each model
    for one, two in zip(outcome[:2], outcome[2:], strict=True):
        assert one[0] == two[0] and all(np.array_equal(one[1][k], two[1][k]) for k in one[1])


def test_a_gradient_cannot_change_the_loss_of_its_step(device: Any) -> None:
    found = nf.inspect.bisect(Model(), batch(), loss=loss, recipe=RECIPES["fp8-current"], progress=False)
    for f in found:
        if f.tensors[0][1] == "dy":
            assert f.loss_difference == 0 and f.gradient_error > 0
    assert found.reference.gradient_cosine == pytest.approx(1) and found.reference.loss_difference == 0
    assert [f.name for f in found.sorted("gradient")] != [] and len(found.sorted("gradient")) == len(found)


@pytest.mark.parametrize(("budget", "least"), [(4, 3), (6, 1), (20, 1)])
def test_budget(budget: int, least: int) -> None:
    """Groups partition the tensors; more runs give smaller ones."""
    found = nf.inspect.bisect(Model(), batch(), loss=loss, recipe=RECIPES["fp8-current"], budget=budget, progress=False)
    assert found[0].tensors[0][0] == "second"
    assert found.runs <= budget
    together = sorted(t for f in found for t in f.tensors)
    assert together == sorted({(n, r) for n in ("first", "second") for r in ROLES})
    assert min(len(f.tensors) for f in found) == least


def test_batches_and_losses_of_other_kinds(device: Any) -> None:
    class Whole(nf.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Model()

        def forward(self, x: nf.Array, factor: float = 1.0) -> nf.Array:
            return loss(self.inner(x)) * factor

    model, recipe = Whole(), RECIPES["mxfp8"]
    options: dict[str, Any] = {"recipe": recipe, "budget": 4, "progress": False}
    one = nf.inspect.bisect(model, batch(), **options)
    two = nf.inspect.bisect(model, (batch(), 2.0), **options)
    three = nf.inspect.bisect(model, {"x": batch(), "factor": 2.0}, **options)
    assert two.quantized.loss == three.quantized.loss == pytest.approx(2 * one.quantized.loss)
    assert one[0].name.startswith("inner.")


def test_only() -> None:
    plan = nf.recipes.DelayedScaling().linear_plan()
    assert only(plan, ["w"]).delayed is plan.delayed and only(plan, []).delayed is None
    turned = nf.recipes.NVFP4BlockScaling().linear_plan()
    assert only(turned, ROLES) == turned and only(turned, ["x", "dy"]).dy.rotation == "rht16"
    assert only(turned, ["x", "w"]).x.rotation is None


def test_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    found = nf.inspect.bisect(Model().to(dtype=nf.bfloat16), batch().astype(nf.bfloat16), loss=loss,
                              recipe=RECIPES["mxfp8"], budget=4)  # fmt: skip
    assert "bisect" in capsys.readouterr().err
    lines = repr(found).splitlines()
    assert lines[0].startswith("quantized alone") and lines[-1].startswith("the loss is")
    assert found._repr_html_().count("<tr>") == len(found) + 3
    loaded = json.loads(found.to_json(tmp_path / "found.json"))
    assert loaded == json.loads((tmp_path / "found.json").read_text()) and loaded["runs"] == 4
    assert math.isfinite(loaded["quantized"]["gradient_cosine"])


def test_refusals() -> None:
    model, x = Model(), batch()
    with pytest.raises(DTypeError, match=r"\[bisect\] expected a Module"):
        nf.inspect.bisect(lambda x: x, x)  # type: ignore[arg-type]
    for options, text in (
        ({"switch": "in"}, 'switch "on" or "off"'), ({"budget": 3}, "budget as an int of at least 4"),
        ({"by": "luck"}, 'by="loss" or "gradient"'),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=text):
            nf.inspect.bisect(model, x, **options)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"a model with GEMMs of nf\.nn layers"):
        nf.inspect.bisect(nf.nn.LayerNorm(4), x)
    with pytest.raises(GradientError, match="0-d floating array"):
        nf.inspect.bisect(model, x, recipe=RECIPES["mxfp8"], progress=False)
