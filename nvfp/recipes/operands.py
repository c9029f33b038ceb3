"""Quantize a tensor for its GEMMs as its plan says."""

from __future__ import annotations

from typing import Any

from nvfp.kernels.gemm import native_scale_layout
from nvfp.kernels.operand import OperandPair
from nvfp.kernels.quantize import quantize
from nvfp.recipes.plan import TensorPlan
from nvfp.recipes.state import DelayedState


def quantize_for_gemm(
    raw: Any,
    plan: TensorPlan,
    *,
    row: bool,
    col: bool,
    state: DelayedState | None = None,
    role: str = "",
    recording: bool = True,
    rng: Any | None = None,
) -> OperandPair:
    """Return the row and/or column copy of a matrix under a tensor plan.

    Args:
        raw: raw array [M, K], float32/bf16/fp16.
        plan: format, scaling, rounding, rotation.
        row: make the row copy.
        col: make the column copy.
        state: scaling state; needed when ``plan.scaling`` is ``"delayed"``.
        role: name of the tensor inside the state.
        recording: record the amax of ``raw`` in the state.
        rng: ``(key, ordinal, step)`` of this call; needed when ``plan.rounding`` is ``"stochastic"``.

    Returns:
        The pair, its scales in the layout that GEMMs read on the device of ``raw``.
    """
    scale = amax_out = None
    if plan.scaling == "delayed":
        assert state is not None, "a delayed plan comes with its state"
        scale, amax_out = state.scale_word(role), state.amax_word(role) if recording else None
    return quantize(
        raw,
        plan.format,
        row=row,
        col=col,
        scale=scale,
        amax_out=amax_out,
        amax_epsilon=plan.amax_epsilon,
        rounding=plan.rounding,
        rng=rng,
        rotation=plan.rotation,
        scale_layout=native_scale_layout(raw, plan.format),
    )
