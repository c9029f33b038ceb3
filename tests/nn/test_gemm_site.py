"""Kept quantized weights: never stale, one copy where one serves, and microbatches equal to uncached ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp import recipes
from nvfp.inspect import memory
from nvfp.nn.functional import linear
from nvfp.recipes import DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling, NVFP4BlockScaling
from tests.recipes.every import MIXES, RECIPES

QUANTIZED = {name: recipe for name, recipe in RECIPES.items() if recipe is not None}
SQUARE = {
    "fp8-current": Float8CurrentScaling(),
    "fp8-block": recipes.Float8BlockScaling(),
    "mxfp8-2d": MXFP8BlockScaling(enable_2d_quantization=True),
    "nvfp4": NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True),
}


def call(layer: Any, recipe: Any, first: bool | None) -> bytes:
    x = nf.random.default_rng(0).normal(size=(4, 32), dtype=layer.weight.dtype)
    with nf.autocast(recipe=recipe):
        return np.asarray(layer(x, is_first_microbatch=first)).tobytes()


def stepped(layer: nf.nn.Linear) -> None:
    (layer.weight * layer.weight).sum().backward()
    nf.optim.AdamW({"w": layer.weight}, lr=0.1).step()


def written(layer: nf.nn.Linear) -> None:
    with nf.no_grad():
        layer.weight[3:5] *= 3.0


def loaded(layer: nf.nn.Linear) -> None:
    layer.load_state_dict({"weight": np.ones((16, 32), np.float32)})


CHANGES: dict[str, Callable[[nf.nn.Linear], Any]] = {
    "an optimizer step": stepped,
    "load_state_dict": loaded,
    "a write": written,
    "storage.write_": lambda layer: layer.weight.storage.write_(nf.ones((16, 32)).raw),
    "another parameter": lambda layer: setattr(layer, "weight", nf.parameter(nf.ones((16, 32)))),
    "to another dtype": lambda layer: layer.to(dtype=nf.bfloat16),
}


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_a_kept_weight_is_never_stale(device: Any, name: str, how: str) -> None:
    layer = nf.nn.Linear(32, 16, bias=False, rng=nf.random.default_rng(1))
    before = call(layer, RECIPES[name], True)
    assert call(layer, RECIPES[name], False) == before
    CHANGES[how](layer)
    after = call(layer, RECIPES[name], False)
    assert after == call(layer, RECIPES[name], None)
    assert after != before


def test_a_recipe_change_and_loaded_scales_make_it_anew(device: Any) -> None:
    layer = nf.nn.Linear(32, 16, bias=False, rng=nf.random.default_rng(1))
    for name in ("mxfp8", "nvfp4", "fp8-current", "mxfp8"):
        fresh = nf.nn.Linear(32, 16, bias=False, rng=nf.random.default_rng(1))
        assert call(layer, RECIPES[name], False) == call(fresh, RECIPES[name], None)
    delayed = DelayedScaling(amax_history_len=2)
    call(layer, delayed, True)
    state = {k: np.asarray(v) for k, v in layer.state_dict().items() if k.startswith("scaling.")}
    layer.load_state_dict({k: v * 2 if k.endswith("forward.scale") else v for k, v in state.items()}, strict=False)
    kept = call(layer.eval(), delayed, False)
    assert kept == call(layer, delayed, None)


@pytest.mark.parametrize("name", [n for n, r in QUANTIZED.items() if not isinstance(r, DelayedScaling)])
def test_microbatches_with_kept_weights_equal_uncached_ones(device: Any, name: str) -> None:
    found = []
    for cached in (False, True):
        model = nf.nn.LayerNormMLP(32, 48, rng=nf.random.default_rng(0), dtype=nf.bfloat16)
        optimizer = nf.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(2):
            optimizer.zero_grad()
            for i in range(3):
                x = nf.random.default_rng(10 * step + i).normal(size=(4, 32), dtype=nf.bfloat16)
                with nf.autocast(recipe=QUANTIZED[name]):
                    y = model(x, is_first_microbatch=i == 0 if cached else None)
                (y * y).sum().backward()
            optimizer.step()
        found.append([np.asarray(p).tobytes() for p in model.parameters().values()])
    assert found[0] == found[1]


def test_the_weight_is_quantized_once_per_step(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from nvfp.nn import _gemm_site

    calls: list[Any] = []

    def counting(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return linear.quantize_weight(*args, **options)

    monkeypatch.setattr(_gemm_site, "quantize_weight", counting)
    layer = nf.nn.Linear(32, 16)
    for first in (True, False, False):
        call(layer, RECIPES["mxfp8"], first)
    assert len(calls) == 1


@pytest.mark.parametrize("name", SQUARE)
def test_a_frozen_weight_keeps_one_copy_for_both_directions(device: Any, name: str) -> None:
    recipe, found = SQUARE[name], []
    for frozen in (False, True):
        layer = nf.nn.Linear(32, 16, bias=False, rng=nf.random.default_rng(0), dtype=nf.bfloat16)
        layer.weight.requires_grad = not frozen
        for first in (True, False):
            x = nf.random.default_rng(1).normal(size=(4, 32), dtype=nf.bfloat16)
            x.requires_grad = True
            with nf.autocast(recipe=recipe):
                y = layer(x, is_first_microbatch=first)
            y.sum().backward()
        row = memory(layer)[0]
        codes = 256 if name == "nvfp4" else 512
        assert (row.row, row.column) == (codes, 0 if frozen else codes)
        found.append([np.asarray(a).tobytes() for a in (y, x.grad)])
    assert found[0] == found[1]


def test_inference_keeps_the_row_copy_and_makes_the_other_when_wanted(device: Any) -> None:
    layer = nf.nn.Linear(32, 16, bias=False, rng=nf.random.default_rng(0))
    call(layer.eval(), RECIPES["mxfp8"], True)
    row = memory(layer)[0]
    assert (row.row, row.column, row.scales) == (512, 0, 16)
    x = nf.ones((4, 32))
    x.requires_grad = True
    with nf.autocast(recipe=RECIPES["mxfp8"]):
        layer(x, is_first_microbatch=False).sum().backward()
    assert memory(layer)[0].column == 512
    plain = nf.ones((4, 32))
    plain.requires_grad = True
    with nf.autocast(recipe=RECIPES["mxfp8"]):
        layer(plain).sum().backward()
    assert np.asarray(x.grad).tobytes() == np.asarray(plain.grad).tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["main_grad", "recompute", "quantized weights"])
@pytest.mark.parametrize("name", RECIPES | MIXES)
def test_graph_replay_equals_eager(name: str, kind: str) -> None:
    found: list[Any] = []
    recipe = (RECIPES | MIXES)[name]
    if recipe is None and kind == "quantized weights":
        recipe = MXFP8BlockScaling(enable_2d_quantization=True)
    for captured in (False, True):
        options: dict[str, Any] = {"rng": nf.random.default_rng(0), "dtype": nf.bfloat16}
        with nf.quantized_model_init(kind == "quantized weights", recipe):
            model = nf.nn.LayerNormMLP(64, 96, fuse_wgrad_accumulation=kind == "main_grad", **options)
        model.checkpoint = kind == "recompute"
        optimizer = nf.optim.AdamW(model.parameters(), lr=1e-2)

        def step(a: nf.Array, b: nf.Array, model: Any = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            for i, x in enumerate((a, b)):
                with nf.autocast(enabled=recipe is not None, recipe=recipe):
                    y = model(x, is_first_microbatch=i == 0)
                (y * y).sum().backward()
            optimizer.step()
            return y

        run = nf.cuda_graph(step) if captured else step
        outs = []
        for i in range(4):
            a, b = (nf.random.default_rng(2 * i + j).normal(size=(32, 64), dtype=nf.bfloat16) for j in (0, 1))
            outs.append(np.asarray(run(a, b)).tobytes())
        state = {**model.state_dict(), **optimizer.state_dict()}
        found.append((outs, {k: np.asarray(v).tobytes() for k, v in state.items()}))
    assert found[0] == found[1]
