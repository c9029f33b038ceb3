"""`Recipe`: the frozen record of a precision policy, and what every recipe can be asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, ClassVar, get_args

from nvfp.dtypes import formats as rows
from nvfp.dtypes.elements import Element
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, NotBuiltError, message
from nvfp.recipes.formats import Format
from nvfp.recipes.plan import LinearPlan, Override


@dataclass(frozen=True)
class MMParams:
    """Accumulation of one GEMM (TE's name and meaning).

    Args:
        use_split_accumulator: promote the partial sums of Hopper's FP8 tensor cores to float32
            registers; False is faster and keeps fewer bits.
    """

    use_split_accumulator: bool = True


FAST = MMParams(use_split_accumulator=False)
SPLIT = MMParams(use_split_accumulator=True)


def accumulation(fprop: MMParams, dgrad: MMParams, wgrad: MMParams) -> dict[str, Any]:
    """Return the three GEMMs' accumulation as a plan names it.

    Example:
        >>> accumulation(FAST, SPLIT, SPLIT)
        {'fast_fprop': True, 'fast_dgrad': False, 'fast_wgrad': False}
    """
    return {
        "fast_fprop": not fprop.use_split_accumulator,
        "fast_dgrad": not dgrad.use_split_accumulator,
        "fast_wgrad": not wgrad.use_split_accumulator,
    }


@dataclass(frozen=True)
class Recipe(ABC):
    """Base of every recipe. A recipe says, for each operand of a GEMM, which format it gets.

    A recipe is data: no environment variable changes it (TE's ``NVTE_*`` overrides are arguments here), so that what
    is printed and saved is what runs.

    Args:
        fp8_dpa: quantize at the borders of attention; not built yet.
        fp8_mha: keep FP8 from the projection through attention; not built yet.
        backward_override: None quantizes backward too. ``"high_precision"`` keeps input and weight as they came and
            runs dgrad and wgrad unquantized; ``"dequantized"`` does so with the values that fprop saw (input and
            weight dequantized), so that forward and backward belong to one function. `DelayedScaling` has none.

    Raises:
        ArgumentError: something else than a bool for a switch, or an unknown override.
        NotBuiltError: an argument above marked so.
    """

    by_name: ClassVar[bool] = False  # whether the plan depends on the name of the GEMM

    fp8_dpa: bool = field(default=False, kw_only=True)
    fp8_mha: bool = field(default=False, kw_only=True)
    backward_override: Override | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        recipe = type(self).__name__
        for flag in fields(self):
            value = getattr(self, flag.name)
            if isinstance(flag.default, bool) and not isinstance(value, bool):
                raise ArgumentError(message(recipe, f"{flag.name} as a bool", repr(value), "pass True or False"))
            if isinstance(flag.default, MMParams) and not isinstance(value, MMParams):
                do = "pass nf.recipes.MMParams(use_split_accumulator=True)"
                raise ArgumentError(message(recipe, f"{flag.name} as MMParams", repr(value), do))
        for name in ("fp8_dpa", "fp8_mha"):
            if getattr(self, name):
                raise not_built(recipe, name, f"leave {name} out for now")
        if self.backward_override not in (None, *get_args(Override)):
            expected = 'backward_override None, "high_precision" or "dequantized"'
            raise ArgumentError(message(recipe, expected, repr(self.backward_override), "pick one"))

    @abstractmethod
    def _linear_plan(self, name: str) -> LinearPlan:
        """Make the plan of the GEMM of this name, without the backward override."""

    def linear_plan(self, name: str = "") -> LinearPlan:
        """Return the plan of a linear layer under this recipe: the same object every time.

        Formats and plans are keys of caches below, so a layer must not see new ones at every call.

        Args:
            name: of the GEMM, e.g. ``"layers.0.mlp.fc1"``; most recipes give all of them the same plan.
        """
        plans: dict[str, LinearPlan] = vars(self).setdefault("_plans", {})  # the hash of a recipe costs microseconds
        name = name if self.by_name else ""
        plan = plans.get(name)
        if plan is None:
            plan = plans[name] = _resolved(self, name)
        return plan

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __str__(self) -> str:
        return type(self).__name__


@lru_cache(maxsize=4096)
def _resolved(recipe: Recipe, name: str) -> LinearPlan:
    return recipe._linear_plan(name).with_backward(recipe.backward_override)


def of_element(row: QuantDType, element: Element) -> QuantDType:
    """Return the row with another element: the named row if there is one, else a replacement."""
    if row.element == element:
        return row
    wanted = row.replace(element=element, name="")
    for known in rows.FORMATS.values():
        if known.replace(name="") == wanted:
            return known
    return row.replace(element=element)


def check_fp8_format(recipe: str, value: object) -> None:
    """Raise unless ``value`` is a `Format` that FP8 training takes (E4M3 or HYBRID)."""
    if value not in (Format.E4M3, Format.HYBRID):
        raise ArgumentError(
            message(
                recipe,
                "fp8_format=Format.E4M3 or Format.HYBRID",
                value,
                "pure E5M2 and FP4 do not train in FP8 recipes",
            )
        )


def check_whole(recipe: str, name: str, value: object, low: int, high: int, do: str) -> None:
    """Raise unless an argument is an int between two limits."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ArgumentError(message(recipe, f"{name} as an int in {low}..{high}", repr(value), do))


def not_built(recipe: str, argument: str, do: str) -> NotBuiltError:
    """Return the error for a documented argument that is still to be built."""
    return NotBuiltError(message(recipe, f"{argument} left off", f"{argument} on", do))
