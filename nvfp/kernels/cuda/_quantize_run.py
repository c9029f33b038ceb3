"""The rest of a quantize call once its launch is found: maxima, outputs in one slab, the launch, Operands over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvfp.dtypes.formats import QuantDType
from nvfp.kernels._check import Words
from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._amax import Kind, record_amax
from nvfp.kernels.cuda._quantize_generic import View, generic_view, launch_generic
from nvfp.kernels.cuda._quantize_input import Front
from nvfp.kernels.cuda._quantize_plan import FLOAT32, UINT8, WORD, Job, Plan, Side, SidePlan, cut
from nvfp.kernels.cuda._quantize_tiles import TileCall
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.operand import Operand, ScaleLayout

NO_WORDS: Words = (None, None)


def run(
    job: Job,
    where: Plan,
    find: Callable[[], TileCall | None],
    axis: int,
    amax: Words,
    tensor_scale: Words,
    amax_out: Words,
    front: Front | None = None,
    partial: Any | None = None,
) -> tuple[Operand | None, Operand | None]:
    """Launch all kernels of a call.

    Args:
        job: the call.
        where: its plan.
        find: finds its tile variant, or None for the generic kernels; what is done before may decide it.
        axis: block axis of the row side.
        amax: of `nvfp.kernels.quantize.quantize`, as the next two.
        tensor_scale: likewise.
        amax_out: likewise.
        front: the input function that the tile variant applies.
        partial: where it writes the column sums of tiles.
    """
    slab = cp.empty((where.size,), UINT8)
    call = find()
    fused = call is not None and call.variant == "tensor" and job.multiplier is not None
    amax = _take_maxima(job, slab, where, amax, tensor_scale, NO_WORDS if fused else amax_out, front)
    sides = (cut(slab, where.row, amax[0], tensor_scale[0]), cut(slab, where.col, amax[1], tensor_scale[1]))
    call = call if front is None else find()
    if call is not None:
        for side in sides:
            if side is not None and side.plan.scale_gaps:
                _memory.zero(slab, side.plan.scale_at, side.plan.scale_bytes)
        recorded = amax_out if fused else NO_WORDS
        more = () if partial is None else (partial,)
        if front is None:
            call.launch(job, *sides, recorded)
        else:
            args = front.args()
            call.launch(job, *sides, recorded, (*args, *more), front.more_blocks)
    else:
        launch_generic(job, [(side, _view(job, side.plan)) for side in sides if side is not None])
    return operand(sides[0], job.fmt, axis, job.layout), operand(sides[1], job.fmt, 0, job.layout)


def _take_maxima(
    job: Job, slab: Any, where: Plan, amax: Words, tensor_scale: Words, amax_out: Words, front: Front | None
) -> Words:
    """Take the maxima that the call needs from the source, in one pass where the format allows it.

    Sets the per-tensor words of the job; returns the (row, column) words A of two-level formats.
    """
    fmt = job.fmt
    kind: Kind = "finite" if fmt.nonfinite == "nan_block" else "skip_nan"
    per_tensor = fmt.block is None and job.multiplier is None
    word = None
    if per_tensor and fmt.nonfinite == "nan_block":
        # NaN or inf anywhere makes the tensor one NaN block, whatever amax is given.
        job.raw = job.amax = _fresh_word(slab, where)
        _record(job.x, "raw", (job.raw, None), None)
        _record(job.x, kind, amax_out, front)
    elif (per_tensor or (fmt.tensor_scale and not fmt.per_row_tensor_scale)) and _lacks_amax(where, amax, tensor_scale):
        word = _fresh_word(slab, where)
        _record(job.x, kind, (word, *amax_out), front)
    else:
        _record(job.x, kind, amax_out, front)
    row, col = (word if a is None and t is None else a for a, t in zip(amax, tensor_scale, strict=True))
    if per_tensor:
        given = row if where.row is not None else col
        job.amax = job.amax if given is None else given
    return row, col


def _lacks_amax(where: Plan, amax: Words, tensor_scale: Words) -> bool:
    """Whether a side that is made has neither an amax nor a tensor scale."""
    lacks_row = where.row is not None and amax[0] is None and tensor_scale[0] is None
    return lacks_row or (where.col is not None and amax[1] is None and tensor_scale[1] is None)


def _fresh_word(slab: Any, where: Plan) -> Any:
    _memory.zero(slab, where.word_at, WORD)
    return _memory.view(slab, where.word_at, (), FLOAT32)


def _record(x: Any, kind: Kind, words: tuple[Any | None, ...], front: Front | None) -> None:
    present = [word for word in words if word is not None]
    if present and front is not None:
        front.record(kind, *present)
    elif present:
        record_amax(x, kind, *present)


def _view(job: Job, side: SidePlan) -> View:
    found = generic_view(job.x, job.fmt, side)
    assert found is not None, "a contiguous array has no gaps"
    return found


def operand(side: Side | None, fmt: QuantDType, axis: int, layout: ScaleLayout) -> Operand | None:
    """Return a side as an Operand."""
    if side is None:
        return None
    at = side.plan
    shape = at.stored[::-1] if at.transposed else at.stored
    return Operand(side.codes, side.scale, side.stored, fmt, shape, axis, at.transposed, at.padded_rows, layout)
