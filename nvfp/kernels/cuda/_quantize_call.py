"""Calls of quantize that one tile kernel answers, decided once per kind: later ones only allocate, point and launch.

Kinds that need a maximum first, or a function or layout that no tile variant takes, go the long way every time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvfp.dtypes.formats import QuantDType
from nvfp.dtypes.stochastic import COL_LANE, ROW_LANE
from nvfp.kernels._stochastic import check_rng
from nvfp.kernels.bias_grad import tiles_of
from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._launch import launch
from nvfp.kernels.cuda._quantize_input import Way
from nvfp.kernels.cuda._quantize_plan import FLOAT32, UINT8, Job, Plan, SidePlan
from nvfp.kernels.cuda._quantize_tiles import NO_PARTS, THREADS, TileCall
from nvfp.kernels.cuda.bias_grad import finish
from nvfp.kernels.operand import Operand, OperandPair

Indices = tuple[int, int, int]  # of codes, scale and tensor scale (the last: none) among the arrays of a call


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """One kind of call.

    Attributes:
        call: the launch.
        own: bytes of the memory that the first piece, the row codes, has for itself, or 0.
        size: bytes of the other outputs.
        pieces: where they lie.
        gaps: (offset, bytes) that are zeroed first.
        row: its row side among them, or None.
        col: its column side, or None.
        row_rest: what follows the arrays in an Operand of the row side: format, shape, axis, transposed, padded rows,
            scale layout.
        col_rest: likewise of the column side.
        floats: of its `Job`.
        way: how its input function is applied, or None.
        summed: whether the last two arrays are the column sums of tiles and their total.
    """

    call: TileCall
    own: int
    size: int
    pieces: tuple[_memory.Piece, ...]
    gaps: tuple[tuple[int, int], ...]
    row: Indices | None
    col: Indices | None
    row_rest: tuple[Any, ...]
    col_rest: tuple[Any, ...]
    floats: tuple[Any, Any]
    way: Way | None
    summed: bool

    def __call__(
        self, x: Any, scale: Any, amax: Any, tensor_scale: Any, amax_out: Any, rng: Any, f: Any
    ) -> OperandPair | None:
        """Quantize; None if a word is not one word of the source's device, which the long way looks into."""
        kind = type(x)
        for word in (scale, amax, tensor_scale, amax_out):
            if word is not None and (type(word) is not kind or word.dtype != FLOAT32 or word.shape != ()):
                return None
        random: tuple[Any, ...] = ()
        if rng is not None:
            rng = check_rng(rng)
            if type(rng.step) is not kind:
                return None
            lanes = (np.uint32(4 * rng.ordinal + lane) for lane in (ROW_LANE, COL_LANE))
            random = (np.uint64(rng.key), *lanes, rng.step)
        memory = _memory.allocate(self.size)
        for at, nbytes in self.gaps:
            _memory.clear(memory, at, nbytes)
        if self.own:
            made = _memory.arrays(_memory.allocate(self.own), self.pieces[:1])
            made += _memory.arrays(memory, self.pieces[1:])
        else:
            made = _memory.arrays(memory, self.pieces)
        sums: tuple[Any, Any] = (made[-2], made[-1]) if self.summed else (None, None)
        partial, total = sums
        made.append(None)
        row = col = None
        first = second = NO_PARTS
        if self.row is not None:
            a, b, c = self.row
            row = Operand(made[a], made[b], made[c], *self.row_rest)
            first = (made[a], made[b], amax, tensor_scale, made[c])
        if self.col is not None:
            a, b, c = self.col
            col = Operand(made[a], made[b], made[c], *self.col_rest)
            second = (made[a], made[b], amax, tensor_scale, made[c])
        call, recorded = self.call, (None if row is None else amax_out, None if col is None else amax_out)
        args = call.arguments(x, self.floats, first, second, amax if scale is None else scale, recorded)
        if self.way is not None and self.way.second is not None:
            random = (*random, f.x, self.way.second)
        if self.summed:
            random = (*random, partial)
        launch(call.kernel, call.grid, (THREADS,), (*args, *random))
        if self.summed:
            finish(partial, total, partial.shape[0])
        return OperandPair(row, col, None, total)


def ready(
    call: TileCall, where: Plan, job: Job, asked: QuantDType, shape: tuple[int, ...], axis: int, way: Way | None,
    bias: np.dtype | None,
) -> Ready:  # fmt: skip
    """Return the call of a kind.

    Args:
        call: its launch.
        where: its plan.
        job: a call of it.
        asked: format of the Operands.
        shape: of what is quantized.
        axis: block axis of the row side.
        way: how its input function is applied, or None.
        bias: dtype of the column sums, or None.
    """
    pieces: list[_memory.Piece] = []
    sides = (where.row, where.col)
    row, col = (None if side is None else _side(side, pieces) for side in sides)
    row_rest, col_rest = (
        () if side is None else (asked, shape, at, side.transposed, side.padded_rows, where.layout)
        for side, at in zip(sides, (axis, 0), strict=True)
    )
    gaps = tuple((side.scale_at, side.scale_bytes) for side in sides if side is not None and side.scale_gaps)
    size = where.size
    if bias is not None:
        tiles, columns = tiles_of(math.prod(shape[:-1])), shape[-1]
        total = size + -(-4 * tiles * columns // _memory.ALIGNMENT) * _memory.ALIGNMENT
        pieces += [(size, (tiles, columns), FLOAT32, None), (total, (columns,), bias, None)]
        size = total + columns * bias.itemsize
    own = 0 if where.row is None else where.row.own
    return Ready(
        call, own, size, tuple(pieces), gaps, row, col, row_rest, col_rest, job.floats, way, bias is not None
    )  # fmt: skip


def _side(side: SidePlan, pieces: list[_memory.Piece]) -> Indices:
    """Add the arrays of a side to ``pieces``; one scale serves both sides."""
    wanted: list[_memory.Piece] = [
        (side.codes_at, side.codes, UINT8, side.strides),
        (side.scale_at, side.scale, side.scale_dtype, None),
    ]
    if side.tensor_scale_at is not None:
        wanted.append((side.tensor_scale_at, side.tensor_scale, FLOAT32, None))
    at = []
    for piece in wanted:
        if piece not in pieces:
            pieces.append(piece)
        at.append(pieces.index(piece))
    return at[0], at[1], at[2] if len(at) == 3 else -1
