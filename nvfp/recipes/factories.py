"""Ready `qfactory` functions for `CustomRecipe`: each built-in recipe by role, and mixes of them.

Names and meanings are those of Transformer Engine's factories. Use them as they are or branch from them::

    def mine(role):
        return IdentityQuantizer() if role.name.endswith("head") else mxfp8_factory(role)

"Forward" is fprop; "backward" is dgrad and wgrad, which read the column copies of input and weight.
"""

from __future__ import annotations

from typing import Literal

from nvfp.dtypes.formats import nvfp4
from nvfp.recipes.base import Recipe
from nvfp.recipes.builtin import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    NVFP4BlockScaling,
)
from nvfp.recipes.custom import ROLES, HybridQuantizer, IdentityQuantizer, QuantizerRole
from nvfp.recipes.plan import TensorPlan

_PLAIN_NVFP4 = TensorPlan(nvfp4, "block")
_ROW_SCALED_NVFP4 = TensorPlan(nvfp4.replace(per_row_tensor_scale=True), "block")


def _of(recipe: Recipe, role: QuantizerRole) -> TensorPlan:
    plan: TensorPlan = getattr(recipe.linear_plan(), ROLES[role.tensor_type])
    return plan


def high_precision_factory(role: QuantizerRole) -> TensorPlan:
    """Return the same for every role: no quantization."""
    return IdentityQuantizer()


def delayed_scaling_factory(role: QuantizerRole) -> Recipe:
    """Return `DelayedScaling` as it is by default, for every role.

    Example:
        >>> from nvfp.recipes import CustomRecipe, DelayedScaling
        >>> CustomRecipe(delayed_scaling_factory).linear_plan() == DelayedScaling().linear_plan()
        True
    """
    return DelayedScaling()


def current_scaling_factory(role: QuantizerRole) -> TensorPlan:
    """Return what `Float8CurrentScaling` says: E4M3, gradients E5M2."""
    return _of(Float8CurrentScaling(), role)


def float8_block_scaling_factory(role: QuantizerRole) -> TensorPlan:
    """Return what `Float8BlockScaling` says: E4M3 in blocks of 128, weights 128 x 128."""
    return _of(Float8BlockScaling(), role)


def mxfp8_factory(role: QuantizerRole) -> TensorPlan:
    """Return what `MXFP8BlockScaling` says: E4M3 in blocks of 32."""
    return _of(MXFP8BlockScaling(), role)


def nvfp4_factory(role: QuantizerRole) -> TensorPlan:
    """Return what `NVFP4BlockScaling` says: weights 16 x 16, wgrad rotated, gradients rounded stochastically."""
    return _of(NVFP4BlockScaling(), role)


def high_precision_fwd_mxfp8_bwd_factory(role: QuantizerRole) -> TensorPlan:
    """Return high precision for fprop, MXFP8 for dgrad and wgrad."""
    if role.tensor_type == "grad_output":
        return mxfp8_factory(role)
    return HybridQuantizer(IdentityQuantizer(), mxfp8_factory(role))


def mxfp8_fwd_nvfp4_bwd_factory(role: QuantizerRole) -> TensorPlan:
    """Return MXFP8 for fprop, NVFP4 for dgrad and wgrad.

    wgrad is NVFP4's own (rotated, gradients stochastic), its input made from the tensor; the weight of dgrad is 1-D
    NVFP4 made from the MXFP8 values that fprop saw.
    """
    if role.tensor_type == "grad_output":
        return nvfp4_factory(role)
    if role.tensor_type == "input":
        return HybridQuantizer(mxfp8_factory(role), nvfp4_factory(role))
    return HybridQuantizer(mxfp8_factory(role), _PLAIN_NVFP4, "rowwise_dequantized")


def mxfp8_fwd_high_precision_bwd_factory(role: QuantizerRole) -> TensorPlan:
    """Return MXFP8 for fprop; backward in high precision on the values that fprop saw.

    The same as ``MXFP8BlockScaling(backward_override="dequantized")``.
    """
    return _dequantized_backward(role, mxfp8_factory(role))


def nvfp4_1d_weight_factory(role: QuantizerRole) -> TensorPlan:
    """Return NVFP4 with weights in 1 x 16 blocks, the copy of dgrad made from the values that fprop saw."""
    if role.tensor_type == "weight":
        return HybridQuantizer(_PLAIN_NVFP4, _PLAIN_NVFP4, "rowwise_dequantized")
    return nvfp4_factory(role)


def nvfp4_row_scaled_fwd_mxfp8_bwd_factory(role: QuantizerRole) -> TensorPlan:
    """Return NVFP4 for fprop, inputs with one tensor scale per row; MXFP8 of these values for dgrad and wgrad."""
    if role.tensor_type == "grad_output":
        return mxfp8_factory(role)
    return HybridQuantizer(_row_scaled(role), mxfp8_factory(role), "rowwise_dequantized")


def nvfp4_row_scaled_fwd_high_precision_bwd_factory(role: QuantizerRole) -> TensorPlan:
    """Return NVFP4 for fprop, inputs with one tensor scale per row; backward in high precision on these values."""
    return _dequantized_backward(role, _row_scaled(role))


def _row_scaled(role: QuantizerRole) -> TensorPlan:
    return _ROW_SCALED_NVFP4 if role.tensor_type == "input" else _PLAIN_NVFP4


def _dequantized_backward(role: QuantizerRole, forward: TensorPlan) -> TensorPlan:
    if role.tensor_type == "grad_output":
        return IdentityQuantizer()
    source: Literal["rowwise_dequantized"] = "rowwise_dequantized"
    return HybridQuantizer(forward, IdentityQuantizer(), source)
