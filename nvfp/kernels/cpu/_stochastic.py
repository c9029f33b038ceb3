"""Casts by random numbers (or toward zero) on panels of blocks: `dtypes.stochastic` in Numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from nvfp.dtypes.codec import Overflow, Rounding
from nvfp.dtypes.elements import Element
from nvfp.dtypes.stochastic import Random, random_bits
from nvfp.kernels._stochastic import Rng
from nvfp.kernels.cpu._blocks import Place
from nvfp.kernels.cpu._njit import N, U, bits_float, float_bits, inline, njit, shifted_left, shifted_right
from nvfp.kernels.cpu._philox import fill_words
from nvfp.kernels.cpu._pool import run_chunks

_GROUPS = 1 << 12  # of a chunk
_MOST = np.float32(2.0**30)


def random_numbers(shape: tuple[int, ...], element: Element, rng: Rng, lane: int) -> Random:
    """Return the number of every element, row-major."""
    bits = random_bits(element)
    n = int(np.prod(shape, dtype=np.int64))
    words = np.empty((-(-n * bits // 128), 4), np.uint32)
    stream, step = np.uint32(4 * rng.ordinal + lane), np.uint32(int(rng.step) & 0xFFFFFFFF)

    def work(start: int, stop: int) -> None:
        fill_words(words[start:stop], np.uint64(start), stream, step, np.uint64(rng.key))

    run_chunks(work, len(words), _GROUPS)
    numbers: Random = words.reshape(-1).view(f"u{bits // 8}")[:n].reshape(shape)
    return numbers


@lru_cache(maxsize=64)
def cutter(element: Element, overflow: Overflow, rounding: Rounding) -> np.ndarray:
    """Return the uint32 constants of `cut_code` (floats) or `cut_integer`, after a kind flag.

    Floats: [0, shift, exponent offset, bits of the smallest normal, bits from a step to a random number's unit, float32
    bits of 1 / smallest subnormal, largest code, code of an overflow, NaN code, sign shift, code of an infinity].
    Integers: [1, then float32 bits of 1 in codes and of 2**-B, largest code, NaN code, mask].
    """
    unit = random_bits(element)
    if element.integer:
        one, part = (_bits(2.0**k) for k in (element.mantissa_bits, -unit))
        return np.array([1, one, part, element.max_code, element.nan_code, (1 << element.bits) - 1, 0, 0, 0, 0, 0], U)
    m = element.mantissa_bits
    infinity = element.max_code if overflow == "saturate" else element.overflow_code
    top = infinity if rounding == "stochastic" else element.max_code
    places = [23 - m, (127 - element.bias) << m, (128 - element.bias) << 23, (m + unit) << 23]
    codes = [element.max_code, top, element.nan_code, element.bits - 1, infinity]
    return np.array([0, *places, _bits(2.0 ** (m + element.bias - 1)), *codes], U)


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


@inline
def cut_code(
    x: Any, r: Any, shift: Any, offset: Any, normal: Any, unit: Any, steps: Any, most: Any, top: Any, nan: Any,
    sign: Any, infinity: Any,
) -> Any:  # fmt: skip
    """The code of a float32 in a small float format: up by ``r`` units, then cut down."""
    u = float_bits(x)
    a = U(u & U(0x7FFFFFFF))
    e = U(a & U(0x7F800000))
    e = normal if e < normal else e
    moved = bits_float(a) + np.float32(r) * bits_float(U(e - unit))
    bits = float_bits(moved)
    # Conversions to unsigned integers would stop vectorization. Below the smallest normal number all are small.
    code = U(np.int32(moved * steps)) if bits < normal else U(shifted_right(bits, shift) - offset)
    code = top if code > most else code
    code = infinity if a == U(0x7F800000) else code
    code = U(code | shifted_left(U(u >> U(31)), sign))
    return code if x == x else nan


@inline
def cut_integer(x: Any, r: Any, one: Any, unit: Any, most: Any, nan: Any, mask: Any) -> Any:
    """The two's complement code of ``x * one``: its magnitude up by ``r`` units, then cut down."""
    u = float_bits(x)
    y = abs(x) * one + np.float32(r) * unit
    k = U(np.int32(y if y < _MOST else _MOST))
    limit = U(most + U(u >> U(31)))
    k = limit if k > limit else k
    code = U(U(U(0) - k) & mask) if u > U(0x7FFFFFFF) else k
    return code if x == x else nan


@njit
def _cut_floats(
    x: Any, at: int, pitch: int, rows: int, columns: int, across: int, along: int, multiplier: Any, numbers: Any,
    nan: Any, random: Any, random_at: int, random_pitch: int, codes: Any, to: int, to_pitch: int,
) -> None:  # fmt: skip
    blocks = (columns + along - 1) // along
    shift, offset, normal, unit, steps = numbers[1], numbers[2], numbers[3], numbers[4], bits_float(numbers[5])
    most, top, sign, infinity = numbers[6], numbers[7], numbers[9], numbers[10]
    for r in range(rows):
        s, t = x[at + r * pitch : at + r * pitch + columns], codes[to + r * to_pitch : to + r * to_pitch + columns]
        d = random[random_at + r * random_pitch : random_at + r * random_pitch + columns]
        for b in range(blocks):
            f = multiplier[r // across * blocks + b]
            left, length = b * along, min(along, columns - b * along)
            for i in range(length):
                k = N(left + i)
                t[k] = cut_code(s[k] * f, d[k], shift, offset, normal, unit, steps, most, top, nan, sign, infinity)


@njit
def _cut_integers(
    x: Any, at: int, pitch: int, rows: int, columns: int, across: int, along: int, multiplier: Any, numbers: Any,
    nan: Any, random: Any, random_at: int, random_pitch: int, codes: Any, to: int, to_pitch: int,
) -> None:  # fmt: skip
    blocks = (columns + along - 1) // along
    one, unit, most, mask = bits_float(numbers[1]), bits_float(numbers[2]), numbers[3], numbers[5]
    for r in range(rows):
        s, t = x[at + r * pitch : at + r * pitch + columns], codes[to + r * to_pitch : to + r * to_pitch + columns]
        d = random[random_at + r * random_pitch : random_at + r * random_pitch + columns]
        for b in range(blocks):
            f = multiplier[r // across * blocks + b]
            left, length = b * along, min(along, columns - b * along)
            for i in range(length):
                k = N(left + i)
                t[k] = cut_integer(s[k] * f, d[k], one, unit, most, nan, mask)


def cut_blocks(
    source: Place, shape: tuple[int, int], block: tuple[int, int], multiplier: np.ndarray, numbers: np.ndarray,
    nan: int, random: Place, target: Place,
) -> None:  # fmt: skip
    """Write the codes of ``x * multiplier of its block`` by random numbers; ``nan`` as in `_blocks.encode_blocks`."""
    kernel: Callable[..., None] = _cut_integers if numbers[0] else _cut_floats
    kernel(*source, *shape, *block, multiplier, numbers, np.uint32(nan), *random, *target)
