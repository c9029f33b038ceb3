"""Linear as Transformer Engine ran it under two FP8 recipes: after equal quantization only accumulation differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp import recipes
from nvfp.dtypes.block import dequantize_exact, quantize_exact
from nvfp.recipes.plan import TensorPlan
from tests.data.load import load
from tests.tolerances import check

CASES = {
    "linear.block.bf16": recipes.Float8BlockScaling(),
    "linear.current.fp32": recipes.Float8CurrentScaling(),
}


def magnitudes(x: np.ndarray, plan: TensorPlan, axis: int) -> np.ndarray:
    """What a product's sums err in: the magnitudes of a quantized copy."""
    blocks = quantize_exact(x, plan.format, axis=axis)
    return np.abs(dequantize_exact(blocks, plan.format, axis=axis).astype(np.float64))


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients(device: Any, case: str) -> None:
    theirs = {key.partition("/")[2]: value for key, value in load("te_linear").items() if key.startswith(f"{case}/")}
    x, weight, dy = theirs["in.0"], theirs["state.weight"], theirs["grad_out"]
    layer = nf.nn.Linear(256, 384, dtype=weight.dtype)
    layer.load_state_dict({"weight": weight, "bias": theirs["state.bias"]})
    a, recipe = nf.asarray(x, requires_grad=True), CASES[case]
    with nf.autocast(enabled=True, recipe=recipe):
        y = layer(a)
    y.backward(nf.asarray(dy))

    plan = recipe.linear_plan()
    row_x, col_x = (magnitudes(x, plan.x, axis) for axis in (1, 0))
    row_w, col_w = (magnitudes(weight, plan.w, axis) for axis in (1, 0))
    row_dy, col_dy = (magnitudes(dy, plan.dy, axis) for axis in (1, 0))
    name = "te_linear_fast" if plan.fast_fprop else "te_linear"
    bias = np.abs(theirs["state.bias"].astype(np.float64))
    check(np.asarray(y), theirs["out"], name, scale=row_x @ row_w.T + bias)
    check(np.asarray(a.grad), theirs["grad_in.0"], "te_linear", scale=row_dy @ col_w)
    check(np.asarray(layer.weight.grad), theirs["grad.weight"], "te_linear", scale=col_dy.T @ col_x)
    check(np.asarray(layer.bias.grad), theirs["grad.bias"], "bias_grad", scale=np.abs(dy.astype(np.float64)).sum(0))
