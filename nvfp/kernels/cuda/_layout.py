"""Shapes and strides on the host: merging axes, and arrays seen as (batch, rows, columns).

Strides are counted in elements here and in every kernel.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

Shape = tuple[int, ...]


def element_strides(x: Any) -> Shape:
    """Return the strides of an array in elements."""
    size: int = x.dtype.itemsize
    return tuple(s // size for s in x.strides)


@lru_cache(maxsize=1024)
def collapse(shape: Shape, *strides: Shape) -> tuple[Shape, tuple[Shape, ...]]:
    """Merge neighbouring axes that every stride set walks through without a gap, and drop axes of length 1.

    Args:
        shape: lengths, none of them 0.
        strides: one or more stride sets of that shape.

    Returns:
        The shorter shape (at least one axis) and its stride sets.

    Example:
        >>> collapse((2, 1, 3, 4), (40, 7, 4, 1), (12, 12, 4, 1))
        ((2, 12), ((40, 1), (12, 1)))
        >>> collapse((2, 3, 4), (12, 4, 1))
        ((24,), ((1,),))
    """
    lengths: list[int] = []
    kept: list[list[int]] = [[] for _ in strides]
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        if lengths and all(k[-1] == n * s[axis] for k, s in zip(kept, strides, strict=True)):
            lengths[-1] *= n
            for k, s in zip(kept, strides, strict=True):
                k[-1] = s[axis]
        else:
            lengths.append(n)
            for k, s in zip(kept, strides, strict=True):
                k.append(s[axis])
    if not lengths:
        return (1,), tuple((0,) for _ in strides)
    return tuple(lengths), tuple(tuple(k) for k in kept)


@lru_cache(maxsize=1024)
def strided_argument(shape: Shape, first: Shape, second: Shape | None = None) -> Any:
    """Return the kernel argument ``Strided<RANK>`` of ``include/strided.cuh`` (a record passed by value)."""
    rank = len(shape)
    words = np.array([*shape, *first, *(second or (0,) * rank)], np.int64)
    return words.view(np.dtype((np.void, words.nbytes)))[0:1]


class Cube(NamedTuple):
    """An array seen as [batch, rows, columns] with strides in elements."""

    batch: int
    rows: int
    columns: int
    batch_stride: int
    row_stride: int
    column_stride: int


@lru_cache(maxsize=1024)
def cube(shape: Shape, strides: Shape, first: int, second: int) -> Cube | None:
    """Group axes into ``shape[:first]``, ``shape[first:second]``, ``shape[second:]``; None if a group has gaps.

    Example:
        >>> cube((2, 3, 4, 5), (60, 20, 5, 1), 2, 3)
        Cube(batch=6, rows=4, columns=5, batch_stride=20, row_stride=5, column_stride=1)
        >>> cube((2, 3, 4), (24, 4, 1), 0, 2) is None
        True
    """
    lengths, steps = [], []
    for part in (slice(0, first), slice(first, second), slice(second, None)):
        n = int(np.prod(shape[part], dtype=np.int64))
        if n == 0:
            lengths.append(0)
            steps.append(0)
            continue
        merged, (stride,) = collapse(shape[part], strides[part])
        if len(merged) > 1:
            return None
        lengths.append(n)
        steps.append(stride[0])
    return Cube(*lengths, *steps)


def blocked_cube(shape: Shape, strides: Shape, axis: int, *, square: bool) -> Cube | None:
    """See an array that is blocked along ``axis`` as [batch, rows, columns]; None if its axes have gaps.

    With the axis last the columns are that axis, and the rows all axes before it (``square``: the one before it).
    Else the rows are the axis and the columns all axes behind it.

    Example:
        >>> blocked_cube((2, 3, 4, 5), (60, 20, 5, 1), 3, square=False)
        Cube(batch=1, rows=24, columns=5, batch_stride=0, row_stride=5, column_stride=1)
        >>> blocked_cube((2, 3, 4, 5), (60, 20, 5, 1), 1, square=False)
        Cube(batch=2, rows=3, columns=20, batch_stride=60, row_stride=20, column_stride=1)
    """
    n = len(shape)
    if n == 0:
        return Cube(1, 1, 1, 0, 0, 0)
    if axis < n - 1:
        return cube(shape, strides, axis, axis + 1)
    return cube(shape, strides, n - 2 if square else 0, n - 1)
