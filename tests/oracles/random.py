"""Philox4x32-10 with Python integers, one element at a time, and the formulas of every draw in double precision."""

from __future__ import annotations

import math

_LOW = 0xFFFFFFFF


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Ten rounds of two multiplications and three exclusive ors (Salmon et al. 2011)."""
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ k, q & _LOW, (p >> 32) ^ d ^ m, p & _LOW
        k, m = (k + 0x9E3779B9) & _LOW, (m + 0xBB67AE85) & _LOW
    return a, b, c, d


def word(element: int, key: int, ordinal: int, lane: int = 0, step: int = 0) -> int:
    """The 32 bits of one element."""
    group = element // 4
    counter = (group & _LOW, group >> 32, (4 * ordinal + lane) & _LOW, step)
    return philox(counter, (key & _LOW, key >> 32))[element % 4]


def unit(w: int, double: bool) -> float:
    """The uniform number of a word."""
    return (w + 0.5) / 2**32 if double else (w >> 8) / 2**24


def normal(element: int, key: int, ordinal: int, double: bool, lane: int = 0, step: int = 0) -> float:
    """Box-Muller over the pair of words that an element belongs to."""
    first, second = (word(element // 2 * 2 + i, key, ordinal, lane, step) for i in (0, 1))
    signed = second - 2**32 if second >= 2**31 else second
    turn = signed / 2**31 if double else (signed >> 8) / 2**23
    radius = math.sqrt(-2 * math.log((first + 0.5) / 2**32))
    return radius * (math.sin if element % 2 else math.cos)(math.pi * turn)


def integer(element: int, key: int, ordinal: int, low: int, high: int, lane: int = 0, step: int = 0) -> int:
    """Multiply and shift: one word, or two (low half first) above 2**32 values."""
    span = high - low
    if span <= 2**32:
        return low + (word(element, key, ordinal, lane, step) * span >> 32)
    halves = [word(2 * element + i, key, ordinal, lane, step) for i in (0, 1)]
    return low + ((halves[0] + (halves[1] << 32)) * span >> 64)
