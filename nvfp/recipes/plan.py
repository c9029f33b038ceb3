"""The frozen plan of a linear layer: what each operand of fprop, dgrad and wgrad becomes.

A recipe resolves to a plan once, in the forward pass; the tape's node keeps the plan, so backward
never asks a context. Layers read plans and never ask which format they hold.

    GEMM                 left operand        right operand       contraction
    fprop y  = x  W^T    x  row copy         W  row copy         K
    dgrad dx = dy W      dy row copy         W  column copy      N
    wgrad dW = dy^T x    dy column copy      x  column copy      M
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nvfp.dtypes.formats import QuantDType

Scaling = Literal["delayed", "current", "block"]
Role = Literal["x", "w", "dy"]


@dataclass(frozen=True)
class TensorPlan:
    """How one tensor is quantized for its GEMMs.

    Attributes:
        format: the quantized dtype of both copies.
        scaling: ``"delayed"`` (scale from the module's state, amax recorded), ``"current"`` (from
            the tensor's own amax) or ``"block"`` (block scales made inside the cast).
        rounding: of the elements.
        rotation: Hadamard rotation of the column copy, or None.
        amax_epsilon: smallest amax that current scaling uses.
    """

    format: QuantDType
    scaling: Scaling
    rounding: Literal["even", "stochastic"] = "even"
    rotation: Literal["rht16"] | None = None
    amax_epsilon: float = 0.0


@dataclass(frozen=True)
class DelayedRule:
    """How delayed scaling turns a history of amaxes into a scale."""

    history_length: int
    algorithm: Literal["max", "most_recent"]
    margin: int


@dataclass(frozen=True)
class LinearPlan:
    """Plan of the three GEMMs of ``y = x W^T + b``.

    Attributes:
        x: plan of the input.
        w: plan of the weight.
        dy: plan of the gradient of the output.
        fast_fprop: Hopper's fast accumulation in fprop.
        fast_dgrad: the same in dgrad.
        fast_wgrad: the same in wgrad.
        delayed: the history rule when a tensor uses delayed scaling, else None.
    """

    x: TensorPlan
    w: TensorPlan
    dy: TensorPlan
    fast_fprop: bool = False
    fast_dgrad: bool = False
    fast_wgrad: bool = False
    delayed: DelayedRule | None = None
