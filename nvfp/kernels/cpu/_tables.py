"""The numbers that kernels take from the rows: encoder constants, decode tables, scale rules.

Everything is derived from `Element` and `QuantDType` fields; no format is known by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from nvfp.dtypes import elements as el
from nvfp.dtypes.codec import Overflow, decode, encode
from nvfp.dtypes.conventions import PLAIN, Steps
from nvfp.dtypes.elements import Element
from nvfp.dtypes.formats import QuantDType

FLOAT_SCALE, POWER_SCALE, NARROW_SCALE, DIVIDED_SCALE = 0, 1, 2, 3
_MANTISSA = 0x7FFFFF


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


@lru_cache(maxsize=64)
def encoder(element: Element, overflow: Overflow) -> np.ndarray:
    """Return the uint32 constants of `_encode.encode_code` (floats) or `encode_integer`, after a kind flag.

    Floats: [0, shift, half unit - 1, exponent offset, bits of the smallest normal, bits of the subnormal
    rounder, largest code, code of an overflow, NaN code, sign shift]. Integers: [1, then float32 bits of 1 in
    codes, of the least and the largest code, NaN code, mask of a code].
    """
    if element.integer:
        limits = [_bits(2.0**element.mantissa_bits), _bits(-element.max_code - 1), _bits(element.max_code)]
        return np.array([1, *limits, element.nan_code, (1 << element.bits) - 1, 0, 0, 0, 0], np.uint32)
    shift = 23 - element.mantissa_bits
    top = element.max_code if overflow == "saturate" else element.overflow_code
    normal = (128 - element.bias) << 23
    rounder = _bits(2.0 ** (24 - element.bias - element.mantissa_bits))
    offset = (127 - element.bias) << element.mantissa_bits
    codes = [element.max_code, top, element.nan_code]
    half = (1 << (shift - 1)) - 1
    return np.array([0, shift, half, offset, normal, rounder, *codes, element.bits - 1], np.uint32)


@lru_cache(maxsize=64)
def element_encoder(element: Element, overflow: Overflow) -> np.ndarray:
    """Return the uint32 constants of `_encode.encode_element` or `encode_integer`, after a kind flag, but the NaN code.

    Floats: [0, shift, bits of the smallest normal, bits of the ceiling, exponent steps to the last place, exponent code
    of the smallest normal, places from the sign to its place in a code, sign code]. Integers: see `encoder`.
    """
    if element.integer:
        return encoder(element, overflow)
    m = element.mantissa_bits
    shift, normal = 23 - m, (128 - element.bias) << 23
    top = element.max_code if overflow == "saturate" else element.overflow_code
    # An overflow has the code above the largest one, as if the grid went on.
    ceiling = _bits(element.max + (top - element.max_code) * 2.0 ** (element.emax - m))
    drop, sign = 32 - element.bits, element.sign_code
    return np.array([0, shift, normal, ceiling, shift << 23, normal >> shift, drop, sign], np.uint32)


@lru_cache(maxsize=64)
def decode_table(element: Element) -> np.ndarray:
    """Return the float32 value of each of 256 (65,536) codes of one (two) bytes; codes of narrower formats repeat.

    Example:
        >>> from nvfp.dtypes import elements
        >>> decode_table(elements.float4_e2m1fn)[:8].tolist()
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    """
    codes = (np.arange(1 << max(8, element.bits)) & ((1 << element.bits) - 1)).astype(element.storage)
    return decode(codes, element).astype(np.float32)


@dataclass(frozen=True, eq=False)
class ScaleRule:
    """How a block scale follows from an amax, as numbers for `_blocks.scales`.

    Attributes:
        family: FLOAT_SCALE, POWER_SCALE, NARROW_SCALE, or DIVIDED_SCALE for the narrow scales of a convention.
        nan_block: whether a block with NaN or inf becomes a NaN block.
        ints: int64 [family, amax mantissa from which the power of two carries, exponent of the element's
            maximum, 1 for power-of-two float32 scales, 1 for NaN blocks, code of a NaN scale, code in place of a
            scale of 0, amax bits that make a NaN block, 1 for modelopt's order].
        given_ints: the same without NaN blocks, for an amax that the caller gives.
        largest: the largest element.
        least: least narrow scale above 0 before its cast.
        scale_encoder, scale_table: the narrow scale format (for the other families: any, they are not read).
        nan_code: the code of a NaN element.
        fill: the code of every element of a NaN block.
        stored: dtype of the stored scales: float32, or that of their codes.
    """

    family: int
    nan_block: bool
    ints: np.ndarray
    given_ints: np.ndarray
    largest: np.float32
    least: np.float32
    scale_encoder: np.ndarray
    scale_table: np.ndarray
    nan_code: int
    fill: int
    stored: np.dtype


@lru_cache(maxsize=256)
def scale_rule(fmt: QuantDType, steps: Steps = PLAIN) -> ScaleRule:
    """Return the `ScaleRule` of a row, by the steps of a convention."""
    element, scale, nan_block = fmt.element, fmt.scale, fmt.nonfinite == "nan_block"
    family = {"float32": FLOAT_SCALE, "e8m0": POWER_SCALE, "two_level": NARROW_SCALE}[fmt.scale_family]
    narrow = scale if family == NARROW_SCALE else element
    family = DIVIDED_SCALE if steps.order != "nvfp" else family
    largest = _bits(element.max / 2.0**element.emax) & _MANTISSA
    even_bits = element.top_mantissa_bits if steps.even_bits is None else steps.even_bits
    even = _MANTISSA + 1 - (1 << (22 - even_bits))
    carry = {"ceil": largest + 1, "floor": _MANTISSA + 1, "even": even}[fmt.scale_rule]
    nan_scale = _bits(np.nan) if family == FLOAT_SCALE else scale.nan_code
    zero = int(encode(steps.zero_scale, scale)) if steps.zero_scale else 0
    bad = 0x7F000000 + (carry if fmt.scale_rule == "even" and steps.even_overflow else _MANTISSA + 1)
    rest = [zero, bad, steps.order == "modelopt"]
    numbers = [family, carry, element.emax, fmt.power_of_two_scales, nan_block, nan_scale, *rest]
    return ScaleRule(
        family=family,
        nan_block=nan_block,
        ints=np.array(numbers, np.int64),
        given_ints=np.array([*numbers[:4], 0, *numbers[5:]], np.int64),
        largest=np.float32(element.max),
        least=np.float32(steps.least_scale),
        scale_encoder=encoder(narrow, "saturate"),
        scale_table=decode_table(narrow),
        nan_code=element.nan_code,
        fill=element.nan_code if element.has_nan or not nan_block else 0,
        stored=np.dtype(np.float32) if family == FLOAT_SCALE else scale.storage,
    )


LARGEST_FINITE: dict[np.dtype[Any], float] = {
    np.dtype(np.float16): el.float16.max,
    el.bfloat16.dtype: el.bfloat16.max,
    np.dtype(np.float32): el.float32.max,
    np.dtype(np.float64): el.float32.max,  # computed in float32
}
