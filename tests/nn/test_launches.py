"""How many kernels a training step launches, and that no CuPy ufunc or copy is among them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import nvfp as nf
from nvfp.kernels.cuda._launch import count_launches
from tests.recipes.every import RECIPES

pytestmark = pytest.mark.gpu

# Launches of ours (cuBLASLt's kernels are not counted), as an H200 ran them.
# One step of Linear(256, 128) with bias on (64, 256), forward and backward; each recipe adds, over bf16:
# quantize x, W and dy (two passes under current scaling and NVFP4), fp8: the two updates of histories,
# mxfp8 and nvfp4: expanding the operands of three GEMMs, nvfp4: their tensor factors into alpha.
LINEAR = {"bf16": 2, "fp8": 7, "fp8-current": 8, "mxfp8": 11, "nvfp4": 17}
# A whole step of MLP(64, 128) with cross_entropy and AdamW.
TRAINING = {"bf16": 12, "fp8": 20, "fp8-current": 24, "mxfp8": 28, "nvfp4": 39}


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


@pytest.mark.parametrize("name", RECIPES)
def test_no_kernel_of_cupy_runs_in_a_training_step(name: str) -> None:
    """A captured step lists its kernels by name: ufuncs and copies of CuPy are called cupy_..."""
    import cupy

    step = training_step(name)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        step()
        stream.begin_capture()
        step()
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    kernels = graph.debug_dot_str(1)
    assert "adam" in kernels and "cupy_" not in kernels
