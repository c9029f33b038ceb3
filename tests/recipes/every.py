"""The recipes of the main job, for tests that run under each of them. Histories are short, so that they roll."""

from __future__ import annotations

import nvfp as nf
from nvfp import recipes
from nvfp.recipes import CustomRecipe, Format, Policy, factories as ready

RECIPES: dict[str, recipes.Recipe | None] = {
    "bf16": None,
    "fp8": recipes.DelayedScaling(amax_history_len=4),
    "fp8-current": recipes.Float8CurrentScaling(),
    "fp8-block": recipes.Float8BlockScaling(),
    "mxfp8": recipes.MXFP8BlockScaling(),
    "nvfp4": recipes.NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True),
    "nvfp4-default": recipes.NVFP4BlockScaling(),
}

# Options, functions, mixes and policies.
MIXES: dict[str, recipes.Recipe] = {
    "delayed": recipes.DelayedScaling(amax_history_len=3),
    "delayed_newest": recipes.DelayedScaling(2, amax_history_len=2, amax_compute_algo="most_recent"),
    "delayed_called": recipes.DelayedScaling(
        amax_history_len=3,
        amax_compute_algo=lambda h: nf.mean(h, axis=0),
        scaling_factor_compute_algo=lambda amax, old, top, recipe: nf.sqrt(old * (top / amax)),
    ),
    "current_pow2": recipes.Float8CurrentScaling(use_power_2_scales=True, amax_epsilon=1e-6),
    "block": recipes.Float8BlockScaling(Format.HYBRID, 1, 1, 2, use_f32_scales=True),
    "mxfp8_2d": recipes.MXFP8BlockScaling(fp8_format=Format.HYBRID, enable_2d_quantization=True),
    "nvfp4_default": recipes.NVFP4BlockScaling(),
    "nvfp4_4over6": recipes.NVFP4BlockScaling(disable_rht=True, nvfp4_4over6="all", row_scaled_activation=True),
    "nvfp4_hp": recipes.NVFP4BlockScaling(backward_override="high_precision"),
    "mxfp8_nvfp4": CustomRecipe(ready.mxfp8_fwd_nvfp4_bwd_factory),
    "nvfp4_1d": CustomRecipe(ready.nvfp4_1d_weight_factory),
    "policy": Policy(
        {"1.fc2": None, "*.fc1:weight": recipes.DelayedScaling(amax_history_len=3)}, default=recipes.NVFP4BlockScaling()
    ),
}
