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
from nvfp.kernels.cpu._njit import U, bits_float, float_bits, inline, njit
from nvfp.kernels.cpu._philox import fill_words
from nvfp.kernels.cpu._pool import run_chunks

_GROUPS = 1 << 12  # of a chunk
_MOST = np.float32(2.0**30)
_ROUNDER = np.float32(2.0**23)


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
    # Below the smallest normal number: the whole part, from a sum that rounds to an integer (no conversion of floats to
    # unsigned integers, which stops vectorization).
    v = moved * steps
    near = v + _ROUNDER
    low = U(U(float_bits(near) & U(0x7FFFFF)) - (U(1) if near - _ROUNDER > v else U(0)))
    code = low if bits < normal else U(U(bits >> shift) - offset)
    code = top if code > most else code
    code = infinity if a == U(0x7F800000) else code
    code = U(code | U(U(u >> U(31)) << sign))
    return nan if a > U(0x7F800000) else code


@inline
def cut_integer(x: Any, r: Any, one: Any, unit: Any, most: Any, nan: Any, mask: Any) -> Any:
    """The two's complement code of ``x * one``: its magnitude up by ``r`` units, then cut down."""
    u = float_bits(x)
    y = abs(x) * one + np.float32(r) * unit
    k = U(min(y, _MOST))
    limit = U(most + (u >> U(31)))
    k = limit if k > limit else k
    code = U(U(U(0) - k) & mask) if u >> U(31) else k
    return code if x == x else nan


@njit
def _cut_floats(
    x: Any, at: int, pitch: int, rows: int, columns: int, across: int, along: int, multiplier: Any, numbers: Any,
    fill: Any, random: Any, random_at: int, random_pitch: int, codes: Any, to: int, to_pitch: int,
) -> None:  # fmt: skip
    blocks = (columns + along - 1) // along
    shift, offset, normal, unit, steps = numbers[1], numbers[2], numbers[3], numbers[4], bits_float(numbers[5])
    most, top, nan, sign, infinity = numbers[6], numbers[7], numbers[8], numbers[9], numbers[10]
    scaled = np.empty(columns, np.float32)  # whole rows: loops over short blocks would not be vectorized
    for r in range(rows):
        s = x[at + r * pitch : at + r * pitch + columns]
        d = random[random_at + r * random_pitch : random_at + r * random_pitch + columns]
        t = codes[to + r * to_pitch : to + r * to_pitch + columns]
        for b in range(blocks):
            f = multiplier[r // across * blocks + b]
            part, come = scaled[b * along : (b + 1) * along], s[b * along : (b + 1) * along]
            for i in range(part.size):
                part[i] = come[i] * f
        for i in range(columns):
            t[i] = cut_code(scaled[i], d[i], shift, offset, normal, unit, steps, most, top, nan, sign, infinity)
        for b in range(blocks):
            f = multiplier[r // across * blocks + b]
            if f != f:
                t[b * along : (b + 1) * along] = fill


@njit
def _cut_integers(
    x: Any, at: int, pitch: int, rows: int, columns: int, across: int, along: int, multiplier: Any, numbers: Any,
    fill: Any, random: Any, random_at: int, random_pitch: int, codes: Any, to: int, to_pitch: int,
) -> None:  # fmt: skip
    blocks = (columns + along - 1) // along
    one, unit = bits_float(numbers[1]), bits_float(numbers[2])
    for r in range(rows):
        for c in range(columns):
            f = multiplier[r // across * blocks + c // along]
            y = x[at + r * pitch + c] * f
            d = random[random_at + r * random_pitch + c]
            code = cut_integer(y, d, one, unit, numbers[3], numbers[4], numbers[5])
            codes[to + r * to_pitch + c] = code if f == f else fill


def cut_blocks(
    source: Place, shape: tuple[int, int], block: tuple[int, int], multiplier: np.ndarray, numbers: np.ndarray,
    fill: int, random: Place, target: Place,
) -> None:  # fmt: skip
    """Write the codes of ``x * multiplier of its block`` by random numbers; ``fill`` where the multiplier is NaN."""
    kernel: Callable[..., None] = _cut_integers if numbers[0] else _cut_floats
    kernel(*source, *shape, *block, multiplier, numbers, np.uint32(fill), *random, *target)
