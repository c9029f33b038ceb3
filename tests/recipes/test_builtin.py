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


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({}, "Hadamard"),
        ({"disable_rht": True}, "stochastic rounding"),
        ({"disable_stochastic_rounding": True}, "Hadamard"),
    ],
)
def test_nvfp4_says_what_is_not_built(kwargs: dict[str, bool], text: str) -> None:
    with pytest.raises(NotBuiltError, match=text):
        recipes.NVFP4BlockScaling(**kwargs)


@pytest.mark.parametrize(
    "argument",
    [{"fp8_dpa": True}, {"fp8_mha": True}, {"backward_override": "dequantized"}],
    ids=lambda a: next(iter(a)),
)
@pytest.mark.parametrize(
    "name",
    ["DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling", "NVFP4BlockScaling"],
)
def test_arguments_of_te_that_are_not_built_say_so(name: str, argument: dict[str, object]) -> None:
    make, options = getattr(recipes, name), NVFP4_FOR_NOW if name == "NVFP4BlockScaling" else {}
    make(**options, fp8_dpa=False, fp8_mha=False, backward_override=None)
    with pytest.raises(NotBuiltError, match=rf"\[{name}\] expected {next(iter(argument))} left off"):
        make(**options, **argument)


@pytest.mark.parametrize("argument", [{"row_scaled_activation": True}, {"nvfp4_4over6": "all"}], ids=str)
def test_nvfp4_variants_that_are_not_built_say_so(argument: dict[str, object]) -> None:
    with pytest.raises(NotBuiltError, match=next(iter(argument))):
        recipes.NVFP4BlockScaling(**NVFP4_FOR_NOW, **argument)


@pytest.mark.parametrize("kwargs", [{"amax_history_len": 0}, {"amax_compute_algo": "median"}])
def test_bad_delayed_arguments(kwargs: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match="DelayedScaling"):
        recipes.DelayedScaling(**kwargs)


def test_callables_are_refused_by_name() -> None:
    with pytest.raises(NotBuiltError, match="callable"):
        recipes.DelayedScaling(amax_compute_algo=max)


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
