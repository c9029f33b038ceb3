"""Both copies of a matrix in one pass, the column copy rotated: `quantize(rotation="rht16")` of NVFP4 and its kin."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from nvfp.dtypes.formats import QuantDType
from nvfp.kernels._check import Words
from nvfp.kernels.bias_grad import tiles_of
from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._amax import record_amax
from nvfp.kernels.cuda._layout import element_strides
from nvfp.kernels.cuda._loader import Defines
from nvfp.kernels.cuda._quantize_plan import FLOAT32, UINT8, WORD, Job, Plan, Side, cut, plan
from nvfp.kernels.cuda._quantize_tiles import tile_call
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.cuda.bias_grad import finish
from nvfp.kernels.cuda.hadamard import rotated_amax
from nvfp.kernels.operand import Operand


def rotated_at_once(
    x: Any, fmt: QuantDType, row: bool, words: dict[str, Words], options: dict[str, Any], bias: np.dtype | None = None
) -> tuple[Operand | None, Operand | None, Any | None]:
    """Return (row side of ``x``, column side of ``x`` rotated along its rows, column sums of ``x``).

    See `kernels._rotated.rotated_apart`.

    Args:
        x: raw contiguous bfloat16 matrix, not empty.
        fmt: a row of which `_quantize_tiles.turns` is true.
        row: make the row side.
        words: pairs of words.
        options: the other arguments.
        bias: dtype of the column sums, or None.
    """
    layout, rounding = options["scale_layout"], options["rounding"]
    where = plan(fmt, x.shape, 1, row, True, layout, rotated=True)
    saturate = options["overflow"] == "saturate"
    job = Job(x, fmt, saturate, options["amax_epsilon"], layout, rounding=rounding, rng=options["rng"])
    strides, aligned = element_strides(x), _memory.aligned(x)
    front: Defines = () if bias is None else (("BIAS_GRAD", 1),)
    call = tile_call(where, fmt, x.dtype, x.shape, strides, aligned, saturate, rounding, given=False, front=front)
    assert call is not None, "a contiguous matrix has tiles"
    slab = cp.empty((where.size,), UINT8)
    amax, given = _maxima(job, slab, where, words), words["tensor_scale"]
    sides = (cut(slab, where.row, amax[0], given[0]), cut(slab, where.col, amax[1], given[1]))
    for side in sides:
        if side is not None and side.plan.scale_gaps:
            _memory.zero(slab, side.plan.scale_at, side.plan.scale_bytes)
    rows, columns = x.shape
    partial = None if bias is None else cp.empty((tiles_of(rows), columns), FLOAT32)
    call.launch(job, *sides, (None, None), () if partial is None else (partial,))
    made = _operand(sides[0], fmt, layout), _operand(sides[1], fmt, layout)
    if partial is None:
        return (*made, None)
    total = cp.empty((columns,), bias)
    finish(partial, total, len(partial))
    return (*made, total)


def _maxima(job: Job, slab: Any, where: Plan, words: dict[str, Words]) -> Words:
    """The words A of both sides; what has to be taken, of the source and of the rotated matrix, in one pass."""
    amax, given, out = words["amax"], words["tensor_scale"], words["amax_out"]
    lacks = [
        job.fmt.tensor_scale and side is not None and a is None and t is None
        for side, a, t in zip((where.row, where.col), amax, given, strict=True)
    ]
    if not any(lacks) and out == (None, None):
        return amax
    _memory.zero(slab, where.word_at, 2 * WORD)
    fresh = [_memory.view(slab, where.word_at + k * WORD, (), FLOAT32) for k in (0, 1)]
    if lacks[1] or out[1] is not None:
        rotated_amax(job.x, (fresh[1], out[1]), (fresh[0], out[0]))
    else:
        record_amax(job.x, "finite", fresh[0], out[0])
    return fresh[0] if lacks[0] else amax[0], fresh[1] if lacks[1] else amax[1]


def _operand(side: Side | None, fmt: QuantDType, layout: Any) -> Operand | None:
    if side is None:
        return None
    at = side.plan
    shape, axis = (at.stored[::-1], 0) if at.transposed else (at.stored, 1)
    rotation: Literal["none", "rht16"] = "rht16" if at.transposed else "none"
    return Operand(
        side.codes, side.scale, side.stored, fmt, shape, axis, at.transposed, at.padded_rows, layout, rotation
    )
