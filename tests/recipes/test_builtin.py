"""Recipes as data: signatures and defaults of TE, refusals, plans."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from nvfp import recipes
from nvfp.errors import ArgumentError, NotBuiltError
from nvfp.recipes import Format, MMParams

NVFP4_FOR_NOW = {"disable_rht": True, "disable_stochastic_rounding": True}


def test_defaults_are_transformer_engines() -> None:
    delayed = recipes.DelayedScaling()
    assert (delayed.margin, delayed.fp8_format, delayed.amax_history_len) == (0, Format.HYBRID, 1024)
    assert (delayed.amax_compute_algo, delayed.scaling_factor_compute_algo, delayed.reduce_amax) == ("max", None, True)
    current = recipes.Float8CurrentScaling()
    assert (current.fp8_format, current.use_power_2_scales, current.amax_epsilon) == (Format.HYBRID, False, 0.0)
    block = recipes.Float8BlockScaling()
    dims = (block.x_block_scaling_dim, block.w_block_scaling_dim, block.grad_block_scaling_dim)
    assert (block.fp8_format, dims, block.use_f32_scales) == (Format.E4M3, (1, 2, 1), False)
    mx = recipes.MXFP8BlockScaling()
    assert (mx.fp8_format, mx.enable_2d_quantization) == (Format.E4M3, False)
    parameters = inspect.signature(recipes.NVFP4BlockScaling).parameters
    assert all(
        parameters[n].default is False
        for n in ("disable_rht", "disable_stochastic_rounding", "disable_2d_quantization")
    )


def test_a_format_prints_its_name() -> None:
    assert "fp8_format=Format.HYBRID," in repr(recipes.DelayedScaling())


@pytest.mark.parametrize("make", [recipes.DelayedScaling, recipes.Float8CurrentScaling])
def test_accumulation_per_gemm(make: type) -> None:
    plan = make().linear_plan()
    assert (plan.fast_fprop, plan.fast_dgrad, plan.fast_wgrad) == (True, False, False)
    slow = make(fp8_gemm_fprop=MMParams(use_split_accumulator=True)).linear_plan()
    assert not slow.fast_fprop


def test_plans_name_the_formats() -> None:
    hybrid = recipes.Float8CurrentScaling().linear_plan()
    assert [p.format.name for p in (hybrid.x, hybrid.w, hybrid.dy)] == ["fp8_e4m3", "fp8_e4m3", "fp8_e5m2"]
    block = recipes.Float8BlockScaling(fp8_format=Format.HYBRID).linear_plan()
    assert [p.format.name for p in (block.x, block.w)] == ["fp8_e4m3_b128", "fp8_e4m3_b128[block=(128,128)]"]
    assert (block.dy.format.element.name, block.dy.format.block) == ("float8_e5m2", 128)
    assert not (block.fast_fprop or block.fast_dgrad or block.fast_wgrad)
    free = recipes.Float8BlockScaling(Format.E4M3, 1, 1, 2, use_f32_scales=True).linear_plan()
    assert [p.format.block for p in (free.x, free.w, free.dy)] == [128, 128, (128, 128)]
    assert not any(p.format.power_of_two_scales for p in (free.x, free.w, free.dy))
    mx = recipes.MXFP8BlockScaling(fp8_format=Format.HYBRID, enable_2d_quantization=True).linear_plan()
    assert mx.dy.format.name == "mxfp8_e5m2" and mx.w.format.block == (32, 32) and mx.x.format.block == 32
    nv = recipes.NVFP4BlockScaling(**NVFP4_FOR_NOW).linear_plan()
    assert nv.w.format.block == (16, 16) and nv.x.format.block == 16
    flat = recipes.NVFP4BlockScaling(**NVFP4_FOR_NOW, disable_2d_quantization=True).linear_plan()
    assert flat.w.format.block == 16


@pytest.mark.parametrize("dims", [(2, 2, 1), (1, 2, 2), (2, 1, 2), (2, 2, 2)])
def test_two_tensors_in_square_blocks_are_refused(dims: tuple[int, int, int]) -> None:
    with pytest.raises(ArgumentError, match=r"\[Float8BlockScaling\] expected at most one .*=2 and .*=2"):
        recipes.Float8BlockScaling(Format.E4M3, *dims)


@pytest.mark.parametrize("options", [{"x_block_scaling_dim": 3}, {"w_block_scaling_dim": "2"}, {"use_f32_scales": 1}])
def test_block_scaling_refuses_nonsense(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=rf"\[Float8BlockScaling\] expected {next(iter(options))}"):
        recipes.Float8BlockScaling(**options)
    with pytest.raises(ArgumentError, match="use_split_accumulator=True"):
        recipes.Float8BlockScaling(fp8_gemm_dgrad=MMParams(use_split_accumulator=False))


@pytest.mark.parametrize("name", ["DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling"])
@pytest.mark.parametrize("bad", [Format.E5M2, Format.E2M1, "E4M3"])
def test_formats_that_do_not_train_are_refused(name: str, bad: object) -> None:
    with pytest.raises(ArgumentError, match=rf"\[{name}\] expected fp8_format"):
        getattr(recipes, name)(fp8_format=bad)


@pytest.mark.parametrize("rht", [False, True])
@pytest.mark.parametrize("stochastic", [False, True])
def test_nvfp4_defaults(rht: bool, stochastic: bool) -> None:
    """Both operands of wgrad are rotated, gradients alone are rounded stochastically, weights are neither."""
    recipe = recipes.NVFP4BlockScaling(disable_rht=not rht, disable_stochastic_rounding=not stochastic)
    plan, rotation = recipe.linear_plan(), "rht16" if rht else None
    assert (plan.x.rotation, plan.w.rotation, plan.dy.rotation) == (rotation, None, rotation)
    assert (plan.x.rounding, plan.w.rounding) == ("even", "even")
    assert plan.dy.rounding == ("stochastic" if stochastic else "even")


EVERY = ["DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling", "NVFP4BlockScaling"]


@pytest.mark.parametrize("argument", [{"fp8_dpa": True}, {"fp8_mha": True}], ids=lambda a: next(iter(a)))
@pytest.mark.parametrize("name", EVERY)
def test_arguments_of_te_that_are_not_built_say_so(name: str, argument: dict[str, object]) -> None:
    make, options = getattr(recipes, name), NVFP4_FOR_NOW if name == "NVFP4BlockScaling" else {}
    make(**options, fp8_dpa=False, fp8_mha=False, backward_override=None)
    with pytest.raises(NotBuiltError, match=rf"\[{name}\] expected {next(iter(argument))} left off"):
        make(**options, **argument)


@pytest.mark.parametrize("override", ["high_precision", "dequantized"])
@pytest.mark.parametrize("name", EVERY[1:])
def test_backward_override(name: str, override: Any) -> None:
    """fprop as ever; dgrad and wgrad take input and weight as they came, or as fprop saw them, and dy as it comes."""
    make = getattr(recipes, name)
    plain, plan = make().linear_plan(), make(backward_override=override).linear_plan()
    source = "row" if override == "dequantized" else "original"
    for mine, usual in ((plan.x, plain.x), (plan.w, plain.w)):
        assert (mine.side("row").format, mine.amax_epsilon) == (usual.format, usual.amax_epsilon)
        column = mine.side("col")
        assert (column.format, column.source, column.rotation) == (None, source, None)
    assert plan.dy == recipes.IdentityQuantizer() and plan.fast_fprop == plain.fast_fprop


def test_backward_override_of_delayed_scaling_is_refused_as_in_te() -> None:
    with pytest.raises(ArgumentError, match=r"\[DelayedScaling\] expected no backward_override.*Policy"):
        recipes.DelayedScaling(backward_override="dequantized")
    with pytest.raises(ArgumentError, match='backward_override None, "high_precision" or'):
        recipes.MXFP8BlockScaling(backward_override="bf16")  # type: ignore[arg-type]


def test_nvfp4_row_scaled_and_4over6() -> None:
    """Which tensors: inputs row-scaled; weights, inputs or both with 4-over-6; gradients are always plain."""
    plan = recipes.NVFP4BlockScaling(disable_rht=True, row_scaled_activation=True).linear_plan()
    assert plan.x.format.per_row_tensor_scale
    assert not plan.w.format.per_row_tensor_scale
    for which, (x, w) in {"none": (None, None), "weights": (None, "mse_448"), "activations": ("mse_448", None),
                          "all": ("mse_448", "mse_448")}.items():  # fmt: skip
        recipe = recipes.NVFP4BlockScaling(
            disable_rht=True, nvfp4_4over6=which, nvfp4_4over6_e4m3_use_256="none", nvfp4_4over6_err_mode="MSE"
        )  # fmt: skip
        plan = recipe.linear_plan()
        assert (plan.x.format.four_over_six, plan.w.format.four_over_six) == (x, w)
        assert plan.dy.format.four_over_six is None
    plan = recipes.NVFP4BlockScaling(nvfp4_4over6="weights").linear_plan()
    assert (plan.w.format.four_over_six, plan.w.format.block, plan.x.rotation) == ("mae_256", (16, 16), "rht16")
    recipe = recipes.NVFP4BlockScaling(disable_rht=True, nvfp4_4over6="all", nvfp4_4over6_e4m3_use_256="weights")
    plan = recipe.linear_plan()
    assert (plan.x.format.four_over_six, plan.w.format.four_over_six) == ("mae_448", "mae_256")


@pytest.mark.parametrize(
    ("argument", "words"),
    [({"row_scaled_activation": True}, "without the Hadamard"), ({"nvfp4_4over6": "all"}, "without the Hadamard"),
     ({"nvfp4_4over6": "inputs"}, "nvfp4_4over6 out of"), ({"nvfp4_4over6_err_mode": "max"}, "err_mode out of"),
     ({"nvfp4_4over6_e4m3_use_256": 256}, "use_256 out of"), ({"row_scaled_activation": 1}, "as a bool")],
    ids=str,
)  # fmt: skip
def test_nvfp4_refuses_nonsense(argument: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        recipes.NVFP4BlockScaling(**argument)


@pytest.mark.parametrize(
    "kwargs", [{"amax_history_len": 0}, {"amax_compute_algo": "median"}, {"scaling_factor_compute_algo": 2.0}]
)
def test_bad_delayed_arguments(kwargs: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match="DelayedScaling"):
        recipes.DelayedScaling(**kwargs)


def test_no_environment_variable_changes_a_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NVTE_FP8_BLOCK_SCALING_FP32_SCALES", "NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES"):
        monkeypatch.setenv(name, "1")
    assert not recipes.Float8BlockScaling().use_f32_scales and not recipes.Float8CurrentScaling().use_power_2_scales


def test_recipes_are_frozen_and_hashable() -> None:
    assert len({recipes.DelayedScaling(), recipes.DelayedScaling(), recipes.DelayedScaling(margin=1)}) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"margin": 1.5},
        {"margin": "a"},
        {"margin": True},
        {"margin": 1000},
        {"amax_history_len": 2.5},
        {"reduce_amax": 1},
        {"fp8_gemm_dgrad": True},
    ],
    ids=repr,
)
def test_delayed_scaling_refuses_nonsense_when_it_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=r"\[DelayedScaling\] expected "):
        recipes.DelayedScaling(**options)


def test_the_other_recipes_refuse_nonsense_when_they_are_made() -> None:
    with pytest.raises(ArgumentError, match="margin as an int"):
        recipes.MXFP8BlockScaling(margin="a")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="disable_rht as a bool"):
        recipes.NVFP4BlockScaling(disable_rht="no")  # type: ignore[arg-type]
    for epsilon in (-1.0, float("nan"), "a"):
        with pytest.raises(ArgumentError, match="amax_epsilon >= 0"):
            recipes.Float8CurrentScaling(amax_epsilon=epsilon)  # type: ignore[arg-type]
