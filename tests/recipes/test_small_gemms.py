"""``autocast(min_gemm=)``: which GEMMs stay in 16 bits, that they equal plain ones, and the rule's arithmetic."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError
from nvfp.recipes.small_gemms import CROSSOVERS, crossover, too_small
from tests.recipes.every import RECIPES

QUANTIZED = [name for name in RECIPES if name != "bf16"]
SIZE = 32 * 64 * 48  # of the layer below


def run(recipe: Any, dtype: Any = nf.bfloat16, **options: Any) -> tuple[Any, list[np.ndarray]]:
    model = nf.nn.Linear(64, 48, dtype=dtype, rng=nf.random.default_rng(0))
    x = nf.random.default_rng(1).normal(size=(32, 64), dtype=nf.bfloat16)
    x.requires_grad = True
    with nf.autocast(enabled=recipe is not None, recipe=recipe, **options):
        y = model(x)
    y.sum().backward()
    return model, [np.asarray(a) for a in (y, x.grad, model.weight.grad)]


@pytest.mark.parametrize("name", QUANTIZED)
def test_the_least_size_counts(device: Any, name: str) -> None:
    """Below it a layer is the plain one, bit for bit, and gets no state; from it on it is the quantized one."""
    plain, recipe = run(None)[1], RECIPES[name]
    model, small = run(recipe, min_gemm=SIZE + 1)
    assert all(np.array_equal(a, b) for a, b in zip(small, plain, strict=True))
    assert set(model.state_dict()) == {"weight", "bias"}
    model, large = run(recipe, min_gemm=SIZE)
    assert not np.array_equal(large[0], plain[0])
    if name != "nvfp4-default":
        assert all(np.array_equal(a, b) for a, b in zip(large, run(recipe)[1], strict=True))


def test_a_float32_weight_is_cast(device: Any) -> None:
    """Under autocast the input's dtype decides; the weight's gradient keeps the weight's."""
    _, found = run(RECIPES["mxfp8"], dtype=nf.float32, min_gemm=SIZE + 1)
    assert found[0].dtype == nf.bfloat16 and found[2].dtype == nf.float32 and np.abs(found[2]).max() > 0


def test_calibrating_still_records(device: Any) -> None:
    model, _ = run(RECIPES["fp8"], min_gemm=SIZE + 1)
    assert not model.extra_state()
    x = nf.random.default_rng(1).normal(size=(32, 64), dtype=nf.bfloat16)
    with nf.autocast(enabled=False, calibrating=True, recipe=RECIPES["fp8"], min_gemm=SIZE + 1):
        model(x)
    assert model.extra_state()


def test_measured_is_for_what_was_measured(device: Any) -> None:
    """On the CPU nothing falls back; on CUDA a tiny layer does, or there is no row and that is an error."""
    recipe = RECIPES["fp8-current"]
    if device.type == "cpu":
        assert all(np.array_equal(a, b) for a, b in zip(run(recipe, min_gemm="measured")[1], run(recipe)[1]))
    elif crossover(recipe.linear_plan(), device.compute_capability):
        assert np.array_equal(run(recipe, min_gemm="measured")[1][0], run(None)[1][0])


def test_rule() -> None:
    plan = RECIPES["fp8"].linear_plan()
    row = crossover(plan, (9, 0))
    assert row is not None and row.gains(row.square, row.square, row.square)
    assert not row.gains(row.square - 16, row.square - 16, row.square - 16) and not row.gains(10**6, 16, 16)
    assert too_small("measured", plan, (9, 0), 64, 64, 64, half=True)
    assert not too_small("measured", plan, (9, 0), 8192, 4096, 4096, half=True)
    assert not too_small("measured", plan, (9, 0), 64, 64, 64, half=False) and not too_small(
        None, plan, None, 1, 1, 1, half=True
    )
    assert too_small(9, plan, None, 2, 2, 2, half=False) and not too_small(8, plan, None, 2, 2, 2, half=False)
    assert len({(c.compute, c.dtype, c.scaling) for c in CROSSOVERS}) == len(CROSSOVERS)
    with pytest.raises(ArgumentError, match="got mxfp8_e4m3 with block scales on compute capability 9"):
        too_small("measured", RECIPES["mxfp8"].linear_plan(), (9, 0), 64, 64, 64, half=True)


@pytest.mark.parametrize("value", [-1, True, 1.5, "auto"])
def test_refusals(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"\[autocast\] expected min_gemm as an int >= 0, 'measured' or None"):
        nf.autocast(min_gemm=value)


PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


def test_the_page_is_what_the_code_says() -> None:
    from docs.make_recipes import render

    text = PAGE.read_text(encoding="utf-8")
    assert text == render(text), "run: python -m docs.make_recipes"


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
def test_blocks_of_the_page(block: str) -> None:
    exec(compile(block, "docs/recipes.md", "exec"), {})
