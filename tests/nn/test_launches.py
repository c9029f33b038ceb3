"""How many kernels a training step launches, and that no CuPy ufunc or copy is among them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import nvfp as nf
from nvfp.kernels.attention import attention, attention_vjp
from nvfp.kernels.cuda._launch import count_launches
from tests.recipes.every import RECIPES

pytestmark = pytest.mark.gpu

# Launches of ours (cuBLASLt's kernels are not counted), as an H200 ran them.
# One step of Linear(256, 128) with bias on (64, 256), forward and backward; each recipe adds, over bf16:
# quantize x, W and dy (two passes under current scaling and NVFP4), fp8: the two updates of histories,
# mxfp8 and nvfp4 (fp8-block anywhere but on Hopper): expanding the operands of three GEMMs, nvfp4: their tensor factors
# into alpha.
LINEAR = {"bf16": 2, "fp8": 7, "fp8-current": 8, "fp8-block": 5, "mxfp8": 11, "nvfp4": 17}
# Over nvfp4, its default rotates (x and dy, in the pass that quantizes) and advances a step.
LINEAR["nvfp4-default"] = LINEAR["nvfp4"] + 1
# A whole step of MLP(64, 128) with cross_entropy and AdamW.
TRAINING = {"bf16": 12, "fp8": 20, "fp8-current": 24, "fp8-block": 18, "mxfp8": 28, "nvfp4": 39}
TRAINING["nvfp4-default"] = TRAINING["nvfp4"] + 1
# One step of TransformerLayer(64, 128, 4), hidden dropout, on (2, 16, 64), without what its attention launches, which
# depends on the backend. Forward 5: two norms, activation, two dropouts with their residuals. Backward 20: four bias
# gradients (8), two norms (4), two dropouts, activation, one addition where two gradients meet, query, key and value
# into one buffer (3), the step word of the dropout. Each of the four GEMMs adds what a recipe adds to a Linear; the two
# updates of histories are shared by the four, the advance of step words by them and the dropouts.
LAYER = 25
SHARED = {"fp8": 3 * 2, "nvfp4-default": 4}


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


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(("make", "expected"), [(linear_step, LINEAR), (training_step, TRAINING)])
def test_launches_per_step(make: Callable[[str], Callable[[], None]], expected: dict[str, int], name: str) -> None:
    step = make(name)
    step()
    with count_launches() as count:
        step()
    assert count.n == expected[name]


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


@pytest.mark.parametrize("name", RECIPES)
def test_launches_per_transformer_layer(name: str) -> None:
    expected = LAYER + 4 * (LINEAR[name] - LINEAR["bf16"]) - SHARED.get(name, 0)
    assert launches(layer_step(name)) - launches(attention_step()) == expected


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
