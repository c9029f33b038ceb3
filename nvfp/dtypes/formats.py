"""Quantized dtypes as rows: an element, the block that shares a scale, and how that scale is made.

A new format is a new row (or ``row.replace(...)``); no code asks for a format by name. A value is
``element(code) * scale[block] * tensor_scale``, always multiplying.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from nvfp.dtypes import elements as el
from nvfp.dtypes.elements import ELEMENTS, Element
from nvfp.errors import ArgumentError, DTypeError, message

Nonfinite = Literal["nan_block", "saturate"]
ScaleRule = Literal["ceil", "floor", "even"]
ScaleFamily = Literal["float32", "e8m0", "two_level"]
FourOverSix = Literal["mae_256", "mse_256", "mae_448", "mse_448"]


def as_element(value: object) -> Element:
    """Return the `Element` row that ``value`` (row, name or NumPy/ml_dtypes dtype) means."""
    if isinstance(value, Element):
        return value
    name = value if isinstance(value, str) else getattr(value, "name", None) or getattr(value, "__name__", str(value))
    if name not in ELEMENTS:
        raise DTypeError(message("QuantDType", f"an element out of {sorted(ELEMENTS)}", name, "name one of these"))
    return ELEMENTS[name]


@dataclass(frozen=True)
class QuantDType:
    """A quantized dtype.

    Args:
        name: how it prints, by default its fields; two rows with equal fields and names are equal. A row with the
            name of one of nvfp's prints with the fields that differ from that one.
        element: format of the codes (row, name or dtype); required.
        block: length along the block axis that shares a scale, a pair (across, along) for blocks
            over the last two axes, or None for one scale per tensor.
        scale: format of the block scale: ``float8_e8m0fnu``, ``float32`` or another float format; required.
        tensor_scale: True if one float32 decode factor per tensor multiplies the block scales.
            Float32 and E8M0 scales reach every magnitude alone and take none.
        nonfinite: what a block with NaN or inf becomes. ``"nan_block"``: scale and codes NaN.
            ``"saturate"``: NaN does not reach amax, elements are cast one by one (TE).
        power_of_two_scales: float32 scales rounded down to a power of two.
        scale_rule: how an E8M0 scale is chosen.
        four_over_six: of each block the better of two scales, which map its largest magnitude to 6 or to 4
            (`levels`): the sum of errors that decides (``mae``, ``mse``) and the bound of the scales (256, 448). For
            E2M1 under E4M3 scales and a tensor scale, and blocks whose first length is a power of two.
        per_row_tensor_scale: one tensor scale for each line along the block axis (a row; of a column copy a column)
            instead of per tensor. For 1-D blocks.

    Raises:
        DTypeError: an unknown element or scale format.
        ArgumentError: a block that is no positive length, or fields that do not fit together.

    Example:
        >>> nvfp4.replace(block=(16, 16)).bits_per_value
        4.03125
        >>> QuantDType("fp6_b32", "float6_e2m3fn", 32, "float8_e5m2").scale_family
        'two_level'
        >>> QuantDType(element="float4_e2m1fn", block=32, scale="float8_e8m0fnu")
        nvfp.float4_e2m1fn[block=32,scale=float8_e8m0fnu]
    """

    name: str = ""
    element: Element = None  # type: ignore[assignment]  # `as_element` asks for it by name
    block: int | tuple[int, int] | None = None
    scale: Element = None  # type: ignore[assignment]
    tensor_scale: bool = False
    nonfinite: Nonfinite = "nan_block"
    power_of_two_scales: bool = False
    scale_rule: ScaleRule = "ceil"
    four_over_six: FourOverSix | None = None
    per_row_tensor_scale: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "element", as_element(self.element))
        object.__setattr__(self, "scale", as_element(self.scale))
        object.__setattr__(self, "block", _as_block(self.block))
        for wrong, need, got, do in self._conflicts():
            if wrong:
                raise ArgumentError(message("QuantDType", need, got, do))
        if not self.name:
            told = [f.name for f in dataclasses.fields(self)[2:] if getattr(self, f.name) != f.default]
            object.__setattr__(self, "name", f"{self.element.name}[{self._fields(told)}]")

    def __hash__(self) -> int:
        return hash(self.name)  # equal rows have equal names; rows key caches on every call, so this is kept cheap

    def _conflicts(self) -> tuple[tuple[bool, str, str, str], ...]:
        """(is it wrong, what is needed, what came, what to do) for every pair of fields that may clash."""
        element, scale = self.element, self.scale
        no_mark = self.nonfinite == "nan_block" and not scale.has_nan
        # max * max must fit float32, in which the tensor scale is taken.
        too_wide = self.tensor_scale and (self.scale_family != "two_level" or element.max * scale.max > el.float32.max)
        wide = element.bits > 8 or not element.signed
        rules, marks = get_args(ScaleRule), get_args(Nonfinite)
        no_flag = not isinstance(self.tensor_scale, bool)
        across = (self.block_shape or (0, 0))[0]
        nvfp4_like = element == el.float4_e2m1fn and scale == el.float8_e4m3fn and self.tensor_scale
        searched, modes = self.four_over_six is not None, get_args(FourOverSix)
        no_search = searched and not (nvfp4_like and across and across & (across - 1) == 0)
        no_rows = self.per_row_tensor_scale and not (self.tensor_scale and across == 1)
        return (
            (not isinstance(self.name, str), "name as text", repr(self.name), "pass a string, or leave it out"),
            (no_flag, "tensor_scale as True or False", repr(self.tensor_scale), "pass a bool"),
            (wide, "a signed element of at most 8 bits", element.name, "pick another element"),
            (scale.integer, "a float scale format", scale.name, "pick e.g. 'float8_e8m0fnu'"),
            (no_mark, "a scale format with NaN for nonfinite='nan_block'", scale.name, "pass nonfinite='saturate'"),
            (too_wide, "a narrow scale format for tensor_scale=True", scale.name, "leave tensor_scale out"),
            (self.nonfinite not in marks, f"nonfinite out of {marks}", self.nonfinite, "pick one"),
            (
                searched and self.four_over_six not in modes,
                f"four_over_six out of {modes}",
                str(self.four_over_six),
                "pick one",
            ),
            (no_search, "E2M1, E4M3 scales and a tensor scale for four_over_six", element.name, "start from nvfp4"),
            (no_rows, "a tensor scale over 1-D blocks for per_row_tensor_scale", repr(self.block), "leave it out"),
            (self.scale_rule not in rules, f"scale_rule out of {rules}", self.scale_rule, "pick one"),
        )

    def replace(self, **changes: Any) -> QuantDType:
        """Return a row with some fields changed; the name tells how unless ``name=`` is given."""
        row = dataclasses.replace(self, **changes)
        if "name" in changes:
            return row
        return dataclasses.replace(row, name=f"{self}[{row._fields(changes)}]")

    def _fields(self, names: Iterable[str]) -> str:
        """Some fields in words, as the row holds them, not as they were spelled."""
        values = ((name, getattr(self, name)) for name in names)
        return ",".join(f"{name}={getattr(value, 'name', value)}" for name, value in values).replace(" ", "")

    @property
    def block_shape(self) -> tuple[int, int] | None:
        """(across, along) the block axis; None when one scale serves the tensor."""
        if self.block is None:
            return None
        return self.block if isinstance(self.block, tuple) else (1, self.block)

    @property
    def scale_family(self) -> ScaleFamily:
        """The rule that makes the scale: docs/formats.md under fp8_e4m3, mxfp8_e4m3, or nvfp4 (any other scale)."""
        if self.scale == el.float32:
            return "float32"
        return "e8m0" if self.scale == el.float8_e8m0fnu else "two_level"

    @property
    def scale_bound(self) -> float:
        """The block scale of a block that holds the tensor's largest magnitude (4-over-6 may leave room above it)."""
        return self.scale.max if self.four_over_six is None else float(self.four_over_six[4:])

    @property
    def leveled(self) -> bool:
        """Whether block scales take more than NVFP4's steps: see `levels`."""
        return self.four_over_six is not None or self.per_row_tensor_scale

    @property
    def square(self) -> bool:
        """Whether row and column copies hold the same numbers (per tensor, or square blocks without one A per row)."""
        shape = self.block_shape
        return shape is None or (shape[0] == shape[1] and not self.per_row_tensor_scale)

    @property
    def bits_per_value(self) -> float:
        """Stored bits per value, block scales included (one tensor scale is not counted)."""
        width = 4 if self.element.packed else max(8, self.element.bits)
        shape = self.block_shape
        return float(width) if shape is None else width + max(8, self.scale.bits) / (shape[0] * shape[1])

    @property
    def __numpy_dtype__(self) -> np.dtype:
        raise DTypeError(
            message("dtype", "a dense dtype", self.name, f"use x.astype(nf.{self.name}) or nf.quantize(x, ...)")
        )

    def __str__(self) -> str:
        known = NAMED.get(self.name, self)
        told = [f.name for f in dataclasses.fields(self)[1:] if getattr(self, f.name) != getattr(known, f.name)]
        return f"{self.name}[{self._fields(told)}]" if told else self.name

    def __repr__(self) -> str:
        return f"nvfp.{self}"


def _as_block(block: Any) -> int | tuple[int, int] | None:
    """Plain ints, checked (hashing and printing must not depend on NumPy integers or lists)."""
    sizes = [] if block is None else list(block) if isinstance(block, tuple | list) else [block]
    fits = all(isinstance(b, int | np.integer) and not isinstance(b, bool) and b >= 1 for b in sizes)
    if not fits or (isinstance(block, tuple | list) and len(sizes) != 2):
        raise ArgumentError(message("QuantDType", "block as a positive int, a pair of them, or None", block, "pass 32"))
    sizes = [int(b) for b in sizes]
    return None if block is None else (sizes[0], sizes[1]) if isinstance(block, tuple | list) else sizes[0]


def _per_tensor(name: str, element: Element) -> QuantDType:
    return QuantDType(name, element, None, el.float32, nonfinite="saturate")


def _mx(name: str, element: Element) -> QuantDType:
    return QuantDType(name, element, 32, el.float8_e8m0fnu)


fp8_e4m3 = _per_tensor("fp8_e4m3", el.float8_e4m3fn)
fp8_e5m2 = _per_tensor("fp8_e5m2", el.float8_e5m2)
fp8_e4m3_b128 = QuantDType(
    "fp8_e4m3_b128", el.float8_e4m3fn, 128, el.float32, nonfinite="saturate", power_of_two_scales=True
)
mxfp8_e4m3 = _mx("mxfp8_e4m3", el.float8_e4m3fn)
mxfp8_e5m2 = _mx("mxfp8_e5m2", el.float8_e5m2)
mxfp8 = mxfp8_e4m3
mxfp6_e2m3 = _mx("mxfp6_e2m3", el.float6_e2m3fn)
mxfp6_e3m2 = _mx("mxfp6_e3m2", el.float6_e3m2fn)
mxfp4 = _mx("mxfp4", el.float4_e2m1fn)
# OCP's rule: under "ceil" the code -128 could never occur, and no other stack rounds MXINT8 scales up.
mxint8 = _mx("mxint8", el.int8).replace(scale_rule="floor", name="mxint8")
nvfp4 = QuantDType("nvfp4", el.float4_e2m1fn, 16, el.float8_e4m3fn, tensor_scale=True)

FORMATS: dict[str, QuantDType] = {
    f.name: f
    for f in (
        fp8_e4m3, fp8_e5m2, fp8_e4m3_b128, mxfp8_e4m3, mxfp8_e5m2, mxfp6_e2m3, mxfp6_e3m2, mxfp4, mxint8, nvfp4,
    )
}  # fmt: skip
NAMED: dict[str, QuantDType] = {**FORMATS, "mxfp8": mxfp8}
