"""Linear under every recipe: its three GEMMs against quantize-dequantize-float64, caching (H14), shapes."""

from __future__ import annotations

import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nvfp as nf
from nvfp import recipes
from nvfp.dtypes.block import dequantize_exact, quantize_exact
from nvfp.errors import DTypeError, ShapeError
from nvfp.kernels.operand import Operand, OperandPair
from nvfp.recipes.plan import TensorPlan
from tests.tolerances import check

RECIPES: dict[str, recipes.Recipe | None] = {
    "bf16": None,
    "fp8": recipes.DelayedScaling(amax_history_len=4),
    "fp8_current": recipes.Float8CurrentScaling(),
    "fp8_current_pow2": recipes.Float8CurrentScaling(use_power_2_scales=True),
    "fp8_current_e4m3": recipes.Float8CurrentScaling(recipes.Format.E4M3, amax_epsilon=8.0),
    "fp8_block": recipes.Float8BlockScaling(),
    "fp8_block_x2d": recipes.Float8BlockScaling(x_block_scaling_dim=2, w_block_scaling_dim=1),
    "fp8_block_f32": recipes.Float8BlockScaling(recipes.Format.HYBRID, 1, 1, 2, use_f32_scales=True),
    "mxfp8": recipes.MXFP8BlockScaling(),
    "mxfp8_2d": recipes.MXFP8BlockScaling(enable_2d_quantization=True, fp8_format=recipes.Format.HYBRID),
    "nvfp4": recipes.NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True),
    "nvfp4_1d": recipes.NVFP4BlockScaling(
        disable_rht=True, disable_stochastic_rounding=True, disable_2d_quantization=True
    ),
    "nvfp4_rows": recipes.NVFP4BlockScaling(
        disable_rht=True, disable_stochastic_rounding=True, row_scaled_activation=True
    ),
    "nvfp4_4over6": recipes.NVFP4BlockScaling(
        disable_rht=True, disable_stochastic_rounding=True, nvfp4_4over6="all", nvfp4_4over6_err_mode="MSE"
    ),
    "nvfp4_rows_4over6": recipes.NVFP4BlockScaling(
        disable_rht=True,
        disable_stochastic_rounding=True,
        row_scaled_activation=True,
        nvfp4_4over6="activations",
        nvfp4_4over6_e4m3_use_256="none",
    ),
    "nvfp4_rht": recipes.NVFP4BlockScaling(disable_stochastic_rounding=True),
}
ROWS = {"bf16": "linear_bf16", "mxfp8": "linear_mxfp8", "nvfp4": "linear_nvfp4"}


def rows(name: str, device: Any) -> tuple[str, str]:
    """Rows of fprop and of the two gradients: only Hopper's FP8 cores keep fewer bits, and only fprop is fast."""
    row = ROWS.get(name.split("_")[0])
    if row is not None:
        return row, row
    if name.startswith("fp8_block"):
        return ("linear_fp8_grad", "linear_fp8_grad") if device.type == "cuda" else ("linear_mxfp8", "linear_mxfp8")
    return ("linear_fp8", "linear_fp8_grad") if device.type == "cuda" else ("linear_mxfp8", "linear_mxfp8")


SHAPES = [(32, 64, 48), (7, 33, 18), (1, 16, 1), (130, 96, 144)]


def both_sides(x: np.ndarray, plan: TensorPlan | None) -> tuple[np.ndarray, np.ndarray]:
    """Row and column copies of a tensor, dequantized to float64; first delayed step: scale 1."""
    if plan is None:
        return x.astype(np.float64), x.astype(np.float64)
    out = []
    for axis in (1, 0):
        scale = np.float32(1) if plan.scaling == "delayed" else None
        rotation = plan.rotation if axis == 0 else None
        if plan.format.four_over_six and plan.format.square and axis == 0:
            out.append(out[0])  # the column copy is the transpose of the row copy
            continue
        blocks = quantize_exact(
            x, plan.format, axis=axis, scale=scale, amax_epsilon=plan.amax_epsilon, rotation=rotation
        )  # fmt: skip
        out.append(dequantize_exact(blocks, plan.format, axis=axis).astype(np.float64))
    return out[0], out[1]


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return (rng.standard_normal(shape) * np.exp(rng.standard_normal(shape))).astype(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", RECIPES)
def test_three_gemms(device: Any, name: str, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(m * k + n)
    dtype = ml_dtypes.bfloat16
    x, w, b, dy = (draw(rng, s, dtype) for s in ((m, k), (n, k), (n,), (m, n)))
    recipe = RECIPES[name]
    module = nf.nn.Linear(k, n, dtype=nf.bfloat16)
    module.load_state_dict({"weight": w, "bias": b})
    xa = nf.asarray(x, requires_grad=True)
    with nf.autocast(enabled=recipe is not None, recipe=recipe):
        y = module(xa)
    y.backward(nf.asarray(dy))

    plan = None if recipe is None else recipe.linear_plan()
    x_row, x_col = both_sides(x, None if plan is None else plan.x)
    w_row, w_col = both_sides(w, None if plan is None else plan.w)
    dy_row, dy_col = both_sides(dy, None if plan is None else plan.dy)
    row, gradient_row = rows(name, device)
    bias = b.astype(np.float64)
    check(np.asarray(y), x_row @ w_row.T + bias, row, scale=np.abs(x_row) @ np.abs(w_row.T) + np.abs(bias))
    assert y.dtype == nf.bfloat16
    check(np.asarray(xa.grad), dy_row @ w_col, gradient_row, scale=np.abs(dy_row) @ np.abs(w_col))
    check(np.asarray(module.weight.grad), dy_col.T @ x_col, gradient_row, scale=np.abs(dy_col.T) @ np.abs(x_col))
    check(
        np.asarray(module.bias.grad),
        dy.astype(np.float64).sum(0),
        "bias_grad",
        scale=np.abs(dy.astype(np.float64)).sum(0),
    )


@pytest.mark.parametrize("dtype", [nf.float32, nf.float16])
@pytest.mark.parametrize("name", ["fp8_current", "mxfp8", "nvfp4"])
def test_parameters_may_have_another_dtype_than_activations(device: Any, name: str, dtype: Any) -> None:
    module = nf.nn.Linear(32, 16, rng=nf.random.default_rng(3))
    x = nf.random.default_rng(1).normal(size=(4, 32), dtype=dtype)
    x.requires_grad = True
    with nf.autocast(enabled=True, recipe=RECIPES[name]):
        y = module(x)
    y.sum().backward()
    assert (y.dtype, x.grad.dtype) == (dtype, dtype)
    assert (module.weight.grad.dtype, module.bias.grad.dtype) == (nf.float32, nf.float32)


def test_bias_gradient_of_narrow_activations_keeps_float32_sums(device: Any) -> None:
    module = nf.nn.Linear(32, 16, rng=nf.random.default_rng(3))
    x = nf.ones((257, 32), dtype=nf.bfloat16)
    with nf.autocast(enabled=True, recipe=RECIPES["mxfp8"]):
        module(x).sum().backward()
    assert np.asarray(module.bias.grad).tolist() == [257.0] * 16  # bfloat16 holds 256 and 258 only


@pytest.mark.parametrize("name", ["bf16", "mxfp8"])
def test_leading_axes_of_any_strides(device: Any, name: str) -> None:
    recipe = RECIPES[name]
    module = nf.nn.Linear(32, 16, dtype=nf.bfloat16, rng=nf.random.default_rng(0))
    x = nf.random.default_rng(1).normal(size=(3, 5, 32), dtype=nf.bfloat16)
    dy = nf.random.default_rng(2).normal(size=(3, 5, 16), dtype=nf.bfloat16)
    results = []
    for copied in (False, True):
        a, g = (nf.permute_dims(z, (1, 0, 2)) for z in (x, dy))
        a, g = (nf.copy(a), nf.copy(g)) if copied else (a, g)
        a.requires_grad = True
        with nf.autocast(enabled=recipe is not None, recipe=recipe):
            y = module(a)
        module.zero_grad()
        y.backward(g)
        results.append([np.asarray(r).tobytes() for r in (y, a.grad, module.weight.grad, module.bias.grad)])
    assert results[0] == results[1]


@pytest.mark.parametrize("name", RECIPES)
def test_leading_dimensions_and_empty(device: Any, name: str) -> None:
    recipe = RECIPES[name]
    module = nf.nn.Linear(32, 8, dtype=nf.bfloat16, rng=nf.random.default_rng(0))
    x = nf.random.default_rng(1).normal(size=(2, 3, 32), dtype=nf.bfloat16)
    empty = nf.zeros((0, 32), dtype=nf.bfloat16)
    empty.requires_grad = True
    with nf.autocast(enabled=recipe is not None, recipe=recipe):
        y = module(x)
        flat = module(x.reshape((6, 32)))
        nothing = module(empty)
    if (
        name != "fp8"
    ):  # delayed scales of the first call apply to both, so it is equal there too, but amax differs later
        assert np.array_equal(np.asarray(y).reshape(6, 8), np.asarray(flat))
    assert nothing.shape == (0, 8)
    nothing.sum().backward()
    assert empty.grad.shape == (0, 32) and not np.asarray(module.weight.grad).any()


def test_h14_weight_cached_over_microbatches(device: Any) -> None:
    recipe = recipes.DelayedScaling(fp8_format=recipes.Format.E4M3)
    module = nf.nn.Linear(2, 2, bias=False)
    module.load_state_dict({"weight": np.asarray([[1, 2], [-4, 8]], np.float32)})
    x = nf.asarray(np.ones((1, 2), np.float32), requires_grad=True)
    for first in (True, False, False):
        with nf.autocast(enabled=True, recipe=recipe):
            y = module(x, is_first_microbatch=first)
        np.testing.assert_allclose(np.asarray(y), [[3, 4]], rtol=1e-5)
    module.weight.storage.write_((module.weight.detach() * 0.25).raw)
    with nf.autocast(enabled=True, recipe=recipe):
        y = module(x, is_first_microbatch=True)
    np.testing.assert_allclose(np.asarray(y), [[0.75, 1.0]], rtol=1e-5)
    x.grad = None
    y.backward(nf.asarray(np.asarray([[1, 0]], np.float32)))
    np.testing.assert_allclose(np.asarray(x.grad), [[0.25, 0.5]], rtol=1e-5)


@pytest.mark.parametrize("name", [n for n in RECIPES if n != "bf16"])
def test_a_kept_weight_is_never_stale(device: Any, name: str) -> None:
    module = nf.nn.Linear(32, 16, bias=False, rng=nf.random.default_rng(0))
    fresh = nf.nn.Linear(32, 16, bias=False, rng=nf.random.default_rng(0))
    x = nf.random.default_rng(1).normal(size=(4, 32))
    for factor in (1.0, 0.25, 3.0):
        for m in (module, fresh):
            m.weight.storage.write_((m.weight.detach() * factor).raw)
        with nf.autocast(enabled=True, recipe=RECIPES[name]):
            kept = module(x, is_first_microbatch=False)
            want = fresh(x)
        assert np.array_equal(np.asarray(kept), np.asarray(want))


def test_kept_weight_made_without_gradient_serves_backward_later(device: Any) -> None:
    module = nf.nn.Linear(32, 16, bias=False, rng=nf.random.default_rng(0))
    x = nf.random.default_rng(1).normal(size=(4, 32))
    with nf.autocast(enabled=True, recipe=RECIPES["nvfp4_1d"]):
        with nf.no_grad():
            module(x, is_first_microbatch=True)
        x.requires_grad = True
        module(x, is_first_microbatch=False).sum().backward()
        kept = x.grad
        x.grad = None
        module(x).sum().backward()
    assert np.array_equal(np.asarray(kept), np.asarray(x.grad))


@pytest.mark.parametrize("name", [n for n in RECIPES if n != "bf16"])
def test_backward_reads_the_weight_of_its_forward(device: Any, name: str) -> None:
    """A kept weight was made without its column copy; then the optimizer steps before backward runs."""
    module = nf.nn.Linear(32, 16, bias=False, rng=nf.random.default_rng(0))
    x = nf.random.default_rng(1).normal(size=(4, 32))
    grads = []
    for written in (False, True):
        with nf.autocast(enabled=True, recipe=RECIPES[name]):
            module(x, is_first_microbatch=True)
            a = nf.asarray(x, copy=True, requires_grad=True)
            y = module(a, is_first_microbatch=False)
        if written:
            module.weight.storage.write_((module.weight.detach() * 100.0).raw)
        y.backward(nf.ones((4, 16)))
        grads.append(np.asarray(a.grad))
    assert name == "fp8" or np.array_equal(*grads)
    assert np.abs(grads[1]).max() < 10 * np.abs(grads[0]).max()  # delayed scales move between the two passes


@pytest.mark.parametrize("name", [n for n in RECIPES if n != "bf16"])
def test_forward_saves_nothing_in_high_precision(device: Any, name: str) -> None:
    """The column copies of x and W; x itself is free as soon as the caller lets go of it."""
    module = nf.nn.Linear(64, 48, dtype=nf.bfloat16, rng=nf.random.default_rng(0))
    x = nf.random.default_rng(1).normal(size=(32, 64), dtype=nf.bfloat16)
    x.requires_grad = True
    gone = weakref.ref(x.raw)
    with nf.autocast(enabled=True, recipe=RECIPES[name]):
        y = module(x)
    pairs = [value for value in y._node.saved if isinstance(value, OperandPair)]
    assert len(pairs) == 2 and pairs[0].row is None
    assert all(type(side) is Operand for side in (pairs[0].col, pairs[1].side("col")))
    x = None
    assert gone() is None
    y.sum().backward()
    assert module.weight.grad is not None


def test_errors_say_what_to_do(device: Any) -> None:
    module = nf.nn.Linear(4, 2)
    with pytest.raises(DTypeError, match=r"\[linear\] expected x and weight of one dtype outside autocast"):
        module(nf.ones((1, 4), dtype=nf.bfloat16))
    with pytest.raises(ShapeError, match=r"\[linear\]"):
        module(nf.ones((1, 3)))


def test_a_failed_backward_leaves_no_gradient_amax(device: Any) -> None:
    recipe = recipes.DelayedScaling(amax_history_len=3)
    module = nf.nn.Linear(2, 2, bias=False)
    x = nf.asarray(np.ones((1, 2), np.float32), requires_grad=True)

    def forward(a: nf.Array) -> tuple[nf.Array, None]:
        return a, None

    def backward(_: None, dy: nf.Array) -> tuple[nf.Array]:
        raise RuntimeError("no")

    explode = nf.custom_vjp(lambda a: a, forward, backward)
    with nf.autocast(enabled=True, recipe=recipe):
        y = module(explode(x))
    with pytest.raises(RuntimeError, match="no"):
        y.backward(nf.asarray(np.full((1, 2), 99.0, np.float32)))
    with nf.autocast(enabled=True, recipe=recipe):
        y = module(x)
    y.backward(nf.asarray(np.full((1, 2), 4.0, np.float32)))
    assert np.asarray(module.state_dict()["scaling.backward.amax_history"])[:, 0].tolist() == [0, 0, 4]


@pytest.mark.parametrize("name", RECIPES)
def test_float64_inputs_train(name: str) -> None:
    module = nf.nn.Linear(8, 4, dtype=nf.float64, device="cpu", rng=nf.random.default_rng(0))
    x = nf.asarray(np.random.default_rng(0).standard_normal((3, 8)), device="cpu", requires_grad=True)
    with nf.autocast(enabled=RECIPES[name] is not None, recipe=RECIPES[name]):
        y = module(x)
    y.sum().backward()
    assert y.dtype == x.grad.dtype == module.weight.grad.dtype == module.bias.grad.dtype == nf.float64
    assert module.bias.grad.tolist() == [3.0] * 4


def test_a_refused_input_makes_no_scaling_state(device: Any) -> None:
    module = nf.nn.Linear(4, 2)
    for x in (nf.ones((1, 3)), nf.ones((1, 4), dtype=nf.int32), None):
        with nf.autocast(enabled=True, recipe=RECIPES["fp8"]), pytest.raises((DTypeError, ShapeError)):
            module(x)  # type: ignore[arg-type]
    assert list(module.state_dict()) == ["weight", "bias"]
