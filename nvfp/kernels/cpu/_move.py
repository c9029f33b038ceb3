"""Moves a panel between two strided memories, converting each item.

This loads any float array as float32, stores float32 as any float, transposes and copies codes: the types of
the two flat arrays select the conversion, and Numba compiles a kernel once per pair that is used.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.extending import overload

from nvfp.kernels.cpu._encode import bfloat_float, double_float, float_bfloat, float_half, half_float
from nvfp.kernels.cpu._njit import inline, njit

Geometry = tuple[int, int, int, int, int]


def convert(x: Any, target: Any) -> Any:
    """Inside kernels: ``x`` as an item of the array ``target``; int16 hold bfloat16 bits, uint16 float16 bits."""
    raise NotImplementedError("compiled code only")


@overload(convert, strict=False)  # annotations would count as a difference
def _convert(x: Any, target: Any) -> Any:
    pair = (x, target.dtype)
    if pair == (numba.int16, numba.float32):
        return lambda x, target: bfloat_float(x)
    if pair == (numba.uint16, numba.float32):
        return lambda x, target: half_float(x)
    if pair == (numba.float32, numba.int16):
        return lambda x, target: float_bfloat(x)
    if pair == (numba.float32, numba.uint16):
        return lambda x, target: float_half(x)
    if pair == (numba.float64, numba.float32):
        return lambda x, target: double_float(x)
    if pair == (numba.float32, numba.float64):
        return lambda x, target: np.float64(x)
    return (lambda x, target: x) if pair[0] == pair[1] else None


def move(
    source: np.ndarray, come: Geometry, target: np.ndarray, go: Geometry, row: int, rows: int, columns: int
) -> None:
    """Copy ``columns`` items of the rows row..row+rows-1, from ``source`` to ``target`` (flat arrays).

    A geometry is (offset, stride of d1, d2, stride of d2, stride of n) in items: row q starts at
    ``offset + q // d2 * s1 + q % d2 * s2``.
    """
    kernel = _scatter if go[4] != 1 else _along if come[4] == 1 else _gather
    kernel(source, come, target, go, row, rows, columns)


@inline
def first(geometry: Geometry, row: int) -> tuple[int, int]:
    """Where a row starts, and its index inside d2."""
    offset, s1, d2, s2, _ = geometry
    return offset + row // d2 * s1 + row % d2 * s2, row % d2


@inline
def after(geometry: Geometry, at: int, index: int) -> tuple[int, int]:
    """The same for the next row; a division per row would cost more than the row."""
    _, s1, d2, s2, _ = geometry
    return (at + s2, index + 1) if index + 1 < d2 else (at + s1 - (d2 - 1) * s2, 0)


@njit
def _along(source: Any, come: Geometry, target: Any, go: Geometry, row: int, rows: int, columns: int) -> None:
    """Both sides contiguous along the rows."""
    a, ra = first(come, row)
    b, rb = first(go, row)
    for _ in range(rows):
        s, t = source[a : a + columns], target[b : b + columns]
        for c in range(columns):
            t[c] = convert(s[c], target)
        a, ra = after(come, a, ra)
        b, rb = after(go, b, rb)


# The two transposing kernels write along a cache line, a few items at a time: the as many lines that these are read
# from stay in the first-level cache, even where a power-of-two stride leaves them only its 8 ways.


@njit
def _gather(source: Any, come: Geometry, target: Any, go: Geometry, row: int, rows: int, columns: int) -> None:
    """From rows with gaps into contiguous ones."""
    tile, step = 16 if source.itemsize == 1 else 8, come[4]
    for left in range(0, columns, tile):
        length = min(tile, columns - left)
        a, ra = first(come, row)
        b, rb = first(go, row)
        for _ in range(rows):
            t = target[b + left : b + left + length]
            for c in range(length):
                t[c] = convert(source[a + (left + c) * step], target)
            a, ra = after(come, a, ra)
            b, rb = after(go, b, rb)


@njit
def _scatter(source: Any, come: Geometry, target: Any, go: Geometry, row: int, rows: int, columns: int) -> None:
    """Into rows with gaps."""
    tile, step, jump = 16 if source.itemsize == 1 else 8, come[4], go[4]
    begin, to = np.empty(tile, np.int64), np.empty(tile, np.int64)
    a, ra = first(come, row)
    b, rb = first(go, row)
    for top in range(0, rows, tile):
        length = min(tile, rows - top)
        for i in range(length):
            begin[i], to[i] = a, b
            a, ra = after(come, a, ra)
            b, rb = after(go, b, rb)
        for c in range(columns):
            for i in range(length):
                target[to[i] + c * jump] = convert(source[begin[i] + c * step], target)
