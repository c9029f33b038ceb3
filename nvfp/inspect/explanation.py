"""`explain_recipe`: what a recipe does in each GEMM, and how this or another chip multiplies it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import ml_dtypes
import numpy as np

from nvfp.capability import Capability
from nvfp.device import Device
from nvfp.dtypes.formats import QuantDType
from nvfp.inspect._json import as_json
from nvfp.inspect.availability import alignment, capability_of, recipe_in_force
from nvfp.inspect.figures_table import html_table
from nvfp.kernels.cublaslt.typemap import route
from nvfp.recipes.base import Recipe
from nvfp.recipes.plan import LinearPlan, TensorPlan
from nvfp.recipes.small_gemms import crossover

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# GEMM, what it computes, the contraction, and (tensor, copy) of its operands.
_GEMMS = (
    ("fprop", "y = x W^T", "K", ("x", "row"), ("w", "row")),
    ("dgrad", "dx = dy W", "N", ("dy", "row"), ("w", "col")),
    ("wgrad", "dW = dy^T x", "M", ("dy", "col"), ("x", "col")),
)
_COLUMNS = ("GEMM", "operand", "dtype", "block", "scale", "rounding", "rotation", "multiplied")


@dataclass(frozen=True)
class OperandNote:
    """One operand of one GEMM.

    Attributes:
        gemm: ``"fprop"``, ``"dgrad"`` or ``"wgrad"``.
        tensor: ``"x"``, ``"w"`` or ``"dy"``.
        copy: ``"row"`` or ``"col"``.
        dtype: name of the quantized dtype, or ``"high precision"``.
        block: (across, along) the contraction that share a scale; None: the whole tensor.
        scale: where the scale comes from, and its format.
        rounding: of the elements.
        rotation: ``"rht16"`` or None.
        multiplied: how the chip multiplies this GEMM.
        native: whether that is on the narrow operands as they are.

    Example:
        >>> explain_recipe(device="9.0")[0].multiplied
        'native SCALAR_32F, fast accumulation'
    """

    gemm: str
    tensor: str
    copy: str
    dtype: str
    block: tuple[int, int] | None
    scale: str
    rounding: str
    rotation: str | None
    multiplied: str
    native: bool


class RecipeExplanation(Sequence[OperandNote]):
    """What `nf.explain_recipe` tells: a sequence of `OperandNote`, two per GEMM, that prints as a table.

    Attributes:
        recipe: the recipe, as text.
        where: the chip.
        notes: further lines: what holds for the whole recipe.

    Example:
        >>> explain_recipe(device="cpu").native
        False
    """

    def __init__(self, recipe: str, where: str, operands: Sequence[OperandNote], notes: Sequence[str]) -> None:
        self.recipe, self.where, self.notes = recipe, where, tuple(notes)
        self._operands = tuple(operands)

    def __getitem__(self, index: Any) -> Any:
        return self._operands[index]

    def __len__(self) -> int:
        return len(self._operands)

    @property
    def native(self) -> bool:
        """Whether every GEMM runs on its narrow operands."""
        return all(operand.native for operand in self)

    def as_dict(self) -> dict[str, Any]:
        """Return ``{"recipe", "where", "native", "operands", "notes"}``."""
        return {
            "recipe": self.recipe, "where": self.where, "native": self.native,
            "operands": [asdict(operand) for operand in self], "notes": list(self.notes),
        }  # fmt: skip

    def to_json(self, path: str | os.PathLike[str] | None = None, indent: int | None = 2) -> str:
        """Return `as_dict` as JSON, and write it to ``path`` if one is given.

        Args:
            path: a file, which is replaced.
            indent: spaces per level; None for one line.
        """
        return as_json(self.as_dict(), path, indent)

    def __repr__(self) -> str:
        rows = [_COLUMNS, *(_cells(operand) for operand in self)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
        lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)
        return "\n".join([f"{self.recipe} on {self.where}", *lines, *self.notes])

    def _repr_html_(self) -> str:
        return html_table(_COLUMNS, [_cells(operand) for operand in self])


def explain_recipe(
    recipe: Recipe | None = None,
    device: Device | str | None = None,
    *,
    name: str = "",
    dtype: Any = _BFLOAT16,
) -> RecipeExplanation:
    """Tell what a recipe makes of the operands of each GEMM, and how a chip multiplies them.

    Args:
        recipe: a `Recipe`; the one in force unless given, else the default of `nf.autocast`.
        device: a Device, its name, or a capability as ``"10.0"`` or ``"sm_90a"``; the default device unless given.
        name: of a module, for recipes that differ by name.
        dtype: of the activations, which decides where an expanded GEMM is multiplied beside a tensor in high precision.

    Returns:
        A `RecipeExplanation`: prints as a table; ``.to_json()``, ``.as_dict()``.

    Raises:
        DTypeError: no Recipe.
        ArgumentError: ``device`` names nothing.
        DeviceError: a CUDA device that is not here.

    Example:
        >>> import nvfp as nf
        >>> print(nf.explain_recipe(nf.recipes.MXFP8BlockScaling(), "9.0"))  # doctest: +ELLIPSIS
        MXFP8BlockScaling on compute capability 9.0
        GEMM   operand  dtype       block   scale                 rounding  rotation  multiplied
        fprop  x row    mxfp8_e4m3  1 x 32  block float8_e8m0fnu  even      -         expanded to bfloat16
        fprop  w row    mxfp8_e4m3  1 x 32  block float8_e8m0fnu  even      -         expanded to bfloat16
        dgrad  dy row   mxfp8_e4m3  1 x 32  block float8_e8m0fnu  even      -         expanded to bfloat16
        ...
    """
    chosen = recipe_in_force("explain_recipe", recipe)
    capability, where = capability_of(device)
    plan = chosen.linear_plan(name)
    notes = [operand for gemm in _GEMMS for operand in _explain(gemm, plan, capability, np.dtype(dtype))]
    return RecipeExplanation(str(chosen), where, notes, _remarks(chosen, plan, capability))


def _explain(gemm: Any, plan: LinearPlan, capability: Capability, dtype: np.dtype) -> list[OperandNote]:
    """Both operands of a GEMM."""
    kind, _, _, *operands = gemm
    sides = [getattr(plan, tensor).side(copy) for tensor, copy in operands]
    formats = [_format(getattr(plan, tensor), copy) for tensor, copy in operands]
    how, native = _multiplied(formats, capability, dtype, getattr(plan, f"fast_{kind}"))
    return [
        OperandNote(
            kind, tensor, copy, "high precision" if fmt is None else str(fmt),
            None if fmt is None else fmt.block_shape, _scale(side, fmt), side.rounding,
            side.rotation if copy == "col" else None, how, native,
        )
        for (tensor, copy), side, fmt in zip(operands, sides, formats, strict=True)
    ]  # fmt: skip


def _format(tensor: TensorPlan, copy: Any) -> QuantDType | None:
    """The format of a copy; one that holds the row copy's values in high precision has the row copy's codes."""
    side = tensor.side(copy)
    return tensor.format if side.source == "row" and side.format is None else side.format


def _scale(side: TensorPlan, fmt: QuantDType | None) -> str:
    if fmt is None:
        return "amax recorded" if side.scaling == "delayed" else "-"
    extra = ""
    if fmt.tensor_scale:
        extra = ", float32 per row" if fmt.per_row_tensor_scale else ", float32 per tensor"
    power = " power of two" if fmt.power_of_two_scales and fmt.scale.name == "float32" else ""
    return f"{side.scaling} {fmt.scale.name}{power}{extra}"


def _multiplied(
    formats: Sequence[QuantDType | None], capability: Capability, dtype: np.dtype, fast: bool
) -> tuple[str, bool]:
    """How two operands meet on the chip, and whether that is native."""
    if all(fmt is None for fmt in formats):
        return f"in {dtype}", True
    if any(fmt is not None and fmt.per_row_tensor_scale for fmt in formats):
        return "expanded to float32 (a scale per row)", False
    if capability.compute is None:
        return "expanded to float32, BLAS", False
    support = [capability.gemm(fmt) for fmt in formats if fmt is not None]
    if any(found.level == "absent" for found in support):
        return next(found.reason for found in support if found.level == "absent"), False
    left, right = (dtype if fmt is None else fmt for fmt in formats)
    way = route(left, right, capability.compute)
    if way.modes is None:
        return f"expanded to {way.dtype}", False
    kept = ", fast accumulation" if fast and capability.compute < (10, 0) else ""
    return f"{way}{kept}", True


def _remarks(recipe: Recipe, plan: LinearPlan, capability: Capability) -> list[str]:
    found = [f"lengths that are multiples of {alignment(recipe)} need no padding"]
    if plan.delayed is not None:
        rule = plan.delayed
        how = rule.algorithm if isinstance(rule.algorithm, str) else "a function of yours"
        found.append(f"delayed scales: {how} of {rule.history_length} amaxes, margin {rule.margin}")
    row = crossover(plan, capability.compute)
    if row is not None:
        found.append(
            f"M = N = K of about {row.square} and more gain over bfloat16, forward and backward ({row.source}); "
            'nf.autocast(min_gemm="measured") leaves smaller GEMMs in 16 bits'
        )
    whys = dict.fromkeys(
        f"{fmt}: {capability.gemm(fmt).reason}"
        for tensor in plan.tensors
        for copy in ("row", "col")
        if (fmt := _format(tensor, copy)) is not None and capability.gemm(fmt).level != "native"
    )
    return [*found, *whys]


def _cells(operand: OperandNote) -> tuple[str, ...]:
    block = "tensor" if operand.block is None else " x ".join(map(str, operand.block))
    if operand.dtype == "high precision":
        block = "-"
    return (
        operand.gemm, f"{operand.tensor} {operand.copy}", operand.dtype, block, operand.scale, operand.rounding,
        operand.rotation or "-", operand.multiplied,
    )  # fmt: skip
