"""The tile variants of quantize: matrices whose rows (or columns) are contiguous, both copies in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from nvfp.dtypes.codec import Rounding
from nvfp.dtypes.formats import QuantDType
from nvfp.dtypes.stochastic import COL_LANE, ROW_LANE
from nvfp.kernels.cuda._launch import Grid, launch
from nvfp.kernels.cuda._layout import Cube, Shape, cube
from nvfp.kernels.cuda._loader import Defines, Kernel, kernel
from nvfp.kernels.cuda._quantize_plan import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    Job,
    Plan,
    Side,
    SidePlan,
    quantize_defines,
)
from nvfp.kernels.operand import ScaleLayout

THREADS = 256
TILE, WIDE_TILE, TILE_128 = (64, 64), (16, 256), (128, 128)  # rows, columns; the wide one makes row copies alone
BLOCKS, PAIRS, WIDE_BLOCKS = (16, 32, 64), (16, 32), (16, 32, 64, 128, 256)
Variant = Literal["tensor", "block1d", "pair", "block2d", "block128"]
LAYOUTS: dict[ScaleLayout, int] = {"plain": 0, "tiles128x4": 1, "k_major128": 2}  # as quantize_tile.cuh has them
Layout = tuple[Any, ...]  # pitch, allocated rows, and whether 16 codes can be stored at once


@dataclass(frozen=True, eq=False)
class TileCall:
    """A prepared launch of a tile variant: all of it but addresses.

    Attributes:
        variant: which kernel.
        swapped: whether the matrix it walks is the transpose of the source, so that the sides change places.
        kernel: its handle.
        grid: one block per tile.
        source: rows, columns, stride, alignment of that matrix.
        row: layout of the row copy of that matrix.
        col: layout of its column copy.
    """

    variant: Variant
    swapped: bool
    kernel: Kernel
    grid: Grid
    source: tuple[Any, ...]
    row: Layout
    col: Layout

    def launch(self, job: Job, row: Side | None, col: Side | None, recorded: tuple[Any, Any]) -> None:
        """Write the sides of a call.

        Args:
            job: the call.
            row: the row side, or None.
            col: the column side, or None.
            recorded: words into which the ``"tensor"`` variant with a given multiplier records the amax, or None.
        """
        side = row or col
        assert side is not None, "the contract asks for a side"
        if self.swapped:
            row, col = col, row
        epsilon, overflow = job.floats
        source = (job.x, *self.source)
        rows = (None if row is None else row.codes, *self.row)
        cols = (None if col is None else col.codes, *self.col)
        args: tuple[Any, ...]
        if self.variant == "tensor":
            word = job.amax if job.multiplier is None else job.multiplier
            args = (*source, *rows, *cols, word, epsilon, side.scale, *recorded)
        elif self.variant in ("block1d", "pair", "block128"):
            args = (*source, *rows, *_words(row), *cols, *_words(col), epsilon, overflow)
        else:
            args = (*source, *rows, *_scale(row), *cols, *_scale(col), side.amax, side.given, epsilon, overflow)
        launch(self.kernel, self.grid, (THREADS,), (*args, *job.random(ROW_LANE, COL_LANE)))


@lru_cache(maxsize=1024)
def tile_call(
    where: Plan,
    fmt: QuantDType,
    dtype: np.dtype,
    shape: Shape,
    strides: Shape,
    aligned: bool,
    saturate: bool,
    rounding: Rounding,
    given: bool,
) -> TileCall | None:
    """Return the launch that makes all sides of a call in one pass, or None if no tile variant can.

    Args:
        where: plan of the call (by identity).
        fmt: row.
        dtype: of the source.
        shape: of the source.
        strides: of the source, in elements.
        aligned: whether the source starts at a multiple of 16 bytes.
        saturate: overflow="saturate".
        rounding: of the elements; only "even" takes transposed sources and blocks of 128 x 128.
        given: whether a multiplier is given.
    """
    side, found = where.row or where.col, _matrix(shape, strides)
    assert side is not None, "the contract asks for a side"
    if found is None or dtype not in (BFLOAT16, FLOAT16, FLOAT32):
        return None
    matrix, swapped = found
    row, col = (where.col, where.row) if swapped else (where.row, where.col)
    variant = _variant(fmt, len(shape), side.axis, transposes=col is not None, even=rounding == "even")
    if variant is None or (rounding != "even" and (swapped or variant == "block128")):
        return None
    square = variant in ("block128", "pair", "block2d") or (variant == "tensor" and col is not None)
    rows, columns = TILE_128 if square else WIDE_TILE if col is None else TILE
    tiles = -(-matrix.rows // rows) * -(-matrix.columns // columns)
    if tiles >= 2**31:
        return None
    whole = np.int32(aligned and matrix.row_stride * dtype.itemsize % 16 == 0)
    macros = defines(variant, fmt, dtype, saturate, rounding, row is not None, col is not None, given, where.layout)
    return TileCall(
        variant, swapped, kernel(f"quantize_{variant}.cu", f"quantize_{variant}", macros), (max(tiles, 1),),
        (matrix.rows, matrix.columns, matrix.row_stride, whole), _layout(row), _layout(col),
    )  # fmt: skip


def _matrix(shape: Shape, strides: Shape) -> tuple[Cube, bool] | None:
    """See the source as one matrix with contiguous rows: (matrix, whether it is the source's transpose)."""
    ndim = len(shape)
    at = cube(shape, strides, 0, ndim - 1) if ndim else None
    if at is None:
        return None
    if at.column_stride == 1 or at.columns <= 1:
        return at, False
    if ndim == 2 and (at.row_stride == 1 or at.rows <= 1):
        return Cube(1, at.columns, at.rows, 0, at.column_stride, 1), True
    return None


def _variant(fmt: QuantDType, ndim: int, axis: int, *, transposes: bool, even: bool) -> Variant | None:
    if axis != ndim - 1 or fmt.leveled:  # blocks and packing must run along stored rows
        return None
    if fmt.block_shape is None:
        return "tensor" if fmt.scale_family == "float32" and fmt.nonfinite == "saturate" else None
    across, along = fmt.block_shape
    if along == 128 and ndim == 2 and not fmt.element.packed and (across == 128 or (across == 1 and transposes)):
        return "block128"
    if across == 1:
        tabulates = even and along == 16 and fmt.element.packed and fmt.scale_family == "two_level"  # as NVFP4
        if along in PAIRS and (transposes or tabulates):
            return "pair"
        return "block1d" if along in (BLOCKS if transposes else WIDE_BLOCKS) else None
    return "block2d" if across == along and along in BLOCKS and ndim == 2 else None


def defines(
    variant: Variant,
    fmt: QuantDType,
    dtype: np.dtype,
    saturate: bool,
    rounding: Rounding,
    row: bool,
    col: bool,
    given: bool,
    layout: ScaleLayout,
) -> Defines:
    """Return the macros of a tile variant that makes these copies."""
    sides = (("ROW", int(row)), ("COL", int(col)))
    if variant == "tensor":
        return quantize_defines(dtype, fmt, saturate, rounding, *sides, ("GIVEN", int(given)))
    across, along = fmt.block_shape or (0, 0)
    block = ("SQUARE", int(across > 1)) if variant == "block128" else ("BLOCK", along)
    return quantize_defines(dtype, fmt, saturate, rounding, *sides, block, ("LAYOUT", LAYOUTS[layout]))


def _layout(side: SidePlan | None) -> Layout:
    if side is None:
        return 0, 0, np.int32(0)
    packed = side.codes != side.stored
    return side.pitch, side.allocated, np.int32(side.pitch % (8 if packed else 16) == 0)


def _words(side: Side | None) -> tuple[Any, ...]:
    return (None, None, None, None) if side is None else (side.scale, side.amax, side.given, side.stored)


def _scale(side: Side | None) -> tuple[Any, ...]:
    return (None, None) if side is None else (side.scale, side.stored)
