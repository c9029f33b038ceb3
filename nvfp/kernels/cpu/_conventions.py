"""Casts of other stacks on panels of blocks (`dtypes.conventions.Steps`): division by a scale, no -0, fewer codes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from nvfp.dtypes.codec import Overflow
from nvfp.dtypes.conventions import Steps
from nvfp.dtypes.elements import Element
from nvfp.kernels.cpu._blocks import Place
from nvfp.kernels.cpu._encode import encode_code, encode_integer
from nvfp.kernels.cpu._njit import bits_float, njit
from nvfp.kernels.cpu._tables import encoder


@lru_cache(maxsize=64)
def converter(element: Element, overflow: Overflow, steps: Steps) -> np.ndarray:
    """Return the constants of `_tables.encoder` and behind them [1 to divide, float32 bits of what is added last]."""
    numbers = encoder(element, overflow).copy()
    if element.integer and steps.symmetric:
        numbers[2] = np.float32(-element.max_code).view(np.uint32)
    nothing = np.float32(-0.0 if steps.keep_minus_zero else 0.0)  # -0 + 0 is 0; anything + -0 is itself
    return np.append(numbers, np.array([steps.order != "nvfp", nothing.view(np.uint32)], np.uint32))


@njit
def _convert(
    x: Any, at: int, pitch: int, rows: int, columns: int, across: int, along: int,
    factor: Any, numbers: Any, fill: Any, codes: Any, to: int, to_pitch: int,
) -> None:  # fmt: skip
    blocks = (columns + along - 1) // along
    shift, half, offset, normal, magic = numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]
    most, top, nan, sign = numbers[6], numbers[7], numbers[8], numbers[9]
    one, lowest, highest = bits_float(numbers[1]), bits_float(numbers[2]), bits_float(numbers[3])
    integer, divide, nothing = numbers[0], numbers[10], bits_float(numbers[11])
    for r in range(rows):
        for c in range(columns):
            v, f = x[at + r * pitch + c], factor[r // across * blocks + c // along]
            y = (v / f if divide else v * f) + nothing
            if integer:
                code = encode_integer(y, one, lowest, highest, numbers[4], numbers[5])
            else:
                code = encode_code(y, shift, half, offset, normal, magic, most, top, nan, sign)
            codes[to + r * to_pitch + c] = code if f == f else fill


def convert_blocks(
    source: Place, shape: tuple[int, int], block: tuple[int, int], factor: np.ndarray, numbers: np.ndarray,
    fill: int, target: Place,
) -> None:  # fmt: skip
    """Write the codes of ``x`` times (or divided by) the factor of its block; ``fill`` where that is NaN."""
    codes, to, pitch = target
    _convert(*source, *shape, *block, factor, numbers, np.uint32(fill), codes, to, pitch)
