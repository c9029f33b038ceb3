"""`Recipe`: the frozen record of a precision policy, and what every recipe can be asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Literal

from nvfp.dtypes import formats as rows
from nvfp.dtypes.elements import Element
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, NotBuiltError, message
from nvfp.recipes.formats import Format
from nvfp.recipes.plan import LinearPlan


@dataclass(frozen=True)
class MMParams:
    """Accumulation of one GEMM (TE's name and meaning).

    Args:
        use_split_accumulator: promote the partial sums of Hopper's FP8 tensor cores to float32
            registers; False is faster and keeps fewer bits.
    """

    use_split_accumulator: bool = True


@dataclass(frozen=True)
class Recipe(ABC):
    """Base of every recipe. A recipe says, for each operand of a GEMM, which format it gets.

    Args:
        fp8_dpa: quantize at the borders of attention; not built yet.
        fp8_mha: keep FP8 from the projection through attention; not built yet.
        backward_override: None quantizes backward too; ``"high_precision"`` and ``"dequantized"`` are
            not built yet.

    Raises:
        ArgumentError: something else than a bool for a switch.
        NotBuiltError: an argument above marked so.
    """

    fp8_dpa: bool = field(default=False, kw_only=True)
    fp8_mha: bool = field(default=False, kw_only=True)
    backward_override: Literal["high_precision", "dequantized"] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for flag in fields(self):
            value = getattr(self, flag.name)
            if isinstance(flag.default, bool) and not isinstance(value, bool):
                do = "pass True or False"
                raise ArgumentError(message(type(self).__name__, f"{flag.name} as a bool", repr(value), do))
        for name in ("fp8_dpa", "fp8_mha", "backward_override"):
            if getattr(self, name):
                raise not_built(type(self).__name__, name, f"leave {name} out for now")

    @abstractmethod
    def _linear_plan(self) -> LinearPlan:
        """Make the plan of a linear layer under this recipe."""

    def linear_plan(self) -> LinearPlan:
        """Return the plan of a linear layer under this recipe: the same object every time.

        Formats and plans are keys of caches below, so a layer must not see new ones at every call.
        """
        return _resolved(self)

    def __str__(self) -> str:
        return type(self).__name__


@cache
def _resolved(recipe: Recipe) -> LinearPlan:
    return recipe._linear_plan()


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


def not_built(recipe: str, argument: str, issue: str) -> NotBuiltError:
    """Return the error for a documented argument that is still to be built."""
    return NotBuiltError(message(recipe, f"{argument} left off", f"{argument} on", issue))
