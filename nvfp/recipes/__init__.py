"""Recipes: which format each GEMM operand gets, scaling state, and `autocast`.

A recipe is a frozen record. A layer resolves it once, in its forward pass, into a frozen plan that
the tape's node keeps.
"""

from __future__ import annotations

from nvfp.recipes import factories as factories
from nvfp.recipes.base import MMParams as MMParams, Recipe as Recipe
from nvfp.recipes.builtin import (
    DelayedScaling as DelayedScaling,
    Float8BlockScaling as Float8BlockScaling,
    Float8CurrentScaling as Float8CurrentScaling,
    MXFP8BlockScaling as MXFP8BlockScaling,
    NVFP4BlockScaling as NVFP4BlockScaling,
)
from nvfp.recipes.context import (
    autocast as autocast,
    current_recipe as current_recipe,
    default_recipe as default_recipe,
)
from nvfp.recipes.custom import (
    CustomRecipe as CustomRecipe,
    HybridQuantizer as HybridQuantizer,
    IdentityQuantizer as IdentityQuantizer,
    QuantizerRole as QuantizerRole,
)
from nvfp.recipes.formats import Format as Format
from nvfp.recipes.plan import DelayedRule as DelayedRule, LinearPlan as LinearPlan, TensorPlan as TensorPlan
from nvfp.recipes.policy import Policy as Policy
