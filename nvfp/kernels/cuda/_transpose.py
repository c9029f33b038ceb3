"""The tile transpose, shared by `transpose` and by copies of transposed views."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.cuda._launch import launch, multiprocessors
from nvfp.kernels.cuda._layout import Cube, Shape
from nvfp.kernels.cuda._loader import Defines, kernel
from nvfp.kernels.cuda._memory import aligned
from nvfp.kernels.cuda._types import ctype

THREADS = 256
SIDE = 16  # squares of a tile, across and down, where threads move squares
SMALL = 32  # a side shorter than this leaves most of a tile empty


def defines(itemsize: int) -> Defines:
    """Return the macros of ``transpose.cu`` for items of ``itemsize`` bytes."""
    return (("ITEM", ctype(np.dtype(f"uint{8 * itemsize}"))),)


def launch_transpose(x: Any, out: Any, at: Cube, *, packed: bool = False) -> None:
    """Write ``x``, seen as [batch, rows, columns], into contiguous ``out`` [batch, columns, rows].

    With ``packed`` the column stride counts bytes of two codes; lengths count codes.
    """
    size: int = x.dtype.itemsize
    whole = _pieces(x, out, at, packed)
    tile = SIDE * whole if whole else 32 if size == 8 else 64
    tiles = at.batch * -(-at.rows // tile) * -(-at.columns // tile)
    if whole and tiles < 2**31:
        name, grid = "nibbles" if packed else "pieces", tiles
    else:
        name, grid = "packed" if packed else "items", min(tiles, multiprocessors() * 64)
    found = kernel("transpose.cu", f"transpose_{name}", () if packed else defines(size))
    launch(found, (grid,), (THREADS,), (x, out, *at))


def _pieces(x: Any, out: Any, at: Cube, packed: bool) -> int:
    """Items of the pieces of which all rows of both arrays are made, each at a multiple of its size; 0 if they are not.

    A square of so many items is a thread's: 16 bytes of each row, or 8 of 4-bit codes.
    """
    size, nbytes = x.dtype.itemsize, 8 if packed else 16
    items = 16 if packed else 16 // size
    if at.column_stride != 1 or at.rows % items or at.columns % items:
        return 0
    starts = aligned(x, nbytes) and aligned(out, nbytes) and not any(s * size % nbytes for s in at[3:5])
    return items if starts else 0


def copy_transposed(x: Any, out: Any, shape: Shape, come: Shape, go: Shape) -> bool:
    """Copy ``x`` into ``out`` by tiles if that is what a strided copy comes to; return whether it was done.

    Args:
        x: the source.
        out: the target, of the same dtype.
        shape: collapsed shape of both.
        come: strides of ``x``.
        go: strides of ``out``.
    """
    if len(shape) not in (2, 3) or come[-2] != 1 or go[-1] != 1 or min(shape[-2:]) < SMALL:
        return False
    columns, rows = shape[-2:]  # of the stored source; the last axis of `x` is its rows
    batch = shape[0] if len(shape) == 3 else 1
    if go[-2] != rows or (len(shape) == 3 and go[0] != rows * columns):
        return False
    launch_transpose(x, out, Cube(batch, rows, columns, come[0] if len(shape) == 3 else 0, come[-1], 1))
    return True
