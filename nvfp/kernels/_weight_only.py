"""Where codes and scales of a prepacked weight lie, as numbers that both twins read.

A weight [N, K] is cut into tiles of 16 rows, and a tile into *units*: what a warp loads at once, 16 bytes a lane. Lane
``4 g + t`` holds rows g and g + 8 of the tile, and of every 32 columns the eight from 8 t on, as words of 32 bits:

- 8-bit codes, 32 columns a unit: row g columns 0-3, row g columns 4-7, row g + 8 columns 0-3, row g + 8 columns 4-7;
- 4-bit codes, 64 columns a unit: row g and row g + 8 of the first 32 columns, row g and row g + 8 of the second.

Inside a word the codes 2 p and 2 p + 1 are a *pair*, and their bits lie so that rotations and masks bring them where a
register of two 16-bit floats wants them. Tiles and units are padded with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from nvfp.dtypes import elements as el
from nvfp.dtypes.elements import Element
from nvfp.dtypes.formats import QuantDType

ROWS = 16  # of a tile
GROUP = 32  # columns that the lanes of one row share out
UNIT_BYTES = 512


@dataclass(frozen=True)
class Places:
    """Where the bits of a code lie in a word.

    Attributes:
        home: place of each bit of a code, lowest first, in its half of a register of two 16-bit floats.
        turns: for each pair and bit, by how much a word is turned left to bring the bit home.
        shift: of a product of code and block scale, by which power of two it is made smaller to fit a 16-bit float.
    """

    home: tuple[int, ...]
    turns: tuple[int, ...]
    shift: int | None


# E2M1 and E4M3 go home to sign, low exponent bits and high mantissa bits of bfloat16, E5M2 to those of float16. The
# turns are the cheapest found by search: 4 turns and 5 masks for 8 codes, 2 and 3 for 4.
_PLACES: dict[Element, Places] = {
    el.float4_e2m1fn: Places((6, 7, 8, 15), (6, 6, 6, 6, 2, 2, 2, 2, 12, 12, 12, 12, 8, 0, 0, 0), 9),
    el.float8_e4m3fn: Places((4, 5, 6, 7, 8, 9, 10, 15), (4,) * 8 + (8, 8, 8, 0, 0, 0, 0, 0), 4),
    el.float8_e5m2: Places((8, 9, 10, 11, 12, 13, 14, 15), (0,) * 8 + (8,) * 8, None),
}


@dataclass(frozen=True)
class Tiling:
    """How the weights of one format are tiled.

    Attributes:
        places: of the bits in a word.
        bits: of a code.
        unit: columns of a unit.
        span: columns that one row of packed scales serves: a block or a unit, whichever is longer; 0 without blocks.
        along: length of a block (0: none).
        values: whether scales multiply the codes (exact in a 16-bit float); else the float32 sums of a block.
    """

    places: Places
    bits: int
    unit: int
    span: int
    along: int
    values: bool

    @property
    def subs(self) -> int:
        """Blocks in 32 columns, at least one."""
        return GROUP // self.along if 0 < self.along < GROUP else 1

    @property
    def groups(self) -> int:
        """Sets of 32 columns of a unit that have scales of their own."""
        return self.unit // GROUP if 0 < self.along < self.unit else 1

    @property
    def numbers(self) -> tuple[int, int, int, int, int]:
        """Bits of a code, columns of a unit, units of a span, blocks in 32 columns, sets of 32 columns with scales."""
        return self.bits, self.unit, self.span // self.unit, self.subs, self.groups

    def sizes(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Tiles, and units of each, of a matrix."""
        return -(-shape[0] // ROWS), -(-shape[1] // self.unit)

    def codes_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Packed codes: tiles, units, bytes."""
        return (*self.sizes(shape), UNIT_BYTES)

    def scale_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Packed scales: tiles, spans, rows g, blocks in 32 columns, sets of 32 columns, rows g and g + 8."""
        tiles, units = self.sizes(shape)
        return (tiles, -(-units * self.unit // self.span), ROWS // 2, self.subs, self.groups, 2)


@cache
def tiling(fmt: QuantDType) -> Tiling | None:
    """Return how weights of ``fmt`` are tiled, or None if they are not.

    Tiled are E2M1, E4M3 and E5M2 elements: without blocks; in blocks of multiples of 32 (packed ones: 32 or multiples
    of 64) under any scale; E2M1 and E4M3 also in blocks of 8 and 16 under E4M3 scales.

    Example:
        >>> from nvfp.dtypes.formats import mxfp8, nvfp4
        >>> tiling(nvfp4).values, tiling(mxfp8).values, tiling(nvfp4.replace(block=24))
        (True, False, None)
    """
    places = _PLACES.get(fmt.element)
    if places is None:
        return None
    unit = 64 if fmt.element.packed else 32
    if fmt.block_shape is None:
        return Tiling(places, fmt.element.bits, unit, 0, 0, False)
    along = fmt.block_shape[1]
    if along % unit == 0 or along == GROUP:
        return Tiling(places, fmt.element.bits, unit, max(along, unit), along, False)
    if along in (8, 16) and fmt.scale == el.float8_e4m3fn and places.shift is not None:
        return Tiling(places, fmt.element.bits, unit, unit, along, True)
    return None


@cache
def places(element: Element) -> tuple[int, ...]:
    """Return for each bit of a word in plain order (code 0 lowest) where it lies in a packed word.

    Example:
        >>> from nvfp.dtypes.elements import float8_e5m2
        >>> places(float8_e5m2)[:8], sorted(places(float8_e5m2)) == list(range(32))
        ((8, 9, 10, 11, 12, 13, 14, 15), True)
    """
    row = _PLACES[element]
    bits = element.bits
    return tuple(
        (row.home[bit] + 16 * (code % 2) - row.turns[code // 2 * bits + bit]) % 32
        for code in range(32 // bits)
        for bit in range(bits)
    )


def bit_tables(to: tuple[int, ...]) -> np.ndarray:
    """Return uint32 [4, 256]: what each byte of a word becomes when bit i goes to ``to[i]``."""
    codes = np.arange(256, dtype=np.uint32)
    tables = np.zeros((4, 256), np.uint32)
    for i, place in enumerate(to):
        tables[i // 8] |= ((codes >> np.uint32(i % 8)) & np.uint32(1)) << np.uint32(place)
    return tables
