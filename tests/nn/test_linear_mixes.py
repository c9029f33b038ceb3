"""Linear under mixes: other formats per direction and per tensor, high-precision and dequantized backward."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nvfp as nf
from nvfp import recipes
from nvfp.dtypes.block import dequantize_exact, quantize_exact
from nvfp.errors import GradientError
from nvfp.recipes import HybridQuantizer, IdentityQuantizer, QuantizerRole, factories as ready
from nvfp.recipes.plan import TensorPlan
from tests.nn.test_linear import draw
from tests.tolerances import check

BF16 = np.dtype(ml_dtypes.bfloat16)


def rotated(role: QuantizerRole) -> TensorPlan:
    """NVFP4 as it is by default, but gradients rounded to nearest, so that the right values are known."""
    plan = recipes.NVFP4BlockScaling(disable_stochastic_rounding=True).linear_plan()
    return {"input": plan.x, "weight": plan.w, "grad_output": plan.dy}[role.tensor_type]


def mxfp8_then_nvfp4(role: QuantizerRole) -> TensorPlan:
    if role.tensor_type == "grad_output":
        return rotated(role)
    source = "original" if role.tensor_type == "input" else "rowwise_dequantized"
    column = rotated(role) if role.tensor_type == "input" else TensorPlan(nf.nvfp4)
    return HybridQuantizer(nf.mxfp8, column, source)


def rows_and_columns(role: QuantizerRole) -> TensorPlan:
    """Every copy in another format; the per-tensor row copy of the weight is square, its column is not its bytes."""
    made: dict[str, TensorPlan] = {
        "input": HybridQuantizer(nf.mxfp8_e5m2, nf.mxfp6_e2m3),
        "weight": HybridQuantizer(nf.fp8_e4m3, nf.fp8_e4m3_b128, "rowwise_dequantized"),
        "grad_output": HybridQuantizer(nf.fp8_e5m2, IdentityQuantizer()),
    }
    return made[role.tensor_type]


def custom(factory: Any) -> recipes.Recipe:
    return recipes.CustomRecipe(factory)


NVFP4 = {"disable_rht": True, "disable_stochastic_rounding": True}
RECIPES: dict[str, recipes.Recipe] = {
    "high_precision": custom(ready.high_precision_factory),
    "hp_fwd_mxfp8_bwd": custom(ready.high_precision_fwd_mxfp8_bwd_factory),
    "mxfp8_fwd_hp_bwd": custom(ready.mxfp8_fwd_high_precision_bwd_factory),
    "mxfp8_fwd_nvfp4_bwd": custom(mxfp8_then_nvfp4),
    "rows_fwd_mxfp8_bwd": custom(ready.nvfp4_row_scaled_fwd_mxfp8_bwd_factory),
    "rows_fwd_hp_bwd": custom(ready.nvfp4_row_scaled_fwd_high_precision_bwd_factory),
    "rows_and_columns": custom(rows_and_columns),
    "current_hp": recipes.Float8CurrentScaling(backward_override="high_precision"),
    "block_dequantized": recipes.Float8BlockScaling(backward_override="dequantized"),
    "block_f32_dequantized": recipes.Float8BlockScaling(use_f32_scales=True, backward_override="dequantized"),
    "mxfp8_hp": recipes.MXFP8BlockScaling(backward_override="high_precision"),
    "nvfp4_dequantized": recipes.NVFP4BlockScaling(backward_override="dequantized"),
    "nvfp4_rows_dequantized": recipes.NVFP4BlockScaling(
        disable_rht=True, row_scaled_activation=True, backward_override="dequantized"
    ),
    "policy": recipes.Policy(
        {"*:grad_output": recipes.MXFP8BlockScaling(), "*:weight": None}, default=recipes.NVFP4BlockScaling(**NVFP4)
    ),
    "delayed_hp_dy": recipes.Policy({"*:grad_output": None}, default=recipes.DelayedScaling()),
}


def copies(x: np.ndarray, plan: TensorPlan) -> tuple[np.ndarray, np.ndarray]:
    """Row and column copies in float64, as the plan says; the first delayed step has scale 1."""
    row = _copy(x, plan, 1)
    column = plan.side("col")
    if column.source == "row" and column.format is not None:
        return row, _copy(row.astype(np.float32).astype(x.dtype), column, 0)
    return row, row if column.source == "row" else _copy(x, column, 0)


def _copy(x: np.ndarray, plan: TensorPlan, axis: int) -> np.ndarray:
    if plan.format is None:
        return x.astype(np.float64)
    scale = np.float32(1) if plan.scaling == "delayed" else None
    rotation = plan.rotation if axis == 0 else None
    blocks = quantize_exact(x, plan.format, axis=axis, scale=scale, rotation=rotation)
    return dequantize_exact(blocks, plan.format, axis=axis).astype(np.float64)


def row_of(device: Any, *plans: TensorPlan) -> str:
    """Row of a product: two FP8 operands in float32 scales may meet on Hopper's FP8 cores, which keep fewer bits."""
    formats = [p.format for p in plans]
    narrow = all(f is not None and f.scale_family == "float32" for f in formats)
    if narrow and device.type == "cuda":
        return "linear_fp8"
    return "linear_bf16" if None in formats else "linear_mxfp8"


@pytest.mark.parametrize("shape", [(32, 64, 48), (7, 33, 18), (1, 16, 1)], ids=str)
@pytest.mark.parametrize("name", RECIPES)
def test_three_gemms(device: Any, name: str, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(m * k + n)
    x, w, b, dy = (draw(rng, s, BF16) for s in ((m, k), (n, k), (n,), (m, n)))
    module = nf.nn.Linear(k, n)  # float32 parameters: in high precision they count in the dtype of x
    module.load_state_dict({"weight": w, "bias": b})
    xa = nf.asarray(x, requires_grad=True)
    with nf.autocast(recipe=RECIPES[name]):
        y = module(xa)
    y.backward(nf.asarray(dy))

    plan = RECIPES[name].linear_plan()
    (x_row, x_col), (w_row, w_col), (dy_row, dy_col) = (
        copies(a, p) for a, p in ((x, plan.x), (w.astype(np.float32), plan.w), (dy, plan.dy))
    )
    bias = b.astype(np.float64)
    side = TensorPlan.side
    rows = {g: row_of(device, side(p, a), side(q, c)) for g, p, a, q, c in (
        ("fprop", plan.x, "row", plan.w, "row"), ("dgrad", plan.dy, "row", plan.w, "col"),
        ("wgrad", plan.dy, "col", plan.x, "col"))}  # fmt: skip
    check(np.asarray(y), x_row @ w_row.T + bias, rows["fprop"], scale=np.abs(x_row) @ np.abs(w_row.T) + np.abs(bias))
    check(np.asarray(xa.grad), dy_row @ w_col, rows["dgrad"], scale=np.abs(dy_row) @ np.abs(w_col))
    scale = np.abs(dy_col.T) @ np.abs(x_col)
    check(np.asarray(module.weight.grad), dy_col.T @ x_col, rows["wgrad"], "bfloat16", scale=scale)
    assert (y.dtype, xa.grad.dtype, module.weight.grad.dtype) == (nf.bfloat16, nf.bfloat16, nf.float32)


def run(recipe: recipes.Recipe | None, dtype: Any = nf.float32, seed: int = 0) -> list[bytes]:
    """Output and gradients of two steps of a small layer."""
    layer = nf.nn.Linear(48, 24, dtype=dtype, rng=nf.random.default_rng(seed))
    x = nf.random.default_rng(1).normal(size=(20, 48), dtype=dtype)
    x.requires_grad = True
    found = []
    for _ in range(2):
        layer.zero_grad()
        x.grad = None
        with nf.autocast(enabled=recipe is not None, recipe=recipe):
            y = layer(x)
        (y * y).sum().backward()
        found += [np.asarray(a).tobytes() for a in (y, x.grad, layer.weight.grad, layer.bias.grad)]
    return found


@pytest.mark.parametrize(
    ("factory", "recipe"),
    [
        (ready.high_precision_factory, None),
        (ready.delayed_scaling_factory, recipes.DelayedScaling()),
        (ready.current_scaling_factory, recipes.Float8CurrentScaling()),
        (ready.float8_block_scaling_factory, recipes.Float8BlockScaling()),
        (ready.mxfp8_factory, recipes.MXFP8BlockScaling()),
        (ready.nvfp4_factory, recipes.NVFP4BlockScaling()),
        (
            ready.mxfp8_fwd_high_precision_bwd_factory,
            recipes.MXFP8BlockScaling(backward_override="dequantized"),
        ),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_factories_are_the_recipes(device: Any, factory: Any, recipe: recipes.Recipe | None) -> None:
    assert run(recipes.CustomRecipe(factory)) == run(recipe)


def test_high_precision_backward_is_that_of_no_recipe(device: Any) -> None:
    """The forward values differ, but for one and the same dy the gradients have the bits of the layer alone."""
    grads = []
    for recipe in (None, recipes.MXFP8BlockScaling(backward_override="high_precision")):
        layer = nf.nn.Linear(40, 24, dtype=nf.bfloat16, rng=nf.random.default_rng(0))
        x = nf.random.default_rng(1).normal(size=(12, 40), dtype=nf.bfloat16)
        x.requires_grad = True
        with nf.autocast(enabled=recipe is not None, recipe=recipe):
            y = layer(x)
        y.backward(nf.random.default_rng(2).normal(size=(12, 24), dtype=nf.bfloat16))
        grads.append([np.asarray(a).tobytes() for a in (x.grad, layer.weight.grad, layer.bias.grad)])
    assert grads[0] == grads[1]


@pytest.mark.parametrize("override", ["high_precision", "dequantized"])
def test_a_weight_written_before_backward(device: Any, override: str) -> None:
    """High precision reads the weight itself and says so; the dequantized copy is the layer's own."""
    layer = nf.nn.Linear(32, 16, bias=False, rng=nf.random.default_rng(0))
    x = nf.random.default_rng(1).normal(size=(4, 32))
    x.requires_grad = True
    grads = []
    for written in (False, True):
        x.grad = None
        with nf.autocast(recipe=recipes.MXFP8BlockScaling(backward_override=override)):  # type: ignore[arg-type]
            y = layer(x)
        if written:
            layer.weight.storage.write_((layer.weight.detach() * 100.0).raw)
        if written and override == "high_precision":
            with pytest.raises(GradientError, match="saved values"):
                y.sum().backward()
            return
        y.sum().backward()
        grads.append(np.asarray(x.grad))
    assert np.array_equal(*grads)


def test_a_kept_weight_of_two_kinds(device: Any) -> None:
    """Made without gradient, kept over microbatches: its column copy is not the transpose of its row copy."""
    layer = nf.nn.Linear(32, 16, bias=False, rng=nf.random.default_rng(0))
    x = nf.random.default_rng(1).normal(size=(4, 32))
    grads = []
    with nf.autocast(recipe=RECIPES["rows_and_columns"]):
        with nf.no_grad():
            layer(x, is_first_microbatch=True)
        x.requires_grad = True
        for first in (False, None):
            x.grad = None
            layer(x, is_first_microbatch=first).sum().backward()
            grads.append(np.asarray(x.grad))
    assert np.array_equal(*grads)


@pytest.mark.parametrize("first", [None, True])
def test_weights_in_high_precision_count_in_the_dtype_of_the_input(device: Any, first: bool | None) -> None:
    """A float32 weight is read as bfloat16 beside bfloat16 activations, kept over microbatches or not."""
    grads = []
    for dtype in (nf.float32, nf.bfloat16):
        layer = nf.nn.Linear(32, 16, bias=False, dtype=dtype)
        layer.load_state_dict({"weight": np.random.default_rng(0).standard_normal((16, 32)).astype(BF16)})
        if dtype == nf.float32:
            layer.weight.storage.write_((layer.weight.detach() * (1 + 2.0**-10)).raw)  # what bfloat16 rounds away
        x = nf.random.default_rng(1).normal(size=(4, 32), dtype=nf.bfloat16)
        x.requires_grad = True
        with nf.autocast(recipe=recipes.MXFP8BlockScaling(backward_override="high_precision")):
            y = layer(x, is_first_microbatch=first)
        y.sum().backward()
        grads.append(np.asarray(x.grad).tobytes())
    assert grads[0] == grads[1]
