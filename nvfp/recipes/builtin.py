"""The built-in recipes, with TE's signatures and defaults. Each is data; `linear_plan` reads it out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from nvfp.dtypes.formats import QuantDType, fp8_e4m3, fp8_e4m3_b128, mxfp8_e4m3, nvfp4
from nvfp.errors import ArgumentError, message
from nvfp.recipes.base import (
    FAST,
    SPLIT,
    MMParams,
    Recipe,
    accumulation,
    check_fp8_format,
    check_whole,
    of_element,
)
from nvfp.recipes.formats import Format
from nvfp.recipes.plan import DelayedRule, LinearPlan, TensorPlan

_MARGIN = (-64, 64, "pass the powers of two of head room, e.g. 0")  # wider ones leave float32's range
Which = Literal["none", "weights", "activations", "all"]


@dataclass(frozen=True)
class DelayedScaling(Recipe):
    """Per-tensor FP8 whose scale comes from the amaxes of past steps.

    ``scale = fp8_max / amax / 2**margin`` with amax the maximum (or the newest) of a history; a step
    quantizes with the scale from before it, so that no pass over the tensor is needed first.

    Args:
        margin: powers of two of head room.
        fp8_format: `Format.HYBRID` (E4M3 forward, E5M2 gradients) or `Format.E4M3`.
        amax_history_len: steps remembered.
        amax_compute_algo: ``"max"``, ``"most_recent"``, or a function: history -> amax. It gets the amax history of
            one module's pass as a float32 `nf.Array` [len, n] (one column per tensor: input and weight, or the
            gradient; row 0 is this step, the newest before it stand at the end) and returns an Array [n].
        scaling_factor_compute_algo: None, or a function: (amax [n], old scale [n], fp8_max [n], recipe) -> scale [n],
            of float32 Arrays and this record. ``margin`` is then the function's to apply.
            Functions run on the device once per step; written with nf functions they wait for nothing.
        reduce_amax: reduce amaxes over the group that `nf.autocast` names (``amax_reduction_group``), if it does.
        fp8_gemm_fprop: accumulation in fprop (fast by default, as TE).
        fp8_gemm_dgrad: accumulation in dgrad.
        fp8_gemm_wgrad: accumulation in wgrad.

    Raises:
        ArgumentError: a value outside the ranges above, or a ``backward_override`` (as TE).

    Numerics: a tensor that was not seen in a step keeps scale and history; an amax or a scale that is 0 or not finite
        leaves the scale as it was, also where a function gave it.

    Source: Transformer Engine's recipe of the same name.

    Example:
        >>> DelayedScaling(margin=0, fp8_format=Format.E4M3).linear_plan().dy.format
        nvfp.fp8_e4m3
    """

    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: Literal["max", "most_recent"] | Callable[[Any], Any] = field(default="max", hash=False)
    scaling_factor_compute_algo: Callable[[Any, Any, Any, Any], Any] | None = field(default=None, hash=False)
    reduce_amax: bool = True
    fp8_gemm_fprop: MMParams = field(default=FAST, kw_only=True)
    fp8_gemm_dgrad: MMParams = field(default=SPLIT, kw_only=True)
    fp8_gemm_wgrad: MMParams = field(default=SPLIT, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fp8_format("DelayedScaling", self.fp8_format)
        check_whole("DelayedScaling", "margin", self.margin, *_MARGIN)
        check_whole(
            "DelayedScaling", "amax_history_len", self.amax_history_len, 1, 2**20, "pass how many steps to remember"
        )
        algorithm, scaling = self.amax_compute_algo, self.scaling_factor_compute_algo
        if not callable(algorithm) and algorithm not in ("max", "most_recent"):
            expected = 'amax_compute_algo "max", "most_recent" or a function'
            raise ArgumentError(message("DelayedScaling", expected, repr(algorithm), "pass one of them"))
        if scaling is not None and not callable(scaling):
            expected = "scaling_factor_compute_algo as a function or None"
            raise ArgumentError(message("DelayedScaling", expected, repr(scaling), "pass None for fp8_max / amax"))
        if self.backward_override is not None:
            do = 'use Float8CurrentScaling, or Policy({"*:grad_output": None}) over this recipe'
            raise ArgumentError(message("DelayedScaling", "no backward_override", repr(self.backward_override), do))

    def _linear_plan(self, name: str) -> LinearPlan:
        """Make the plan: all three tensors per-tensor FP8 with delayed scales."""
        forward = TensorPlan(of_element(fp8_e4m3, self.fp8_format.forward), "delayed")
        gradient = TensorPlan(of_element(fp8_e4m3, self.fp8_format.backward), "delayed")
        scaling = self.scaling_factor_compute_algo
        rule = DelayedRule(
            self.amax_history_len,
            self.amax_compute_algo,
            self.margin,
            scaling,
            None if scaling is None else self,
            self.reduce_amax,
        )
        return LinearPlan(
            x=forward,
            w=forward,
            dy=gradient,
            delayed=rule,
            **accumulation(self.fp8_gemm_fprop, self.fp8_gemm_dgrad, self.fp8_gemm_wgrad),
        )


@dataclass(frozen=True)
class Float8CurrentScaling(Recipe):
    """Per-tensor FP8 whose scale comes from the tensor's own amax (docs/formats.md, fp8_e4m3).

    Args:
        fp8_format: `Format.HYBRID` or `Format.E4M3`.
        use_power_2_scales: round the multiplier down to a power of two.
        amax_epsilon: amaxes below it count as it.
        fp8_gemm_fprop: accumulation in fprop (fast by default, as TE).
        fp8_gemm_dgrad: accumulation in dgrad.
        fp8_gemm_wgrad: accumulation in wgrad.

    Example:
        >>> Float8CurrentScaling().linear_plan().dy.format
        nvfp.fp8_e5m2
    """

    fp8_format: Format = Format.HYBRID
    use_power_2_scales: bool = False
    amax_epsilon: float = 0.0
    fp8_gemm_fprop: MMParams = field(default=FAST, kw_only=True)
    fp8_gemm_dgrad: MMParams = field(default=SPLIT, kw_only=True)
    fp8_gemm_wgrad: MMParams = field(default=SPLIT, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fp8_format("Float8CurrentScaling", self.fp8_format)
        epsilon = self.amax_epsilon
        if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0.0 <= epsilon < math.inf:
            do = "pass a small float, or 0"
            raise ArgumentError(message("Float8CurrentScaling", "amax_epsilon >= 0, finite", repr(epsilon), do))

    def _linear_plan(self, name: str) -> LinearPlan:
        """Make the plan: all three tensors per-tensor FP8 with current scales."""
        row = fp8_e4m3.replace(power_of_two_scales=True) if self.use_power_2_scales else fp8_e4m3
        forward = TensorPlan(of_element(row, self.fp8_format.forward), "current", amax_epsilon=self.amax_epsilon)
        gradient = TensorPlan(of_element(row, self.fp8_format.backward), "current", amax_epsilon=self.amax_epsilon)
        return LinearPlan(
            x=forward,
            w=forward,
            dy=gradient,
            **accumulation(self.fp8_gemm_fprop, self.fp8_gemm_dgrad, self.fp8_gemm_wgrad),
        )


@dataclass(frozen=True)
class Float8BlockScaling(Recipe):
    """FP8 with float32 scales for blocks of 128 along the contraction (docs/formats.md, fp8_e4m3_b128).

    Args:
        fp8_format: `Format.E4M3` or `Format.HYBRID`.
        x_block_scaling_dim: blocks of the input: 1 (1 x 128) or 2 (128 x 128).
        w_block_scaling_dim: likewise of the weight; 2 makes both of its copies hold the same numbers.
        grad_block_scaling_dim: likewise of the gradient of the output.
        use_f32_scales: arbitrary float32 scales in place of powers of two (TE:
            NVTE_FP8_BLOCK_SCALING_FP32_SCALES=1).
        fp8_gemm_fprop: accumulation in fprop; block scales are always promoted to float32, as in TE.
        fp8_gemm_dgrad: likewise in dgrad.
        fp8_gemm_wgrad: likewise in wgrad.

    Raises:
        ArgumentError: a GEMM of two operands in 128 x 128 blocks (any two of the three dims 2), which no tensor core
            multiplies; a dim that is neither 1 nor 2; ``use_split_accumulator=False``.

    Numerics: Hopper multiplies the blocks as they are; elsewhere operands are expanded, to bfloat16 (exact) with
        power-of-two scales, else to float32.

    Source: Transformer Engine's recipe of the same name.

    Example:
        >>> plan = Float8BlockScaling().linear_plan()
        >>> plan.x.format, plan.w.format.block
        (nvfp.fp8_e4m3_b128, (128, 128))
    """

    fp8_format: Format = Format.E4M3
    x_block_scaling_dim: int = 1
    w_block_scaling_dim: int = 2
    grad_block_scaling_dim: int = 1
    use_f32_scales: bool = field(default=False, kw_only=True)
    fp8_gemm_fprop: MMParams = field(default=SPLIT, kw_only=True)
    fp8_gemm_dgrad: MMParams = field(default=SPLIT, kw_only=True)
    fp8_gemm_wgrad: MMParams = field(default=SPLIT, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        name = "Float8BlockScaling"
        check_fp8_format(name, self.fp8_format)
        names = ("x_block_scaling_dim", "w_block_scaling_dim", "grad_block_scaling_dim")
        dims = {argument: getattr(self, argument) for argument in names}
        for argument, dim in dims.items():
            check_whole(name, argument, dim, 1, 2, "pass 1 for 1 x 128 blocks, 2 for 128 x 128")
        square = [argument for argument, dim in dims.items() if dim == 2]
        if len(square) > 1:
            got = " and ".join(f"{argument}=2" for argument in square)
            raise ArgumentError(message(name, "at most one tensor in 128 x 128 blocks", got, "pass 1 for the others"))
        for gemm in ("fprop", "dgrad", "wgrad"):
            if not getattr(self, f"fp8_gemm_{gemm}").use_split_accumulator:
                got, do = f"use_split_accumulator=False in fp8_gemm_{gemm}", "block scales need the split accumulator"
                raise ArgumentError(message(name, "MMParams(use_split_accumulator=True)", got, do))

    def _linear_plan(self, name: str) -> LinearPlan:
        """Make the plan: 1 x 128 or 128 x 128 blocks for each tensor."""
        row = fp8_e4m3_b128.replace(power_of_two_scales=False) if self.use_f32_scales else fp8_e4m3_b128
        forward, gradient = (of_element(row, e) for e in (self.fp8_format.forward, self.fp8_format.backward))

        def plan(row: QuantDType, dim: int) -> TensorPlan:
            return TensorPlan(row if dim == 1 else row.replace(block=(128, 128)), "block")

        return LinearPlan(
            x=plan(forward, self.x_block_scaling_dim),
            w=plan(forward, self.w_block_scaling_dim),
            dy=plan(gradient, self.grad_block_scaling_dim),
        )


@dataclass(frozen=True)
class MXFP8BlockScaling(Recipe):
    """MXFP8: E8M0 scales for blocks of 32 along the contraction (docs/formats.md, mxfp8_e4m3).

    Args:
        margin: present for TE's signature; MXFP8 does not use it.
        fp8_format: `Format.E4M3` or `Format.HYBRID`.
        enable_2d_quantization: one scale per 32 x 32 of the weight, so that both of its copies hold
            the same numbers.

    Example:
        >>> MXFP8BlockScaling().linear_plan().x.format
        nvfp.mxfp8_e4m3
    """

    margin: int = 0
    fp8_format: Format = Format.E4M3
    enable_2d_quantization: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fp8_format("MXFP8BlockScaling", self.fp8_format)
        check_whole("MXFP8BlockScaling", "margin", self.margin, *_MARGIN)

    def _linear_plan(self, name: str) -> LinearPlan:
        """Make the plan: 1 x 32 blocks for activations and gradients, 1 x 32 or 32 x 32 for weights."""
        row = of_element(mxfp8_e4m3, self.fp8_format.forward)
        weight = row.replace(block=(32, 32)) if self.enable_2d_quantization else row
        gradient = of_element(mxfp8_e4m3, self.fp8_format.backward)
        return LinearPlan(
            x=TensorPlan(row, "block"),
            w=TensorPlan(weight, "block"),
            dy=TensorPlan(gradient, "block"),
        )


@dataclass(frozen=True)
class NVFP4BlockScaling(Recipe):
    """NVFP4: E2M1 in blocks of 16 with E4M3 scales and one float32 per tensor (docs/formats.md, nvfp4).

    Weights use 16 x 16 blocks. Both operands of wgrad (the column copies of input and gradient) go through a random
    Hadamard transform of 16 along M, which cancels in their product. Gradients are rounded stochastically, each copy
    by numbers of its own; the seed and the step of these numbers belong to the layer and to its `state_dict`.

    Args:
        disable_rht: leave out the random Hadamard transform of the wgrad operands.
        disable_stochastic_rounding: round gradients to nearest.
        disable_2d_quantization: 1 x 16 blocks for weights too.
        row_scaled_activation: one tensor scale per row of the input (of its column copy: per column) in place of one
            per tensor. Needs ``disable_rht``; GEMMs expand such an input to float32.
        nvfp4_4over6: which tensors choose for each block the better of two scales (docs/formats.md): ``"none"``,
            ``"weights"``, ``"activations"`` (needs ``disable_rht``) or ``"all"``. Gradients never do.
        nvfp4_4over6_e4m3_use_256: which of these bound their block scales by 256, which leaves room for the factor
            1.5, in place of 448: ``"all"``, ``"weights"``, ``"activations"`` or ``"none"``.
        nvfp4_4over6_err_mode: ``"MAE"`` or ``"MSE"``: which error decides.

    Raises:
        ArgumentError: an unknown choice, or an input that would be rotated although its scales forbid it.

    Numerics: rotated values are rounded to bfloat16, whatever the dtype of the layer.

    Source: Transformer Engine's recipe of the same name.

    Example:
        >>> plan = NVFP4BlockScaling().linear_plan()
        >>> plan.w.format.block, plan.x.rotation, plan.dy.rounding
        ((16, 16), 'rht16', 'stochastic')
    """

    disable_rht: bool = False
    disable_stochastic_rounding: bool = False
    disable_2d_quantization: bool = False
    row_scaled_activation: bool = field(default=False, kw_only=True)
    nvfp4_4over6: Which = field(default="none", kw_only=True)
    nvfp4_4over6_e4m3_use_256: Which = field(default="all", kw_only=True)
    nvfp4_4over6_err_mode: Literal["MAE", "MSE"] = field(default="MAE", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        name = "NVFP4BlockScaling"
        for argument, choices in (
            ("nvfp4_4over6", get_args(Which)),
            ("nvfp4_4over6_e4m3_use_256", get_args(Which)),
            ("nvfp4_4over6_err_mode", ("MAE", "MSE")),
        ):
            value = getattr(self, argument)
            if value not in choices:
                raise ArgumentError(message(name, f"{argument} out of {choices}", repr(value), "pick one"))
        for argument, on in (
            ("row_scaled_activation", self.row_scaled_activation),
            ("nvfp4_4over6", self.nvfp4_4over6 in ("activations", "all")),
        ):
            if on and not self.disable_rht:
                got, do = f"{argument}={getattr(self, argument)!r} with it", "pass disable_rht=True"
                raise ArgumentError(message(name, "an input without the Hadamard transform", got, do))

    def _linear_plan(self, name: str) -> LinearPlan:
        """Make the plan: 1 x 16 blocks for activations and gradients, 16 x 16 for weights."""
        weight = nvfp4 if self.disable_2d_quantization else nvfp4.replace(block=(16, 16))
        inputs = nvfp4.replace(per_row_tensor_scale=True) if self.row_scaled_activation else nvfp4
        rotation: Literal["rht16"] | None = None if self.disable_rht else "rht16"
        return LinearPlan(
            x=TensorPlan(self._searched(inputs, "activations"), "block", rotation=rotation),
            w=TensorPlan(self._searched(weight, "weights"), "block"),
            dy=TensorPlan(
                nvfp4,
                "block",
                rounding="even" if self.disable_stochastic_rounding else "stochastic",
                rotation=rotation,
            ),
        )

    def _searched(self, row: QuantDType, tensor: str) -> QuantDType:
        """The row of a tensor, with 4-over-6 where it is asked for."""
        if self.nvfp4_4over6 not in (tensor, "all"):
            return row
        bound = 256 if self.nvfp4_4over6_e4m3_use_256 in (tensor, "all") else 448
        return row.replace(four_over_six=f"{self.nvfp4_4over6_err_mode.lower()}_{bound}")
