"""`CustomRecipe`: a function says what each tensor of each GEMM becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, message
from nvfp.recipes.base import FAST, SPLIT, MMParams, Recipe, accumulation, check_whole
from nvfp.recipes.plan import HIGH_PRECISION, DelayedRule, LinearPlan, TensorPlan

TensorType = Literal["input", "weight", "grad_output"]
ROLES: dict[TensorType, str] = {"input": "x", "weight": "w", "grad_output": "dy"}  # tensor_type -> field of LinearPlan


@dataclass(frozen=True)
class QuantizerRole:
    """What a tensor is used for (TE's name and fields).

    Attributes:
        module_type: ``"linear"``.
        tensor_type: ``"input"``, ``"weight"`` or ``"grad_output"``.
        name: of the GEMM in the module that is called, e.g. ``"layers.0.mlp.fc1"``.
    """

    module_type: str = "linear"
    tensor_type: TensorType = "input"
    name: str = ""


Given = TensorPlan | QuantDType | Recipe


def IdentityQuantizer() -> TensorPlan:
    """Return the plan of a tensor that stays in high precision (TE's name).

    Example:
        >>> IdentityQuantizer().format is None
        True
    """
    return HIGH_PRECISION


def HybridQuantizer(
    rowwise_quantizer: TensorPlan | QuantDType,
    columnwise_quantizer: TensorPlan | QuantDType,
    columnwise_source: Literal["original", "rowwise_dequantized"] = "original",
) -> TensorPlan:
    """Return the plan of a tensor whose row and column copies are of different kinds (TE's name and arguments).

    Args:
        rowwise_quantizer: its row copy is taken.
        columnwise_quantizer: its column copy is taken.
        columnwise_source: what the column copy is made from: the tensor, or the values of its row copy.

    Raises:
        ArgumentError: another source, or parts that do not go together.

    Example:
        >>> import nvfp as nf
        >>> plan = HybridQuantizer(nf.mxfp8, IdentityQuantizer(), "rowwise_dequantized")
        >>> plan.format, plan.side("col").format, plan.side("col").source
        (nvfp.mxfp8_e4m3, None, 'row')
    """
    if columnwise_source not in ("original", "rowwise_dequantized"):
        expected = 'columnwise_source "original" or "rowwise_dequantized"'
        raise ArgumentError(message("HybridQuantizer", expected, repr(columnwise_source), "pick one"))
    row, column = (_plan("HybridQuantizer", given) for given in (rowwise_quantizer, columnwise_quantizer))
    source: Literal["original", "row"] = "original" if columnwise_source == "original" else "row"
    return replace(row, rotation=None, column=replace(column.side("col"), source=source))


@dataclass(frozen=True)
class CustomRecipe(Recipe):
    """A recipe made by a function of the tensor's role.

    Args:
        qfactory: `QuantizerRole` -> what the tensor becomes: a `TensorPlan`, a quantized dtype (block scales, or
            current scaling for one scale per tensor), or a recipe, whose choice for that tensor is taken:
            `DelayedScaling` asks for a scale that the module keeps. `IdentityQuantizer` leaves it in high precision.
            It is asked once per role and the answer kept, so it must depend on the role alone.
        quantization_alignment: rows that grouped GEMMs pad to (TE's argument).
        fp8_gemm_fprop: accumulation in fprop (fast by default, as TE; per-tensor FP8 only).
        fp8_gemm_dgrad: accumulation in dgrad.
        fp8_gemm_wgrad: accumulation in wgrad.

    Raises:
        ArgumentError: a qfactory that cannot be called; at the first use of a layer, before anything has changed,
            an answer of another kind (None too), or tensors that no GEMM takes together.

    Source: Transformer Engine's recipe of the same name.

    Example:
        >>> import nvfp as nf
        >>> def by_role(role):
        ...     return nf.fp8_e5m2 if role.tensor_type == "grad_output" else nf.mxfp8
        >>> plan = nf.recipes.CustomRecipe(by_role).linear_plan()
        >>> plan.x.format, plan.dy.format
        (nvfp.mxfp8_e4m3, nvfp.fp8_e5m2)
    """

    by_name = True

    qfactory: Callable[[QuantizerRole], Given] = field(hash=False)  # an object that is called may have no hash
    quantization_alignment: int = field(default=128, kw_only=True)
    fp8_gemm_fprop: MMParams = field(default=FAST, kw_only=True)
    fp8_gemm_dgrad: MMParams = field(default=SPLIT, kw_only=True)
    fp8_gemm_wgrad: MMParams = field(default=SPLIT, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.qfactory):
            do = "pass e.g. nf.recipes.factories.mxfp8_factory"
            raise ArgumentError(message("CustomRecipe", "qfactory as a function", repr(self.qfactory), do))
        check_whole("CustomRecipe", "quantization_alignment", self.quantization_alignment, 1, 2**20, "pass e.g. 128")

    def _linear_plan(self, name: str) -> LinearPlan:
        """Ask the function for each tensor."""
        plans: dict[str, Any] = {}
        rules: list[DelayedRule] = []
        for tensor_type, short in ROLES.items():
            given = self.qfactory(QuantizerRole("linear", tensor_type, name))
            if isinstance(given, Recipe):
                whole = given.linear_plan(name)
                plans[short] = getattr(whole, short)
                if plans[short].delayed and whole.delayed is not None:
                    rules.append(whole.delayed)
            else:
                plans[short] = _plan("CustomRecipe", given)
                if plans[short].delayed:
                    do = "return a DelayedScaling recipe, which says how histories become scales"
                    raise ArgumentError(message("CustomRecipe", "a rule for delayed scaling", tensor_type, do))
        return LinearPlan(
            **plans,
            delayed=one_rule("CustomRecipe", rules),
            **accumulation(self.fp8_gemm_fprop, self.fp8_gemm_dgrad, self.fp8_gemm_wgrad),
        )

    def __str__(self) -> str:
        return f"CustomRecipe({getattr(self.qfactory, '__name__', repr(self.qfactory))})"


def one_rule(recipe: str, rules: list[DelayedRule]) -> DelayedRule | None:
    """Return the rule of delayed scaling that all tensors of a layer share, or None if there is none.

    Raises:
        ArgumentError: two that differ.
    """
    if any(rule != rules[0] for rule in rules):
        do = "use the same history length, algorithm and margin for all tensors of one layer"
        raise ArgumentError(message(recipe, "one rule for delayed scaling in a layer", rules, do))
    return rules[0] if rules else None


def _plan(op: str, given: object) -> TensorPlan:
    if isinstance(given, QuantDType):
        return TensorPlan(given, "current" if given.block is None else "block")
    if not isinstance(given, TensorPlan):
        expected = "a TensorPlan, a quantized dtype or a recipe"
        raise ArgumentError(message(op, expected, repr(given), "return IdentityQuantizer() for high precision"))
    return given
