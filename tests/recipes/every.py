"""The recipes of the main job, for tests that run under each of them. Histories are short, so that they roll."""

from __future__ import annotations

from nvfp import recipes

RECIPES: dict[str, recipes.Recipe | None] = {
    "bf16": None,
    "fp8": recipes.DelayedScaling(amax_history_len=4),
    "fp8-current": recipes.Float8CurrentScaling(),
    "fp8-block": recipes.Float8BlockScaling(),
    "mxfp8": recipes.MXFP8BlockScaling(),
    "nvfp4": recipes.NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True),
    "nvfp4-default": recipes.NVFP4BlockScaling(),
}
