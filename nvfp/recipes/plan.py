"""The frozen plan of a linear layer: what each operand of fprop, dgrad and wgrad becomes.

A recipe resolves to a plan once, in the forward pass; the tape's node keeps the plan, so backward
never asks a context. Layers read plans and never ask which format they hold.

    GEMM                 left operand        right operand       contraction
    fprop y  = x  W^T    x  row copy         W  row copy         K
    dgrad dx = dy W      dy row copy         W  column copy      N
    wgrad dW = dy^T x    dy column copy      x  column copy      M
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, Protocol

from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, message

Scaling = Literal["delayed", "current", "block"]
Role = Literal["x", "w", "dy"]
Override = Literal["high_precision", "dequantized"]


@dataclass(frozen=True)
class TensorPlan:
    """How one tensor is quantized for its GEMMs.

    Attributes:
        format: the quantized dtype of both copies; None leaves them in high precision: the tensor itself, in the
            dtype of the layer's activations.
        scaling: ``"delayed"`` (scale from the module's state, amax recorded), ``"current"`` (from
            the tensor's own amax) or ``"block"`` (block scales made inside the cast). Without a format
            ``"delayed"`` records the amax and nothing else.
        rounding: of the elements.
        rotation: Hadamard rotation of the column copy, or None.
        amax_epsilon: smallest amax that current scaling uses.
        column: the plan of the column copy where it is another one; None: as the row copy.
        source: in a ``column`` only: what it is made from, ``"original"`` or ``"row"``, the values of the row copy.
        watch: called with (raw tensor, pair of copies, role) when they have been made; takes no part in comparisons.
            The tensor is None where the copies came as they are. The role is ``""`` for the tensor that the plan is
            for, else that of another one with the same plan (``"y"``, ``"dx"``).

    Raises:
        ArgumentError: parts that do not go together, named.

    Example:
        >>> from nvfp.dtypes.formats import mxfp8, nvfp4
        >>> plan = TensorPlan(mxfp8, "block", column=TensorPlan(nvfp4, "block"))
        >>> plan.side("row").format, plan.side("col").format
        (nvfp.mxfp8_e4m3, nvfp.nvfp4)
    """

    format: QuantDType | None
    scaling: Scaling = "block"
    rounding: Literal["even", "stochastic"] = "even"
    rotation: Literal["rht16"] | None = None
    amax_epsilon: float = 0.0
    column: TensorPlan | None = None
    source: Literal["original", "row"] = "original"
    watch: Callable[[Any, Any, str], None] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for wrong, expected, got, do in _faults(self):
            if wrong:
                raise ArgumentError(message("TensorPlan", expected, got, do))

    def side(self, which: Literal["row", "col"]) -> TensorPlan:
        """The plan that holds for one copy."""
        return self.column if which == "col" and self.column is not None else self

    @property
    def delayed(self) -> bool:
        """Whether a copy takes its scale from the module's state (or its amax is recorded there)."""
        return "delayed" in (self.scaling, self.side("col").scaling)

    @property
    def stochastic(self) -> bool:
        """Whether a copy is rounded stochastically."""
        return "stochastic" in (self.rounding, self.side("col").rounding)

    @property
    def turned(self) -> Literal["rht16"] | None:
        """The rotation of the column copy."""
        return self.side("col").rotation

    @property
    def fp8_max(self) -> float:
        """Largest finite value of the element that delayed scaling scales to."""
        side = self if self.scaling == "delayed" else self.side("col")
        return 448.0 if side.format is None else side.format.element.max


def _faults(plan: TensorPlan) -> list[tuple[bool, str, object, str]]:
    """(whether it is so, what was expected, what was there, remedy) of every rule about one tensor."""
    fmt, column = plan.format, plan.column
    rules: list[tuple[bool, str, object, str]] = [
        (plan.scaling not in ("delayed", "current", "block"), "scaling out of delayed, current, block",
         repr(plan.scaling), "pick one"),
        (plan.rounding not in ("even", "stochastic"), "rounding even or stochastic", repr(plan.rounding), "pick one"),
        (plan.rotation not in (None, "rht16"), "rotation rht16 or None", repr(plan.rotation), "pick one"),
        (column is not None and column.column is not None, "one plan for the column copy", "a column of a column",
         "leave out the inner one"),
        (plan.source != "original" and column is not None, "the row copy made from the tensor", plan.source,
         "set source= in the column's plan"),
        (column is not None and plan.rotation is not None, "the rotation in the column's plan", plan.rotation,
         "rotation acts on the column copy: set it there"),
        (column is not None and column.scaling == plan.scaling == "delayed", "one delayed scale per tensor",
         "both copies", "give one of them another scaling"),
    ]  # fmt: skip
    if fmt is None:
        used = plan.rounding != "even" or plan.rotation is not None or plan.amax_epsilon != 0.0
        return [*rules, (used, "a format", "None with rounding, rotation or amax_epsilon", "name a format")]
    if not isinstance(fmt, QuantDType):
        return [(True, "format as a quantized dtype or None", repr(fmt), "pass e.g. nf.mxfp8")]
    per_tensor, float_scale = fmt.block is None, fmt.scale_family == "float32"
    return [
        *rules,
        (plan.scaling == "delayed" and not (per_tensor and float_scale), "one float32 scale per tensor to delay",
         fmt.name, "use nf.fp8_e4m3 or nf.fp8_e5m2"),
        (plan.scaling == "current" and not per_tensor, "one scale per tensor under current scaling", fmt.name,
         'pass scaling="block"'),
        (plan.scaling == "block" and per_tensor, "a block format", fmt.name, 'pass scaling="current"'),
        (plan.rotation is not None and (fmt.square or fmt.block is None), "1-D blocks under a rotation", fmt.name,
         "leave the rotation out, or quantize in 1-D blocks"),
        (fmt.leveled and (plan.rotation is not None or plan.rounding != "even"),
         "neither rotation nor stochastic rounding with row-scaled or 4-over-6 formats", fmt.name, "leave them out"),
        (plan.amax_epsilon != 0.0 and (plan.scaling == "delayed" or not float_scale),
         "float32 scales of the tensor itself for amax_epsilon", fmt.name, "leave it out"),
    ]  # fmt: skip


HIGH_PRECISION = TensorPlan(None)


def turned_alike(x: TensorPlan, dy: TensorPlan) -> tuple[TensorPlan, TensorPlan]:
    """Return the plans of wgrad's operands: as they are, or without rotation where only one of them has it.

    Example:
        >>> from nvfp.dtypes.formats import nvfp4
        >>> [plan.turned for plan in turned_alike(TensorPlan(nvfp4, rotation="rht16"), HIGH_PRECISION)]
        [None, None]
    """
    return (x, dy) if x.turned == dy.turned else (_level(x), _level(dy))


def _level(plan: TensorPlan) -> TensorPlan:
    column = None if plan.column is None else replace(plan.column, rotation=None)
    return replace(plan, rotation=None, column=column)


@dataclass(frozen=True)
class DelayedRule:
    """How delayed scaling turns a history of amaxes into a scale.

    Attributes:
        history_length: steps remembered.
        algorithm: ``"max"``, ``"most_recent"``, or a callable: history [len, n] -> amax [n].
        margin: powers of two of head room.
        scaling: None, or a callable: (amax [n], old scale [n], fp8_max [n], recipe) -> scale [n].
        recipe: what that callable is given last.
        reduce: whether amaxes are reduced over a process group, where autocast names one.
    """

    history_length: int
    algorithm: Literal["max", "most_recent"] | Callable[[Any], Any] = field(hash=False)
    margin: int
    scaling: Callable[[Any, Any, Any, Any], Any] | None = field(default=None, hash=False)
    recipe: Any = None
    reduce: bool = True

    @property
    def called(self) -> bool:
        """Whether a function of the user takes part."""
        return callable(self.algorithm) or self.scaling is not None


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

    Raises:
        ArgumentError: operands that no GEMM takes together, named.
    """

    x: TensorPlan
    w: TensorPlan
    dy: TensorPlan
    fast_fprop: bool = False
    fast_dgrad: bool = False
    fast_wgrad: bool = False
    delayed: DelayedRule | None = None

    def __post_init__(self) -> None:
        if self.x.turned != self.dy.turned:
            got = f"{self.x.turned} and {self.dy.turned}"
            do = "rotate the column copies of input and gradient alike"
            raise ArgumentError(message("LinearPlan", "both operands of wgrad rotated, or neither", got, do))
        if self.x.stochastic or self.w.stochastic:
            do = 'set rounding="even" for input and weight'
            raise ArgumentError(message("LinearPlan", "stochastic rounding of gradients only", "another tensor", do))
        if any(t.delayed for t in self.tensors) != (self.delayed is not None):
            got = "no tensor with delayed scaling" if self.delayed else "no rule for delayed scaling"
            raise ArgumentError(message("LinearPlan", "a rule and a tensor it is for", got, "give both or none"))
        for gemm, left, right in (
            ("fprop", self.x.side("row"), self.w.side("row")),
            ("dgrad", self.dy.side("row"), self.w.side("col")),
            ("wgrad", self.dy.side("col"), self.x.side("col")),
        ):
            if _wide_square(left.format) and _wide_square(right.format):
                got = f"{left.format} and {right.format} in {gemm}"
                do = "pass 1-D blocks for one of them"
                raise ArgumentError(message("LinearPlan", "at most one operand in 128 x 128 blocks", got, do))

    @property
    def tensors(self) -> tuple[TensorPlan, TensorPlan, TensorPlan]:
        """Plans of input, weight and gradient."""
        return (self.x, self.w, self.dy)

    @property
    def dense(self) -> bool:
        """Whether nothing is quantized or recorded."""
        return all(t == HIGH_PRECISION for t in self.tensors)

    def with_backward(self, override: Override | None) -> LinearPlan:
        """This plan with dgrad and wgrad in high precision.

        Args:
            override: ``"high_precision"`` reads input and weight as they came, ``"dequantized"`` their row copies, the
                values that fprop saw; None changes nothing.
        """
        if override is None:
            return self
        column = TensorPlan(None, source="row" if override == "dequantized" else "original")
        x, w = (replace(t, rotation=None, column=column) for t in (self.x, self.w))
        delayed = self.delayed if x.delayed or w.delayed else None
        return replace(self, x=x, w=w, dy=HIGH_PRECISION, delayed=delayed)


def _wide_square(fmt: QuantDType | None) -> bool:
    return fmt is not None and fmt.square and fmt.block is not None and fmt.scale_family == "float32"


DENSE = LinearPlan(HIGH_PRECISION, HIGH_PRECISION, HIGH_PRECISION)  # casts what has another dtype, else as no plan


@lru_cache(maxsize=1024)
def calibration(plan: LinearPlan) -> LinearPlan:
    """Return the plan that computes in high precision and records the amaxes that ``plan`` will want."""
    x, w, dy = (TensorPlan(None, "delayed") if t.delayed else HIGH_PRECISION for t in plan.tensors)
    return LinearPlan(x=x, w=w, dy=dy, delayed=plan.delayed)


class SiteWatch(Protocol):
    """What looks on at one GEMM of a module (`nf.inspect`)."""

    before: SiteWatch | None  # the one that was there, which is asked first

    def plan(self, plan: LinearPlan | None) -> LinearPlan | None:
        """Return the plan to run, with its watchers; None (given too) runs the GEMM in high precision."""

    def output(self, y: Any) -> None:
        """Take a look at what the GEMM gave."""
