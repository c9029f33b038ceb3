"""The tile variants of quantize: matrices whose rows (or columns) are contiguous, both copies in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from nvfp.dtypes.codec import Rounding
from nvfp.dtypes.elements import float4_e2m1fn
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
from nvfp.kernels.cuda.hadamard import SIGNS_MACRO
from nvfp.kernels.operand import ScaleLayout

THREADS = 256
TILE, WIDE_TILE, TILE_128 = (64, 64), (16, 256), (128, 128)  # rows, columns; the wide one makes row copies alone
BLOCKS, PAIRS, WIDE_BLOCKS = (16, 32, 64), (16, 32), (16, 32, 64, 128, 256)
Variant = Literal["tensor", "block1d", "pair", "block2d", "block128"]
LAYOUTS: dict[ScaleLayout, int] = {"plain": 0, "tiles128x4": 1, "k_major128": 2}  # as quantize_tile.cuh has them
Parts = tuple[Any, Any, Any, Any, Any]  # codes, scale, amax, tensor scale given, tensor scale stored
NO_PARTS: Parts = (None, None, None, None, None)
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

    def launch(
        self,
        job: Job,
        row: Side | None,
        col: Side | None,
        recorded: tuple[Any, Any],
        front: tuple[Any, ...] = (),
        more_blocks: int = 0,
    ) -> None:
        """Write the sides of a call.

        Args:
            job: the call.
            row: the row side, or None.
            col: the column side, or None.
            recorded: words into which the ``"tensor"`` variant with a given multiplier records the amax, or None.
            front: arguments of an input function, and where column sums go.
            more_blocks: blocks that it wants beside the tiles'.
        """
        word = job.amax if job.multiplier is None else job.multiplier
        args = self.arguments(job.x, job.floats, _parts(row), _parts(col), word, recorded)
        grid = (self.grid[0] + more_blocks,) if more_blocks else self.grid
        launch(self.kernel, grid, (THREADS,), (*args, *job.random(ROW_LANE, COL_LANE), *front))

    def arguments(
        self, x: Any, floats: tuple[Any, Any], row: Parts, col: Parts, word: Any | None, recorded: tuple[Any, Any]
    ) -> tuple[Any, ...]:
        """Return the kernel's arguments but random numbers and what comes behind them.

        Args:
            x: source.
            floats: of the call's `Job`.
            row: codes, scale, amax, tensor scale given, tensor scale stored, of the row side.
            col: likewise of the column side.
            word: of per-tensor formats: the multiplier, or else the amax.
            recorded: see `launch`.
        """
        first, second = (col, row) if self.swapped else (row, col)
        epsilon, overflow = floats
        if self.variant == "tensor":
            scale = row[1] if row[1] is not None else col[1]
            return (x, *self.source, first[0], *self.row, second[0], *self.col, word, epsilon, scale, *recorded)
        if self.variant == "block2d":
            side = first if first[0] is not None else second
            rows, cols = (first[1], first[4]), (second[1], second[4])
            return (
                x, *self.source, first[0], *self.row, *rows, second[0], *self.col, *cols, side[2], side[3], epsilon,
                overflow,
            )  # fmt: skip
        return (
            x, *self.source, first[0], *self.row, *first[1:], second[0], *self.col, *second[1:], epsilon, overflow
        )  # fmt: skip


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
    front: Defines = (),
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
        front: macros of an input function and of column sums; then shape is that of its result.
    """
    side, found = where.row or where.col, _matrix(shape, strides)
    assert side is not None, "the contract asks for a side"
    if found is None or dtype not in (BFLOAT16, FLOAT16, FLOAT32):
        return None
    matrix, swapped = found
    if front and swapped:
        return None
    row, col = (where.col, where.row) if swapped else (where.row, where.col)
    kinds = _fused if front else _variant
    variant = kinds(fmt, len(shape), side.axis, transposes=col is not None, even=rounding == "even")
    if variant is None or (rounding != "even" and (swapped or variant == "block128")):
        return None
    square = variant in ("block128", "pair", "block2d") or (variant == "tensor" and (col is not None or front))
    rows, columns = TILE_128 if square else WIDE_TILE if col is None else TILE
    tiles = -(-matrix.rows // rows) * -(-matrix.columns // columns)
    if tiles >= 2**31:
        return None
    whole = np.int32(aligned and matrix.row_stride * dtype.itemsize % 16 == 0)
    macros = defines(variant, fmt, dtype, saturate, rounding, row is not None, col is not None, given, where.layout)
    if where.rotated:
        if swapped or not turns(fmt, dtype):
            return None
        macros = (*macros, ("ROTATE", 1), *SIGNS_MACRO)
    macros += front
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


def _fused(fmt: QuantDType, ndim: int, axis: int, *, transposes: bool, even: bool) -> Variant | None:
    """The variants that take input functions: those of 128 x 128 tiles, row copies alone too."""
    variant = _variant(fmt, ndim, axis, transposes=True, even=even)
    return variant if variant in ("tensor", "pair", "block128") else None


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


def turns(fmt: QuantDType, dtype: np.dtype) -> bool:
    """Whether the pair kernel rotates column copies of ``fmt``: E2M1 under scales of two levels, in blocks of 16.

    Example:
        >>> from nvfp.dtypes.formats import mxfp4, nvfp4
        >>> turns(nvfp4, BFLOAT16), turns(mxfp4, BFLOAT16)
        (True, False)
    """
    like_nvfp4 = fmt.element == float4_e2m1fn and fmt.scale_family == "two_level" and fmt.nonfinite == "nan_block"
    return like_nvfp4 and fmt.block_shape == (1, 16) and not fmt.leveled and dtype == BFLOAT16


def _layout(side: SidePlan | None) -> Layout:
    if side is None:
        return 0, 0, np.int32(0)
    packed = side.codes != side.stored
    return side.pitch, side.allocated, np.int32(side.pitch % (8 if packed else 16) == 0)


def _parts(side: Side | None) -> Parts:
    return NO_PARTS if side is None else (side.codes, side.scale, side.amax, side.given, side.stored)
