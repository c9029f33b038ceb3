"""From shapes and strides to what cuBLASLt can address: matrix orders, leading dimensions, batches.

Pure functions over ints; strides count in elements, as everywhere in the records.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

from nvfp.kernels.cuda._layout import collapse

Ints = tuple[int, ...]


class Order(NamedTuple):
    """How a matrix lies in memory: whether its last two axes are swapped, and the distance of two stored rows."""

    transposed: bool
    ld: int


class Batch(NamedTuple):
    """Batch axes of x, w and y as one strided batch inside a loop.

    Attributes:
        size: matrices per call.
        strides: distance of two matrices of x, w, y (0: the same one every time).
        offsets: where each call of the loop starts, for x, w, y.
    """

    size: int
    strides: Ints
    offsets: tuple[Ints, ...]


def round_up(value: int, unit: int) -> int:
    """Return the least multiple of ``unit`` that is not below ``value``."""
    return -(-value // unit) * unit


def alignment(address: int) -> int:
    """Return the class of an address: 256, 16, or the largest power of two that divides it.

    Example:
        >>> alignment(512), alignment(48), alignment(6)
        (256, 16, 2)
    """
    return 256 if not address & 255 else 16 if not address & 15 else address & -address


def element_strides(strides: Ints, itemsize: int) -> Ints | None:
    """Return byte strides in elements, or None where they are negative or cut an element."""
    if any(s < 0 or s % itemsize for s in strides):
        return None
    return tuple(s // itemsize for s in strides)


def contiguous_strides(shape: Ints) -> Ints:
    """Return the strides of a C-contiguous array.

    Example:
        >>> contiguous_strides((2, 3, 4))
        (12, 4, 1)
    """
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def matrix_order(rows: int, columns: int, row_stride: int, column_stride: int) -> Order | None:
    """Return how a matrix with these strides lies in memory, or None if cuBLASLt cannot address it.

    Example:
        >>> matrix_order(3, 4, 8, 1), matrix_order(3, 4, 1, 3), matrix_order(3, 4, 0, 1)
        (Order(transposed=False, ld=8), Order(transposed=True, ld=3), None)
    """
    if column_stride == 1 or columns == 1:
        ld = row_stride if rows > 1 else columns
        if ld >= columns:
            return Order(False, ld)
    if row_stride == 1 or rows == 1:
        ld = column_stride if columns > 1 else rows
        if ld >= rows:
            return Order(True, ld)
    return None


def batch_strides(own: Ints, strides: Ints, batch: Ints) -> Ints:
    """Return the strides of an operand's batch axes ``own`` over the broadcast ``batch`` axes (0 where it repeats)."""
    missing = len(batch) - len(own)
    return (0,) * missing + tuple(0 if n == 1 else s for n, s in zip(own, strides, strict=True))


def merge_batch(batch: Ints, x: Ints, w: Ints, y: Ints) -> Batch:
    """Return the batch axes as one strided batch (the longest axis that cannot be merged away) inside a loop.

    Args:
        batch: lengths of the batch axes.
        x: strides of the left operand over them.
        w: likewise of the right one.
        y: likewise of the result.

    Example:
        >>> merge_batch((2, 3), (12, 4), (0, 0), (15, 5))
        Batch(size=6, strides=(4, 0, 5), offsets=((0, 0, 0),))
        >>> merge_batch((2, 3), (12, 4), (0, 4), (15, 5))
        Batch(size=3, strides=(4, 4, 5), offsets=((0, 0, 0), (12, 0, 15)))
    """
    lengths, strides = collapse(batch, x, w, y)
    axes = list(zip(lengths, zip(*strides, strict=True), strict=True))
    size, inner = axes.pop(max(range(len(axes)), key=lambda i: axes[i][0]))
    offsets = []
    for at in product(*(range(n) for n, _ in axes)):
        steps = [[i * s for s in along] for i, (_, along) in zip(at, axes, strict=True)]
        offsets.append(tuple(map(sum, zip((0, 0, 0), *steps, strict=True))))
    return Batch(size, inner, tuple(offsets))
