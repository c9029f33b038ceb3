"""Plans as data: what goes together, and what is refused before anything runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import nvfp as nf
from nvfp import recipes
from nvfp.errors import ArgumentError
from nvfp.recipes.plan import DENSE, HIGH_PRECISION, DelayedRule, LinearPlan, TensorPlan, calibration

BLOCK = nf.fp8_e4m3_b128
ROWS = nf.nvfp4.replace(per_row_tensor_scale=True)
SQUARE = nf.nvfp4.replace(block=(16, 16))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "mxfp8"}, "format as a quantized dtype"),
        ({"format": nf.mxfp8, "scaling": "late"}, "scaling out of"),
        ({"format": nf.mxfp8, "scaling": "delayed"}, "one float32 scale per tensor to delay"),
        ({"format": nf.mxfp8, "scaling": "current"}, "one scale per tensor under current"),
        ({"format": nf.fp8_e4m3, "scaling": "block"}, "a block format"),
        ({"format": nf.mxfp8, "rounding": "up"}, "rounding even or stochastic"),
        ({"format": nf.nvfp4, "rotation": "rht32"}, "rotation rht16 or None"),
        ({"format": SQUARE, "rotation": "rht16"}, "1-D blocks under a rotation"),
        ({"format": nf.fp8_e4m3, "scaling": "current", "rotation": "rht16"}, "1-D blocks under a rotation"),
        ({"format": ROWS, "rotation": "rht16"}, "neither rotation nor stochastic"),
        ({"format": nf.nvfp4.replace(four_over_six="mae_256"), "rounding": "stochastic"}, "neither rotation nor stoch"),
        ({"format": nf.mxfp8, "amax_epsilon": 1e-3}, "float32 scales of the tensor itself"),
        ({"format": None, "rounding": "stochastic"}, "a format"),
        ({"format": nf.mxfp8, "source": "row", "column": HIGH_PRECISION}, "row copy made from the tensor"),
        ({"format": nf.nvfp4, "rotation": "rht16", "column": HIGH_PRECISION}, "the rotation in the column's plan"),
        ({"format": nf.mxfp8, "column": TensorPlan(nf.nvfp4, column=HIGH_PRECISION)}, "one plan for the column"),
        ({"format": nf.fp8_e4m3, "scaling": "delayed", "column": TensorPlan(nf.fp8_e5m2, "delayed")},
         "one delayed scale per tensor"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_tensors_that_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=rf"\[TensorPlan\] expected .*{words}"):
        TensorPlan(**options)


NV = recipes.NVFP4BlockScaling().linear_plan()
WIDE = TensorPlan(BLOCK.replace(block=(128, 128)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dy": HIGH_PRECISION}, "both operands of wgrad rotated, or neither"),
        ({"x": TensorPlan(nf.mxfp8)}, "both operands of wgrad rotated, or neither"),
        ({"w": TensorPlan(nf.nvfp4, rounding="stochastic")}, "stochastic rounding of gradients only"),
        ({"w": TensorPlan(nf.fp8_e4m3, "delayed")}, "a rule and a tensor it is for"),
        ({"delayed": DelayedRule(4, "max", 0)}, "a rule and a tensor it is for"),
        ({"x": WIDE, "w": WIDE, "dy": TensorPlan(nf.mxfp8)}, "at most one operand in 128 x 128 blocks"),
        ({"x": TensorPlan(nf.mxfp8, column=WIDE), "dy": WIDE}, "at most one operand in 128 x 128 blocks"),
    ],
)
def test_layers_that_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=rf"\[LinearPlan\] expected {words}"):
        replace(NV, **change)


def test_an_impossible_layer_is_refused_before_anything_changes(device: Any) -> None:
    layer = nf.nn.Linear(32, 16)
    made = {"input": NV.x, "weight": NV.w, "grad_output": HIGH_PRECISION}
    recipe = recipes.CustomRecipe(lambda role: made[role.tensor_type])
    with nf.autocast(recipe=recipe), pytest.raises(ArgumentError, match="rotated, or neither"):
        layer(nf.ones((4, 32)))
    assert sorted(layer.state_dict()) == ["bias", "weight"]


def test_properties() -> None:
    delayed = recipes.DelayedScaling().linear_plan()
    assert [t.fp8_max for t in delayed.tensors] == [448, 448, 57344]
    assert all(t.delayed for t in delayed.tensors) and not any(t.delayed for t in NV.tensors)
    assert (NV.dy.stochastic, NV.x.stochastic, NV.dy.turned, NV.w.turned) == (True, False, "rht16", None)
    mixed = TensorPlan(nf.mxfp8, column=replace(NV.dy))
    assert (mixed.stochastic, mixed.turned, mixed.rotation) == (True, "rht16", None)
    assert (DENSE.dense, NV.dense) == (True, False)
    assert NV.with_backward(None) is NV
    over = delayed.with_backward("high_precision")
    assert over.delayed is not None and over.x.delayed and not over.dy.delayed
    recording = calibration(delayed)
    assert recording is calibration(delayed) and all(t.format is None and t.delayed for t in recording.tensors)
    assert calibration(NV).dense


def test_a_watcher_takes_no_part_in_comparisons() -> None:
    watched = replace(NV.x, watch=lambda raw, pair, role: None)
    assert watched == NV.x and hash(watched) == hash(NV.x) and "watch" not in repr(watched)
    assert LinearPlan(watched, NV.w, NV.dy) == replace(NV)
