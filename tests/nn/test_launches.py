"""How many kernels a training step launches, and that no CuPy ufunc or copy is among them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import nvfp as nf
from nvfp.kernels.attention import attention, attention_vjp
from nvfp.kernels.cuda._launch import count_launches
from tests.recipes.every import RECIPES

# Launches of ours (cuBLASLt's and cuDNN's kernels are not counted).
# One step of Linear(256, 128) with bias on (64, 256), forward and backward. bf16: the two stages of the bias gradient.
# fp8: quantize x, W, and dy with the first of these stages; the second; the two updates of histories. fp8-current: a
# maximum for each of the three instead. mxfp8 and nvfp4 (fp8-block anywhere but on Hopper): expanding the operands of
# three GEMMs; nvfp4: their tensor factors into alpha, and maxima.
LINEAR = {"bf16": 2, "fp8": 6, "fp8-current": 7, "fp8-block": 4, "mxfp8": 10, "nvfp4": 16}
LINEAR["nvfp4-default"] = LINEAR["nvfp4"] + 1  # its default advances a step; it rotates in the pass that quantizes
# A whole step of MLP(64, 128) with cross_entropy and AdamW.
TRAINING = {"bf16": 12, "fp8": 18, "fp8-current": 22, "fp8-block": 16, "mxfp8": 26, "nvfp4": 37, "nvfp4-default": 38}
# One step of TransformerLayer(64, 128, 4), hidden dropout, on (2, 16, 64), without what its attention launches, which
# depends on the backend. bf16: forward two norms, activation, two dropouts with their residuals; backward four bias
# gradients (8), two norms (4), two dropouts, activation, the step word of the dropout. fp8: forward four weights, four
# inputs of which two come out of a norm and one out of the activation, two dropouts, update; backward four gradients
# with their bias gradients (8; one comes out of the activation's), norms (4), dropouts (2), update, step word. What
# each launch is for: docs/performance.md.
LAYER = {"bf16": 21, "fp8": 29, "fp8-current": 37, "fp8-block": 27, "mxfp8": 51, "nvfp4": 75, "nvfp4-default": 77}


def linear_step(name: str) -> Callable[[], None]:
    recipe = RECIPES[name]
    model = nf.nn.Linear(256, 128, dtype=nf.bfloat16, rng=nf.random.default_rng(0))
    x = nf.random.default_rng(1).normal(size=(64, 256), dtype=nf.bfloat16)
    x.requires_grad = True
    dy = nf.ones((64, 128), dtype=nf.bfloat16)

    def step() -> None:
        with nf.autocast(enabled=recipe is not None, recipe=recipe):
            y = model(x)
        y.backward(dy)
        model.zero_grad()
        x.grad = None

    return step


def training_step(name: str) -> Callable[[], None]:
    recipe = RECIPES[name]
    model = nf.nn.MLP(64, 128, dtype=nf.bfloat16, rng=nf.random.default_rng(0))
    optimizer = nf.optim.AdamW(model.parameters(), lr=1e-3)
    targets = nf.asarray(np.arange(32, dtype=np.int32) % 64)
    x = nf.random.default_rng(1).normal(size=(32, 64), dtype=nf.bfloat16)

    def step() -> None:
        with nf.autocast(enabled=recipe is not None, recipe=recipe):
            loss = nf.nn.cross_entropy(model(x), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.gpu
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(("make", "expected"), [(linear_step, LINEAR), (training_step, TRAINING)])
def test_launches_per_step(make: Callable[[str], Callable[[], None]], expected: dict[str, int], name: str) -> None:
    assert launches(make(name)) == expected[name]


def layer_step(name: str) -> Callable[[], None]:
    recipe = RECIPES[name]
    options = {"attention_dropout": 0.0, "dtype": nf.bfloat16, "rng": nf.random.default_rng(0)}
    model = nf.nn.TransformerLayer(64, 128, 4, **options)
    x = nf.random.default_rng(1).normal(size=(2, 16, 64), dtype=nf.bfloat16)
    dy = nf.ones((2, 16, 64), dtype=nf.bfloat16)

    def step() -> None:
        with nf.autocast(enabled=recipe is not None, recipe=recipe):
            y = model(x)
        y.backward(dy)
        model.zero_grad()

    return step


def attention_step() -> Callable[[], None]:
    """The attention inside `layer_step`, forward and backward."""
    mixed = nf.random.default_rng(1).normal(size=(2, 16, 12, 16), dtype=nf.bfloat16).raw
    q, k, v = mixed[:, :, :4], mixed[:, :, 4:8], mixed[:, :, 8:]
    dout = nf.ones((2, 16, 4, 16), dtype=nf.bfloat16).raw

    def step() -> None:
        out, saved = attention(q, k, v)
        attention_vjp(dout, q, k, v, out, saved)

    return step


def launches(step: Callable[[], None]) -> int:
    step()
    with count_launches() as count:
        step()
    return count.n


@pytest.mark.gpu
@pytest.mark.parametrize("name", RECIPES)
def test_launches_per_transformer_layer(name: str) -> None:
    assert launches(layer_step(name)) - launches(attention_step()) == LAYER[name]


def test_counts_and_page_without_a_gpu() -> None:
    """Launchers ask a GPU that computes nothing (tests/fake_gpu.py) for the same, and docs/performance.md says so."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "docs.make_performance", "--json"]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["counts"] == {"LINEAR": LINEAR, "TRAINING": TRAINING, "LAYER": LAYER}
    for name, (apart, fused) in found["saved"].items():
        assert fused <= apart, f"{name}: forward saves more than in steps apart"
    for name, limit in {"bf16": 1.97, "delayed": 2.35, "current": 2.73, "block": 2.61}.items():
        assert found["peaks"][name] <= limit, f"{name}: peak memory above TransformerEngine's"
    page = (root / "docs" / "performance.md").read_text(encoding="utf-8")
    assert page == found["page"], "run: python -m docs.make_performance"


@pytest.mark.gpu
@pytest.mark.parametrize("make", [training_step, layer_step])
@pytest.mark.parametrize("name", RECIPES)
def test_no_kernel_of_cupy_runs_in_a_training_step(make: Callable[[str], Callable[[], None]], name: str) -> None:
    """A captured step lists its kernels by name: ufuncs and copies of CuPy are called cupy_..."""
    import cupy

    step = make(name)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        step()
        stream.begin_capture()
        step()
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    kernels = graph.debug_dot_str(1)
    assert ("adam" in kernels or "dropout" in kernels) and "cupy_" not in kernels
