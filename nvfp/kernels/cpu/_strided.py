"""Strided arrays as rows: panels of any float array as contiguous float32, and back.

An array is seen as [D1, D2, n], the working axis last, over the flat memory that it spans. Kernels get that
flat contiguous array and element strides, never the strided array itself, so that each is compiled once:
not again for every layout and for read-only input.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from nvfp.kernels.cpu._blocks import Place
from nvfp.kernels.cpu._move import Geometry, move
from nvfp.kernels.cpu._pool import run_chunks, threads

PANEL = 1 << 15  # values: 128 KiB of float32, which stays in the second-level cache
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_TYPES = {1: "|u1", 2: "<u2", 4: "<f4", 8: "<f8"}
_STRIPE = 64  # columns of a panel that is transposed: one cache line of each of many rows


class _Memory:
    """Lends memory to NumPy as a writeable array, so that Numba sees one array type for all input."""

    def __init__(self, owner: Any, address: int, items: int, typestr: str) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3, "data": (address, False), "shape": (items,), "typestr": typestr,
        }  # fmt: skip


class Panel(NamedTuple):
    """A rectangle of rows and columns of a `Rows`."""

    row: int
    rows: int
    column: int
    columns: int


class Rows:
    """An array as rows along one axis.

    Attributes:
        d1, d2, n: lengths; the rows are counted 0..d1*d2-1.
        flat: the spanned memory, as `_move.convert` tells item types: int16 for bfloat16, uint16 for float16.
        geometry: (offset, stride of d1, d2, stride of d2, stride of n), in items.
    """

    def __init__(self, view: np.ndarray) -> None:
        self.d1, self.d2, self.n = view.shape
        self.dtype = view.dtype
        size = view.dtype.itemsize
        s1, s2, sn = (stride // size for stride in view.strides)
        r1, r2, rn = s1 * (self.d1 - 1), s2 * (self.d2 - 1), sn * (self.n - 1)
        back = -min(r1, 0) - min(r2, 0) - min(rn, 0)  # how far negative strides reach
        low = view.__array_interface__["data"][0] - size * back
        self.flat = np.asarray(
            _Memory(view, low, 1 + abs(r1) + abs(r2) + abs(rn), "<i2" if self.dtype == _BFLOAT16 else _TYPES[size])
        )
        self.geometry: Geometry = (back, s1, self.d2, s2, 1 if self.n == 1 else sn)
        # Rows at one pitch and contiguous inside: kernels can then work in place.
        even = s2 if self.d1 == 1 or s1 == self.d2 * s2 else s1 if self.d2 == 1 else None
        self.pitch = even if self.geometry[4] == 1 else None

    def place(self, panel: Panel) -> Place | None:
        """Where kernels can read and write a panel without a copy; None if its items have gaps."""
        if self.pitch is None:
            return None
        return self.flat, self.geometry[0] + panel.row * self.pitch + panel.column, self.pitch

    def load(self, panel: Panel, scratch: np.ndarray) -> Place:
        """Return a panel in place, or converted into ``scratch``."""
        place = self.place(panel) if self.dtype == scratch.dtype else None
        if place is not None:
            return place
        row, rows, column, columns = panel
        move(self.flat, self._from(column), scratch, _packed(row, columns), row, rows, columns)
        return scratch, 0, columns

    def store(self, panel: Panel, values: np.ndarray) -> None:
        """Write a contiguous panel (a flat array), each item rounded once to the dtype of this array."""
        row, rows, column, columns = panel
        move(values, _packed(row, columns), self.flat, self._from(column), row, rows, columns)

    def take(self, source: Rows, panel: Panel) -> None:
        """Copy a panel of an array whose rows are counted alike: bits of equal size, or from or to float32."""
        row, rows, column, columns = panel
        move(source.flat, source._from(column), self.flat, self._from(column), row, rows, columns)

    def _from(self, column: int) -> Geometry:
        offset, s1, d2, s2, sn = self.geometry
        return offset + column * sn, s1, d2, s2, sn


def _packed(row: int, columns: int) -> Geometry:
    """A contiguous panel whose first row is counted as ``row``."""
    return -row * columns, 0, 1 << 62, columns, 1


def fold(view: np.ndarray, matrices: bool = False) -> np.ndarray | None:
    """Return ``view`` as [D1, D2, n] over the same memory, or None if that needs a copy.

    Args:
        view: the working axis is its last one.
        matrices: D2 is the axis before it, and D1 counts the matrices.
    """
    if not view.flags.aligned:
        return None
    *lead, n = view.shape or (1,)
    splits = [len(lead) - 1] if matrices else range(max(1, len(lead)))
    for k in splits:
        try:
            return view.reshape((math.prod(lead[:k]), math.prod(lead[k:]), n), copy=False)
        except ValueError:
            continue
    return None


def rows_of(x: np.ndarray, axis: int, matrices: bool = False) -> Rows:
    """Return a non-empty array as rows along ``axis``, copied first if its strides have no such form."""
    view = x if x.ndim < 2 or axis in (-1, x.ndim - 1) else np.moveaxis(x, axis, -1)
    folded = fold(view, matrices)
    if folded is None:
        folded = fold(np.array(view, order="C"), matrices)
        assert folded is not None
    return Rows(folded)


def flattest(x: np.ndarray) -> np.ndarray:
    """Return ``x`` with its axes in the order of memory, as one row where that needs no copy."""
    ordered = x.transpose(sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis])))
    try:
        return ordered.reshape(-1, copy=False)
    except ValueError:
        return ordered


def panels(
    matrices: int, rows: int, columns: int, *, across: int = 1, along: int = 1, stripes: bool = False, size: int = PANEL
) -> list[Panel]:
    """Cut ``matrices`` of rows x columns into panels of whole units of across x along, of about ``size`` values."""
    width = max(along, (_STRIPE if stripes else size // across) // along * along)
    height = max(across, size // min(width, columns) // across * across)
    return [
        Panel(m * rows + r, min(height, rows - r), c, min(width, columns - c))
        for m in range(matrices)
        for r in range(0, rows, height)
        for c in range(0, columns, width)
    ]


def large_panels(values: int) -> int:
    """The size of panels for work of several kernels each: larger where all threads still get some, as calls cost."""
    return min(4 * PANEL, max(PANEL, values // (4 * threads())))


def panels_of(*arrays: Rows, size: int = PANEL) -> list[Panel]:
    """Panels for arrays whose rows are counted alike, without blocks."""
    first, stripes = arrays[0], any(a.pitch is None for a in arrays)
    return panels(1, first.d1 * first.d2, first.n, stripes=stripes, size=PANEL if stripes else size)


def for_panels(work: Any, todo: list[Panel], *scratch: np.dtype) -> None:
    """Call ``work(panel, *buffers)`` for all panels, on several threads, with flat buffers per thread."""
    largest = max(p.rows * p.columns for p in todo)

    def chunk(start: int, stop: int) -> None:
        buffers = [np.empty(largest, dtype) for dtype in scratch]
        for panel in todo[start:stop]:
            work(panel, *buffers)

    run_chunks(chunk, len(todo), grain=2)


def copy_rows(source: np.ndarray, target: np.ndarray) -> None:
    """Copy the bits of ``source`` into ``target``, both strided, of one shape and item size."""
    go = fold(target)
    if go is None:
        whole = np.empty(target.shape, target.dtype)
        copy_rows(source, whole)
        np.copyto(target, whole)
    elif source.size:
        come, into = rows_of(source, -1), Rows(go)
        for_panels(lambda panel: into.take(come, panel), panels_of(come, into))
