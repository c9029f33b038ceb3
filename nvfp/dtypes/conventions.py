"""How other stacks quantize, as data: where their bytes differ from those of nvfp's rows.

A `Convention` is what one stack does for one family of scales: which formats it covers, the scale rule and the
non-finite rule it puts in place of the row's, and the `Steps` that a row has no field for. A stack whose rule is
not known for a format, or is no exact rule (scales from a float32 logarithm), has no row here and is refused.

Source: docs/formats.md, "Conventions"; the bytes of these stacks in tests/data.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from nvfp.dtypes.formats import Nonfinite, QuantDType, ScaleFamily, ScaleRule
from nvfp.errors import ArgumentError, message

Order = Literal["nvfp", "modelopt", "compressed-tensors"]


@dataclass(frozen=True)
class Steps:
    """What quantization does beyond the fields of a row; the defaults are nvfp's own.

    Attributes:
        order: of the float32 operations of a two-level format, see `scales.divided_block_scale`; all but ``"nvfp"``
            divide by the scale.
        least_scale: a two-level block scale above 0 is at least this before its cast.
        zero_scale: value of a block scale that came out as 0 (of an all-zero block for E8M0); 0: as it is.
        even_bits: mantissa bits that rule ``"even"`` rounds amax to, where not the element's.
        even_overflow: a finite amax that rule ``"even"`` rounds to 2**128 makes a NaN block.
        symmetric: integer codes stop at minus the largest one.
        keep_minus_zero: -0 has the code of -0; else a product that is exactly -0 gets code 0.
        least_amax: least amax of float32 scales.
    """

    order: Order = "nvfp"
    least_scale: float = 0.0
    zero_scale: float = 0.0
    even_bits: int | None = None
    even_overflow: bool = False
    symmetric: bool = False
    keep_minus_zero: bool = True
    least_amax: float = 0.0


PLAIN = Steps()


@dataclass(frozen=True)
class Convention:
    """One stack, one family of scales.

    Attributes:
        stack: its name.
        family: scale family of the formats that it covers.
        elements: their elements.
        scale: their scale format, for two-level formats.
        per_tensor: for float32 scales: only one scale per tensor.
        scale_rule: in place of the row's; None keeps it.
        nonfinite: likewise.
        steps: the rest.
    """

    stack: str
    family: ScaleFamily
    elements: tuple[str, ...]
    scale: str | None = None
    scale_rule: ScaleRule | None = None
    nonfinite: Nonfinite | None = None
    steps: Steps = PLAIN
    per_tensor: bool = False

    def covers(self, fmt: QuantDType) -> bool:
        """Whether it says how ``fmt`` is made."""
        if fmt.scale_family != self.family or fmt.element.name not in self.elements:
            return False
        if self.family == "two_level":
            return fmt.tensor_scale and fmt.scale.name == self.scale
        return fmt.block is not None if self.family == "e8m0" else not (self.per_tensor and fmt.block is not None)


_FP8 = ("float8_e4m3fn", "float8_e5m2")
_FP4 = ("float4_e2m1fn",)
_FLOATS = (*_FP8, "float6_e2m3fn", "float6_e3m2fn", *_FP4)
_E4M3 = "float8_e4m3fn"

CONVENTIONS: tuple[Convention, ...] = (
    Convention("te", "float32", _FP8),
    Convention("te", "e8m0", _FP8, scale_rule="ceil", nonfinite="saturate"),
    Convention("te", "two_level", _FP4, _E4M3, nonfinite="saturate"),
    Convention("ocp", "e8m0", (*_FLOATS, "int8"), scale_rule="floor", nonfinite="nan_block"),
    # torchao offers FLOOR, EVEN and RCEIL: the row's own scale_rule says which.
    Convention("torchao", "e8m0", _FLOATS, nonfinite="nan_block", steps=Steps(even_overflow=True)),
    Convention("torchao", "float32", (_E4M3,), steps=Steps(least_amax=1e-12), per_tensor=True),
    Convention(
        "modelopt", "two_level", _FP4, _E4M3,
        steps=Steps("modelopt", least_scale=2.0**-9, zero_scale=1.0, keep_minus_zero=False),
    ),
    Convention(
        "compressed-tensors", "two_level", _FP4, _E4M3,
        steps=Steps("compressed-tensors", zero_scale=0.125, keep_minus_zero=False),
    ),
    Convention("compressed-tensors", "e8m0", (_E4M3,), scale_rule="even", steps=Steps(even_bits=1)),
    Convention(
        "compressed-tensors", "e8m0", _FP4, scale_rule="even", steps=Steps(even_bits=1, keep_minus_zero=False)
    ),
    Convention("mlx", "e8m0", (_E4M3,), scale_rule="ceil", steps=Steps(zero_scale=1.0)),
    Convention("microxcaling", "e8m0", (*_FLOATS, "int8"), scale_rule="floor",
               steps=Steps(symmetric=True, keep_minus_zero=False)),
)  # fmt: skip
STACKS = tuple(dict.fromkeys(row.stack for row in CONVENTIONS))


@lru_cache(maxsize=256)
def apply_convention(fmt: QuantDType, stack: str | None) -> tuple[QuantDType, Steps]:
    """Return the row and the steps by which ``stack`` quantizes to ``fmt`` (None: nvfp's own).

    Args:
        fmt: a quantized dtype.
        stack: one of `STACKS`, or None.

    Raises:
        ArgumentError: an unknown stack, or one whose rule for this format is not known.

    Example:
        >>> from nvfp.dtypes.formats import mxfp8
        >>> row, steps = apply_convention(mxfp8, "ocp")
        >>> row.scale_rule, steps == PLAIN
        ('floor', True)
    """
    if stack is None:
        return fmt, PLAIN
    if stack not in STACKS:
        raise ArgumentError(message("quantize", f"convention out of {STACKS}", repr(stack), "name one of these"))
    found = next((row for row in CONVENTIONS if row.stack == stack and row.covers(fmt)), None)
    if found is None:
        covered = "; ".join(f"{r.family} scales over {', '.join(r.elements)}" for r in CONVENTIONS if r.stack == stack)
        expected = f"a format whose rule in {stack} is known ({covered}) for convention={stack!r}"
        raise ArgumentError(message("quantize", expected, fmt.name, "leave convention= out"))
    changes = {"scale_rule": found.scale_rule, "nonfinite": found.nonfinite}
    told = {name: value for name, value in changes.items() if value not in (None, getattr(fmt, name))}
    return (fmt.replace(**told) if told else fmt), found.steps
