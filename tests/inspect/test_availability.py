"""What is native where, alignment, `explain_recipe`: against the GEMM's own tables and what a GPU says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import nvfp as nf
from nvfp.device import cuda_problem
from nvfp.dtypes.formats import nvfp4
from nvfp.errors import ArgumentError, DeviceError, DTypeError
from nvfp.kernels.cublaslt.typemap import route
from tests.recipes.every import RECIPES

DOORS = {
    nf.is_fp8_available: ("8.9", "9.0", "10.0", "12.0"),
    nf.is_fp8_block_scaling_available: ("9.0",),
    nf.is_mxfp8_available: (),
    nf.is_nvfp4_available: (),
}
QUANTIZED = [name for name in RECIPES if name != "bf16"]


@pytest.mark.parametrize("door", DOORS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("where", ["cpu", "8.0", "8.9", "9.0", "sm_90a", "10.0", "sm_100f", "12.0", "7.5"])
def test_doors(door: Any, where: str) -> None:
    """Native exactly where nvfp hands the operands over as they are; the reason says what else happens."""
    available, reason = door(return_reason=True, device=where)
    assert door(device=where) is available is (where.replace("sm_90a", "9.0").replace("sm_100f", "10.0") in DOORS[door])
    level = "absent" if where == "7.5" else "native" if available else "emulated"
    assert reason.startswith("the CPU" if where == "cpu" else "compute capability ") and f": {level}: " in reason
    assert ("every recipe runs" in reason) == (where == "cpu")


def test_default_device_is_meant(device: Any) -> None:
    assert nf.is_fp8_available() == nf.is_fp8_available(device=device) == (device.type == "cuda")


def test_doors_refuse() -> None:
    with pytest.raises(ArgumentError, match=r"a compute capability like 9\.0 or sm_90a, or cpu"):
        nf.is_fp8_available(device="hopper")
    if cuda_problem() is not None:
        with pytest.raises(DeviceError, match="a usable device"):
            nf.is_fp8_available(device="cuda")


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (nf.recipes.DelayedScaling(), 16), (nf.recipes.Float8CurrentScaling(), 16),
        (nf.recipes.Float8BlockScaling(), 128), (nf.recipes.MXFP8BlockScaling(), 32),
        (nf.recipes.NVFP4BlockScaling(), 32),
    ],
)  # fmt: skip
def test_alignment(recipe: Any, expected: int) -> None:
    """At this length no block and no row of codes is ragged, at a shorter one something is."""
    assert nf.alignment(recipe) == expected
    with nf.autocast(recipe=recipe):
        assert nf.alignment() == expected
    with pytest.raises(DTypeError, match=r"\[alignment\] expected a Recipe"):
        nf.alignment(nvfp4)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("where", ["cpu", "8.9", "9.0", "10.0"])
def test_explanations_are_the_plan_and_the_route(name: str, where: str) -> None:
    plan, found = RECIPES[name].linear_plan(), nf.explain_recipe(RECIPES[name], where)
    operands = [("x", "row"), ("w", "row"), ("dy", "row"), ("w", "col"), ("dy", "col"), ("x", "col")]
    assert [(o.tensor, o.copy) for o in found] == operands
    for i, o in enumerate(found):
        side = getattr(plan, o.tensor).side(o.copy)
        assert (o.dtype, o.block, o.rounding) == (str(side.format), side.format.block_shape, side.rounding)
        assert o.rotation == (side.rotation if o.copy == "col" else None)
        if where == "cpu":
            assert o.multiplied == "expanded to float32, BLAS" and not o.native
            continue
        pair = [getattr(plan, p.tensor).side(p.copy).format for p in found[i - i % 2 : i - i % 2 + 2]]
        way = route(*pair, tuple(map(int, where.split("."))))
        assert o.native == (way.modes is not None)
        assert o.multiplied.startswith(str(way) if o.native else f"expanded to {way.dtype}")


def test_explanations_of_mixes_and_names() -> None:
    recipe = nf.recipes.MXFP8BlockScaling(backward_override="high_precision")
    rows = {(o.gemm, o.tensor): o for o in nf.explain_recipe(recipe, "9.0")}
    assert rows["fprop", "x"].dtype == "mxfp8_e4m3" and rows["wgrad", "x"].dtype == "high precision"
    assert rows["dgrad", "dy"].multiplied == "in bfloat16" and rows["dgrad", "dy"].native
    policy = nf.recipes.Policy({"head": None}, default=nf.recipes.DelayedScaling())
    assert nf.explain_recipe(policy, "9.0", name="head").native
    assert nf.explain_recipe(policy, "9.0", name="head")[0].dtype == "high precision"
    assert nf.explain_recipe(policy, "9.0", name="body")[0].dtype == "fp8_e4m3"
    rows_scaled = nf.recipes.NVFP4BlockScaling(disable_rht=True, row_scaled_activation=True)
    assert nf.explain_recipe(rows_scaled, "9.0")[0].multiplied == "expanded to float32 (a scale per row)"


def test_explanation_as_text_json_and_html(tmp_path: Path) -> None:
    found = nf.explain_recipe(nf.recipes.DelayedScaling(margin=1), "9.0")
    text = repr(found)
    assert "delayed scales: max of 1024 amaxes, margin 1" in text and 'min_gemm="measured"' in text and found.native
    assert json.loads(found.to_json(tmp_path / "a.json")) == json.loads((tmp_path / "a.json").read_text())
    assert json.loads(found.to_json())["operands"][0]["scale"] == "delayed float32"
    assert found._repr_html_().count("<tr>") == 7
    assert "absent" not in text and "compute capability 8.0" in repr(nf.explain_recipe(None, "7.5"))
