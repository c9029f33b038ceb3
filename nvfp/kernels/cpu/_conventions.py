"""Casts of other stacks on panels of blocks (`dtypes.conventions.Steps`): division by a scale, no -0, fewer codes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from nvfp.dtypes.codec import Overflow
from nvfp.dtypes.conventions import Steps
from nvfp.dtypes.elements import Element
from nvfp.kernels.cpu._blocks import Place
from nvfp.kernels.cpu._encode import encode_element, encode_integer
from nvfp.kernels.cpu._njit import N, bits_float, njit
from nvfp.kernels.cpu._tables import element_encoder


@lru_cache(maxsize=64)
def converter(element: Element, overflow: Overflow, steps: Steps) -> np.ndarray:
    """Return [1 to divide, float32 bits of what is added last] and the constants of `_tables.element_encoder`."""
    numbers = element_encoder(element, overflow).copy()
    if element.integer and steps.symmetric:
        numbers[2] = np.float32(-element.max_code).view(np.uint32)
    nothing = np.float32(-0.0 if steps.keep_minus_zero else 0.0)  # -0 + 0 is 0; anything + -0 is itself
    return np.append(np.array([steps.order != "nvfp", nothing.view(np.uint32)], np.uint32), numbers)


@njit
def _convert(
    x: Any, at: int, pitch: int, rows: int, columns: int, across: int, along: int,
    factor: Any, numbers: Any, nan: Any, codes: Any, to: int, to_pitch: int,
) -> None:  # fmt: skip
    blocks = (columns + along - 1) // along
    divide, nothing, integer = numbers[0], bits_float(numbers[1]), numbers[2]
    shift, normal, ceiling, lift = numbers[3], numbers[4], numbers[5], numbers[6]
    base, drop, sign = numbers[7], numbers[8], numbers[9]
    one, least, most, mask = bits_float(numbers[3]), bits_float(numbers[4]), bits_float(numbers[5]), numbers[7]
    for r in range(rows):
        s, t = x[at + r * pitch : at + r * pitch + columns], codes[to + r * to_pitch : to + r * to_pitch + columns]
        for b in range(blocks):
            f = factor[r // across * blocks + b]
            left, length = b * along, min(along, columns - b * along)
            for i in range(length):
                k = N(left + i)
                v = s[k]
                y = (v / f if divide else v * f) + nothing
                if integer:
                    t[k] = encode_integer(y, one, least, most, nan, mask)
                else:
                    t[k] = encode_element(y, nan, shift, normal, ceiling, lift, base, drop, sign)


def convert_blocks(
    source: Place, shape: tuple[int, int], block: tuple[int, int], factor: np.ndarray, numbers: np.ndarray,
    nan: int, target: Place,
) -> None:  # fmt: skip
    """Write the codes of ``x`` times (or divided by) the factor of its block; ``nan`` where that is NaN."""
    codes, to, pitch = target
    _convert(*source, *shape, *block, factor, numbers, np.uint32(nan), codes, to, pitch)
