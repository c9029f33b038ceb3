"""Recompute inside layers: the bits of the plain run under every recipe, scales, dropout and rounding repeated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp import recipes
from nvfp.inspect import peak_memory
from tests.recipes.every import RECIPES

KINDS = {
    "whole": {"whole": True},
    "inside": {"mlp": True, "attention": True},
    "all, weights kept": {"whole": True, "mlp": True, "attention": True, "first": True},
}


def run(
    recipe: Any, *, whole: bool = False, mlp: bool = False, attention: bool = False, first: Any = None
) -> list[bytes]:
    """Three steps of a block with dropout, two forward passes before the first backward: every bit that comes out."""
    model = nf.nn.TransformerLayer(
        16, 32, 2, hidden_dropout=0.2, attention_dropout=0.2, dtype=nf.bfloat16, rng=nf.random.default_rng(0)
    )
    model.layernorm_mlp.checkpoint = mlp
    optimizer = nf.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for step in range(3):
        xs = [nf.random.default_rng(10 * step + i).normal(size=(2, 8, 16), dtype=nf.bfloat16) for i in (0, 1)]
        optimizer.zero_grad()
        ys = []
        for i, x in enumerate(xs):
            x.requires_grad = True
            options = {"is_first_microbatch": None if first is None else i == 0, "checkpoint_core_attention": attention}
            with nf.autocast(enabled=recipe is not None, recipe=recipe):  # each exit moves delayed scales on
                ys.append(nf.checkpoint(model, x, **options) if whole else model(x, **options))
        for y in ys:  # and each of these the random steps
            (y * y).sum().backward()
        arrays = [*ys, *(x.grad for x in xs), *(p.grad for p in model.parameters().values())]
        found += [np.asarray(a).tobytes() for a in arrays]
        optimizer.step()
    return found + [np.asarray(v).tobytes() for v in model.state_dict().values()]


@pytest.mark.parametrize("name", RECIPES)
def test_recompute_gives_the_bits_of_the_plain_run(device: Any, name: str) -> None:
    plain = run(RECIPES[name])
    kept = run(RECIPES[name], first=True)
    for kind, options in KINDS.items():
        assert run(RECIPES[name], **options) == (kept if "first" in options else plain), kind
    if not isinstance(RECIPES[name], recipes.DelayedScaling):  # a kept weight keeps the scale of its microbatch
        assert kept == plain


def test_mixed_formats_and_policies_by_name(device: Any) -> None:
    mixed = recipes.MXFP8BlockScaling(backward_override="dequantized")
    assert run(mixed) == run(mixed, whole=True)


def test_the_last_gemm_is_not_run_again(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from nvfp.nn.functional import linear

    calls: list[Any] = []
    real = linear.gemm

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return real(*args, **options)

    monkeypatch.setattr(linear, "gemm", counted)
    model = nf.nn.LayerNormMLP(16, 32, checkpoint=True, rng=nf.random.default_rng(0))
    x = nf.ones((4, 16))
    x.requires_grad = True
    with nf.autocast(recipe=recipes.MXFP8BlockScaling()):
        y = model(x)
    assert len(calls) == 2
    y.sum().backward()
    assert len(calls) == 2 + 1 + 2  # fc1 again, two dgrads (wgrad is called elsewhere)


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", [None, recipes.MXFP8BlockScaling()], ids=str)
def test_peak_memory_falls(recipe: Any) -> None:
    peaks = []
    for checkpoint in (False, True):
        model = nf.nn.LayerNormMLP(256, 4096, dtype=nf.bfloat16, checkpoint=checkpoint)
        x = nf.ones((4096, 256), dtype=nf.bfloat16)
        x.requires_grad = True
        with peak_memory() as peak:
            with nf.autocast(enabled=recipe is not None, recipe=recipe):
                held = [model(x) for _ in range(4)]
            sum((y.sum() for y in held[1:]), held[0].sum()).backward()
        peaks.append(peak.bytes - peak.start)
    assert peaks[1] < 0.7 * peaks[0]
