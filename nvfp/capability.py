"""What a chip can do with a dtype: native, emulated or absent, and why, per compute capability.

Formats are matched by their properties against the narrow GEMM modes of cuBLASLt (`GEMM_MODES`); a
format that no mode of the chip takes is expanded, exactly, and multiplied as `expansion` says.
Casts are integer kernels of nvfp's own and give the same bits everywhere.

Source: cuBLAS documentation, "Narrow Precision Data Types Usage"; H200 measurements.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from nvfp import config
from nvfp.dtypes import elements as el
from nvfp.dtypes.elements import Element
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, message

Level = Literal["native", "emulated", "absent"]
Compute = tuple[int, int]
OLDEST: Compute = (8, 0)  # what the kernels are compiled for: the first with bfloat16


@dataclass(frozen=True)
class Support:
    """How an operation is done with a dtype: ``level`` and the ``reason`` in words."""

    level: Level
    reason: str


@dataclass(frozen=True)
class GemmMode:
    """One narrow GEMM mode of cuBLASLt.

    Attributes:
        name: cuBLASLt's name of the scale mode.
        elements: operand elements it takes.
        block: (across, along) the contraction that share a scale; None: one per tensor; (1, 0): one per row, the
            whole contraction long.
        scale: scale format.
        first: first compute capability that has it.
        last: last one, or None.
        run: whether nvfp's path for it has run on such a chip. Where it has not, it is built, and used with
            ``NVFP_UNPROVEN_GEMM=1`` only.
        but: combinations it refuses, in words.
    """

    name: str
    elements: tuple[Element, ...]
    block: tuple[int, int] | None
    scale: Element
    first: Compute
    last: Compute | None = None
    run: bool = False
    but: str = ""

    def takes(self, dtype: QuantDType, length: int | None = None) -> bool:
        """Whether operands of ``dtype``, ``length`` long along the contraction, can be handed over as they are."""
        if dtype.element not in self.elements or dtype.scale != self.scale or dtype.per_row_tensor_scale:
            return False
        shape = dtype.block_shape
        if self.block != (1, 0):
            # A scale of a square block serves each of its rows.
            tiled = self.block is not None and self.scale.bits == 8 and shape == (self.block[1], self.block[1])
            return shape == self.block or tiled
        return shape is not None and shape[0] == 1 and length is not None and shape[1] >= length

    @property
    def used(self) -> bool:
        """Whether nvfp's GEMM hands operands to it: it has run on such a chip, or the switch asks for it."""
        return self.run or config.flag("NVFP_UNPROVEN_GEMM")

    def on(self, compute: Compute) -> bool:
        """Whether a chip has it."""
        return self.first <= compute and (self.last is None or compute <= self.last)

    @property
    def chips(self) -> str:
        """The chips that have it, in words."""
        return f"compute capability {_text(self.first)} " + ("only" if self.last == self.first else "and newer")


_FP8 = (el.float8_e4m3fn, el.float8_e5m2)
GEMM_MODES: tuple[GemmMode, ...] = (
    GemmMode("SCALAR_32F", _FP8, None, el.float32, (8, 9), run=True, but="e5m2 x e5m2 is expanded"),
    GemmMode("VEC128_32F", _FP8, (1, 128), el.float32, (9, 0), (9, 0), run=True, but="e5m2 x e5m2 is expanded"),
    GemmMode(
        "BLK128x128_32F", _FP8, (128, 128), el.float32, (9, 0), (9, 0), run=True, but="beside 1 x 128 blocks only"
    ),
    GemmMode("OUTER_VEC_32F", _FP8, (1, 0), el.float32, (9, 0), (9, 0), run=True, but="beside its like only"),
    GemmMode("VEC32_UE8M0", _FP8, (1, 32), el.float8_e8m0fnu, (10, 0)),
    GemmMode("VEC16_UE4M3", (el.float4_e2m1fn,), (1, 16), el.float8_e4m3fn, (10, 0)),
)


def _text(compute: Compute) -> str:
    return f"{compute[0]}.{compute[1]}"


def gemm_mode(dtype: QuantDType, length: int | None = None) -> GemmMode | None:
    """Return the cuBLASLt mode whose operands are of ``dtype``, whatever the chip; None if there is none.

    Args:
        dtype: the row.
        length: of the contraction, where it is known: one block over the whole of it is a scale per row.
    """
    return next((mode for mode in GEMM_MODES if mode.takes(dtype, length)), None)


def expansion(dtype: QuantDType) -> Element:
    """Return the dense format that holds every value of ``dtype`` exactly (tensor scales go into alpha).

    bfloat16 has 8 significand bits; a code times its block scale needs the sum of both (a scale that
    is a power of two needs none). Exact inside bfloat16's exponent range.

    Args:
        dtype: a quantized dtype.

    Returns:
        The bfloat16 or float32 row.

    Example:
        >>> from nvfp.dtypes import formats
        >>> expansion(formats.nvfp4).name
        'bfloat16'
    """
    scale_bits = 0 if dtype.block is None or dtype.power_of_two_scales else dtype.scale.significand_bits
    return el.bfloat16 if dtype.element.significand_bits + scale_bits <= el.bfloat16.significand_bits else el.float32


@dataclass(frozen=True)
class Capability:
    """What a device does natively.

    Attributes:
        compute: compute capability, e.g. ``(9, 0)``; None for the CPU.

    Example:
        >>> from nvfp.dtypes import formats
        >>> Capability((9, 0)).gemm(formats.fp8_e4m3).level, Capability((9, 0)).gemm(formats.nvfp4).level
        ('native', 'emulated')
    """

    compute: Compute | None

    @classmethod
    def parse(cls, text: str) -> Capability:
        """Return the capability that ``"cpu"``, ``"9.0"``, ``"90"`` or ``"sm_90a"`` names.

        Raises:
            ArgumentError: the text is none of these.
        """
        if text == "cpu":
            return cls(None)
        digits = re.fullmatch(r"(?:sm_)?(\d+)\.?(\d)[af]?", text)
        if digits is None:
            raise ArgumentError(
                message("capability", "a compute capability like 9.0 or sm_90a, or cpu", text, "name it")
            )
        return cls((int(digits[1]), int(digits[2])))

    def cast(self, dtype: QuantDType | Element) -> Support:
        """Return how casts to and from ``dtype`` (a quantized dtype or a dense element) are done here."""
        if self.compute is None:
            return Support("native", "Numba kernels on integer bits; the same bits on every device")
        if self.compute < OLDEST:
            return self._too_old()
        return Support("native", "integer kernels; the same bits on every device")

    def gemm(self, dtype: QuantDType | Element) -> Support:
        """Return how a GEMM with operands of ``dtype`` (a quantized dtype or a dense element) is done here."""
        if self.compute is not None and self.compute < OLDEST:
            return self._too_old()
        if isinstance(dtype, Element):
            return self._dense(dtype)
        if self.compute is None:
            return Support("emulated", "operands expanded to float32, exactly, then BLAS")
        mode = gemm_mode(dtype)
        how = f"operands expanded to {expansion(dtype).name}"
        if mode is None:
            rows = next((m for m in GEMM_MODES if m.takes(dtype, 0) and m.on(self.compute)), None)
            but = f"; a block over the whole contraction is native (cuBLASLt {rows.name})" if rows else ""
            return Support("emulated", f"cuBLASLt has no mode with these blocks and scales; {how}{but}")
        if not mode.on(self.compute):
            return Support("emulated", f"cuBLASLt {mode.name} needs {mode.chips}; {how}")
        if not mode.used:
            why = "nvfp's path has not run there yet and needs NVFP_UNPROVEN_GEMM=1"
            return Support("emulated", f"the chip has cuBLASLt {mode.name}, {why}; {how}")
        return Support("native", f"cuBLASLt {mode.name}" + f" ({mode.but})" * bool(mode.but))

    def _dense(self, element: Element) -> Support:
        if element.bits < 16:
            return Support("absent", "an element without scale is for casts; use a quantized dtype")
        if self.compute is not None:
            return Support("native", "cuBLASLt, float32 accumulation")
        if element == el.float32:
            return Support("native", "BLAS")
        return Support("emulated", "expanded to float32, then BLAS, one rounding")

    def _too_old(self) -> Support:
        return Support("absent", f"nvfp's CUDA kernels need compute capability {_text(OLDEST)}")
