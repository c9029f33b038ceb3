"""Which block a scale serves, read from shapes and the configuration; and the dtype that follows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from nvfp.dtypes import elements as el
from nvfp.dtypes.elements import Element
from nvfp.dtypes.formats import FORMATS, Nonfinite, QuantDType, fp8_e4m3, fp8_e5m2, mxfp4, mxfp8_e4m3, mxfp8_e5m2, nvfp4
from nvfp.errors import FileFormatError, message
from nvfp.files.quant_config import Rule
from nvfp.kernels.operand import scale_shape

_ELEMENTS = {"F8_E4M3": el.float8_e4m3fn, "F8_E5M2": el.float8_e5m2}
_PLAIN = {"F8_E4M3": fp8_e4m3, "F8_E5M2": fp8_e5m2}
_MX = {"F8_E4M3": mxfp8_e4m3, "F8_E5M2": mxfp8_e5m2}
_MADE = ("name", "nonfinite", "power_of_two_scales", "scale_rule", "four_over_six")  # how it was made, not what it is


@dataclass(frozen=True)
class Found:
    """What a file says of a quantized tensor.

    Attributes:
        name: of the whole.
        shape: in elements.
        codes: dtype of the codes in the file.
        scale: shape of the scales.
        tensor: shape of the tensor scale, or None.
    """

    name: str
    shape: tuple[int, ...]
    codes: str
    scale: tuple[int, ...]
    tensor: tuple[int, ...] | None = None

    def refuse(self, expected: str) -> FileFormatError:
        """Return the error that says what the shapes should have been.

        Args:
            expected: in words.
        """
        got = f"{self.name} {self.shape} with scales {self.scale}"
        return FileFormatError(message("open_checkpoint", expected, got, "mend the file or its quantization_config"))


def float_scaled(found: Found, rule: Rule) -> tuple[QuantDType, tuple[int, ...]]:
    """FP8 with float32 scales: one per tensor, per row, per group of a row, or per block of the last two axes."""
    return _eight_bits(found, rule, el.float32, _PLAIN[found.codes])


def block_scaled(found: Found, rule: Rule) -> tuple[QuantDType, tuple[int, ...]]:
    """FP8 with float32 scales per block of the last two axes, small arrays of one block too; or one per tensor."""
    unsaid = rule.strategy is None and len(found.scale) >= 2
    return float_scaled(found, dataclasses.replace(rule, strategy="block") if unsaid else rule)


def e8m0_blocks(found: Found, rule: Rule) -> tuple[QuantDType, tuple[int, ...]]:
    """FP8 in blocks of the last two axes whose scales are powers of two."""
    return _eight_bits(found, rule, el.float8_e8m0fnu, None)


def mx_eight(found: Found, rule: Rule) -> tuple[QuantDType, tuple[int, ...]]:
    """MXFP8: a power of two per 32 values of the last axis."""
    return _groups(found, rule, _MX[found.codes])


def mx_four(found: Found, rule: Rule) -> tuple[QuantDType, tuple[int, ...]]:
    """MXFP4: a power of two per 32 values of the last axis."""
    return _groups(found, rule, mxfp4)


def two_level(found: Found, rule: Rule) -> tuple[QuantDType, tuple[int, ...]]:
    """NVFP4: an E4M3 scale per 16 values of the last axis, and one float32 per tensor (per matrix of a stack)."""
    fmt, scales = _groups(found, rule, nvfp4)
    if found.tensor is None:
        return fmt.replace(tensor_scale=False), scales
    if math.prod(found.tensor) == 1:
        return fmt, scales
    if len(found.shape) == 3 and found.tensor in ((found.shape[0],), (found.shape[0], 1), (found.shape[0], 1, 1)):
        return fmt.replace(per_row_tensor_scale=True), scales
    raise found.refuse(f"one tensor scale, not {found.tensor},")


def plain_tensor_scale(word: np.ndarray) -> np.ndarray:
    """Return one factor per tensor or per matrix of a stack from one per row, where that says the same.

    Args:
        word: float32 factors.

    Raises:
        FileFormatError: rows of one matrix that differ.
    """
    if word.ndim == 2 and word.shape[1] and (word == word[:, :1]).all():
        return np.ascontiguousarray(word[:, 0])
    if word.ndim:
        do = "quantize without per_row_tensor_scale, or save in dialect nvfp"
        raise FileFormatError(message("save_model", "one tensor scale per matrix", f"{word.shape}", do))
    return word


def same(fmt: QuantDType, other: QuantDType) -> bool:
    """Whether the codes and scales of two dtypes mean the same, however they were chosen.

    Example:
        >>> same(nvfp4.replace(four_over_six="mse_256"), nvfp4), same(nvfp4, mxfp4)
        (True, False)
    """
    fields = [f.name for f in dataclasses.fields(QuantDType) if f.name not in _MADE]
    return all(getattr(fmt, name) == getattr(other, name) for name in fields)


def is_float_scaled(fmt: QuantDType) -> bool:
    """Whether a dtype is FP8 with float32 scales."""
    return fmt.element in _ELEMENTS.values() and fmt.scale == el.float32


def is_e4m3_scaled(fmt: QuantDType) -> bool:
    """Whether a dtype is E4M3 with float32 scales."""
    return is_float_scaled(fmt) and fmt.element == el.float8_e4m3fn


def is_square_scaled(fmt: QuantDType) -> bool:
    """Whether a dtype is E4M3 with float32 scales in blocks over two axes, or one per tensor."""
    return is_e4m3_scaled(fmt) and not isinstance(fmt.block, int)


def is_e8m0_blocks(fmt: QuantDType) -> bool:
    """Whether a dtype is E4M3 with power-of-two scales in blocks over two axes."""
    return fmt.element == el.float8_e4m3fn and fmt.scale == el.float8_e8m0fnu and isinstance(fmt.block, tuple)


def is_mx_eight(fmt: QuantDType) -> bool:
    """Whether a dtype is MXFP8."""
    return any(same(fmt, row) for row in _MX.values())


def is_mx_four(fmt: QuantDType) -> bool:
    """Whether a dtype is MXFP4."""
    return same(fmt, mxfp4)


def is_two_level(fmt: QuantDType) -> bool:
    """Whether a dtype is NVFP4 (with one tensor scale, or one per row)."""
    return fmt.tensor_scale and same(fmt.replace(per_row_tensor_scale=False), nvfp4)


def named(fmt: QuantDType) -> QuantDType:
    """Return nvfp's own row where a made one has its fields.

    Args:
        fmt: of any name.
    """
    fields = [f.name for f in dataclasses.fields(QuantDType)[1:]]
    rows = (row for row in FORMATS.values() if all(getattr(row, n) == getattr(fmt, n) for n in fields))
    return next(rows, fmt)


@cache
def _made(element: Element, block: int | tuple[int, int] | None, scale: Element) -> QuantDType:
    mark: Nonfinite = "saturate" if scale == el.float32 else "nan_block"
    return named(QuantDType(element=element, block=block, scale=scale, nonfinite=mark))


def _groups(found: Found, rule: Rule, row: QuantDType) -> tuple[QuantDType, tuple[int, ...]]:
    fmt = row if rule.group in (None, row.block) else row.replace(block=rule.group)
    if not found.shape:
        raise found.refuse("codes with an axis")
    expected = scale_shape(fmt, found.shape, len(found.shape) - 1)
    if found.scale != expected:
        raise found.refuse(f"scales {expected} for blocks of {fmt.block}")
    return fmt, expected


def _eight_bits(
    found: Found, rule: Rule, scale: Element, plain: QuantDType | None
) -> tuple[QuantDType, tuple[int, ...]]:
    element = _ELEMENTS[found.codes]
    for strategy, block, shape in _granularities(found, rule):
        if rule.strategy not in (None, strategy) or (block is None and plain is None):
            continue
        if block is None and plain is not None:
            return plain, ()
        return _made(element, block, scale), shape
    said = f" by {rule.strategy}" if rule.strategy else ""
    block = rule.block or (128, 128)
    raise found.refuse(f"one scale per tensor, row, group or {block[0]}x{block[1]} block{said}")


def _granularities(found: Found, rule: Rule) -> Iterator[tuple[str, int | tuple[int, int] | None, tuple[int, ...]]]:
    """(strategy, block, shape of the scales) of every reading that the shapes allow, the likeliest first."""
    shape, scale = found.shape, found.scale
    if math.prod(scale) == 1 and (0 not in shape or len(scale) < 2):
        yield "tensor", None, ()
    if len(shape) < 2 or 0 in shape:
        return
    *stack, rows, columns = shape
    block = rule.block or (128, 128)
    blocks = (*stack, -(-rows // block[0]), -(-columns // block[1]))
    if scale == blocks:
        yield "block", block, blocks
    if len(stack) == 1 and scale in ((stack[0],), (stack[0], 1), (stack[0], 1, 1)):
        yield "tensor", (rows, columns), (stack[0], 1, 1)
    if scale in ((*stack, rows, 1), (*stack, rows)):
        yield "channel", columns, (*stack, rows, 1)
    if scale[:-1] == (*stack, rows) and scale[-1] and columns % scale[-1] == 0:
        group = columns // scale[-1]
        if rule.group in (None, group):
            yield "group", group, scale
