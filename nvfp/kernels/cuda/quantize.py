"""CUDA twin of `nvfp.kernels.quantize`: the words a call needs, its outputs, and the Operands over them."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.dtypes import elements as el
from nvfp.dtypes.codec import Overflow, Rounding
from nvfp.dtypes.conventions import PLAIN, Steps, apply_convention
from nvfp.dtypes.formats import QuantDType, fp8_e4m3, fp8_e4m3_b128, mxfp8_e4m3, nvfp4
from nvfp.kernels._check import Words
from nvfp.kernels._stochastic import Rng
from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._amax import Kind, record_amax
from nvfp.kernels.cuda._constants import steps_define
from nvfp.kernels.cuda._layout import Shape, element_strides
from nvfp.kernels.cuda._loader import Instance
from nvfp.kernels.cuda._memory import aligned
from nvfp.kernels.cuda._quantize_generic import View, defines as generic_defines, generic_view, launch_generic
from nvfp.kernels.cuda._quantize_levels import level_defines
from nvfp.kernels.cuda._quantize_plan import BFLOAT16, FLOAT32, UINT8, WORD, Job, Plan, Side, SidePlan, plan
from nvfp.kernels.cuda._quantize_tiles import TileCall, Variant, defines as tile_defines, tile_call
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.cuda.cast import cast
from nvfp.kernels.operand import Operand, ScaleLayout

NO_WORDS: Words = (None, None)


def quantize(
    x: Any,
    fmt: QuantDType,
    *,
    axis: int,
    row: bool,
    col: bool,
    scale: Any | None,
    amax: Words,
    tensor_scale: Words,
    amax_out: Words,
    amax_epsilon: float,
    rounding: Rounding,
    rng: Rng | None,
    overflow: Overflow,
    scale_layout: ScaleLayout,
    steps: Steps,
) -> tuple[Operand | None, Operand | None]:
    """See `nvfp.kernels.quantize.quantize`."""
    where = plan(fmt, x.shape, axis, row, col, scale_layout)
    if rounding != "even" and not x.flags.c_contiguous:  # no tile variant rounds so from transposed rows
        x = cast(x, x.dtype, source=None, target=None, overflow="saturate", out=None)
    job = Job(
        x, fmt, overflow == "saturate", amax_epsilon, where.layout, scale, rounding=rounding, rng=rng, steps=steps
    )
    call = _tile_call(job, where)
    if call is None and _has_gaps(job, where):
        job.x = cast(x, x.dtype, source=None, target=None, overflow="saturate", out=None)
        call = _tile_call(job, where)
    slab = cp.empty((where.size,), UINT8)
    fused = call is not None and call.variant == "tensor" and scale is not None
    amax = _take_maxima(job, slab, where, amax, tensor_scale, NO_WORDS if fused else amax_out)
    sides = (_cut(slab, where.row, amax[0], tensor_scale[0]), _cut(slab, where.col, amax[1], tensor_scale[1]))
    if call is not None:
        for side in sides:
            if side is not None and side.plan.scale_gaps:
                _memory.zero(slab, side.plan.scale_at, side.plan.scale_bytes)
        call.launch(job, *sides, amax_out if fused else NO_WORDS)
    else:
        launch_generic(job, [(side, _view(job, side.plan)) for side in sides if side is not None])
    return _operand(sides[0], fmt, x.shape, axis, scale_layout), _operand(sides[1], fmt, x.shape, 0, scale_layout)


def _tile_call(job: Job, where: Plan) -> TileCall | None:
    if job.steps != PLAIN:  # the plain variant alone knows other stacks' steps
        return None
    x = job.x
    given = job.multiplier is not None
    return tile_call(
        where, job.fmt, x.dtype, x.shape, element_strides(x), aligned(x), job.saturate, job.rounding, given
    )


def _has_gaps(job: Job, where: Plan) -> bool:
    return any(side is not None and generic_view(job.x, job.fmt, side) is None for side in (where.row, where.col))


def _take_maxima(job: Job, slab: Any, where: Plan, amax: Words, tensor_scale: Words, amax_out: Words) -> Words:
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
        record_amax(job.x, "raw", job.raw)
        _record(job.x, kind, amax_out)
    elif (per_tensor or (fmt.tensor_scale and not fmt.per_row_tensor_scale)) and _lacks_amax(where, amax, tensor_scale):
        word = _fresh_word(slab, where)
        record_amax(job.x, kind, word, *amax_out)
    else:
        _record(job.x, kind, amax_out)
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


def _record(x: Any, kind: Kind, words: Words) -> None:
    present = [word for word in words if word is not None]
    if present:
        record_amax(x, kind, *present)


def _cut(slab: Any, side: SidePlan | None, amax: Any | None, given: Any | None) -> Side | None:
    if side is None:
        return None
    return Side(
        side,
        _memory.view(slab, side.codes_at, side.codes, UINT8, side.strides),
        _memory.view(slab, side.scale_at, side.scale, side.scale_dtype),
        None if side.tensor_scale_at is None else _memory.view(slab, side.tensor_scale_at, side.tensor_scale, FLOAT32),
        amax,
        given,
    )


def _view(job: Job, side: SidePlan) -> View:
    found = generic_view(job.x, job.fmt, side)
    assert found is not None, "a contiguous array has no gaps"
    return found


def _operand(side: Side | None, fmt: QuantDType, shape: Shape, axis: int, layout: ScaleLayout) -> Operand | None:
    if side is None:
        return None
    transposed, padded = side.plan.transposed, side.plan.padded_rows
    return Operand(side.codes, side.scale, side.stored, fmt, shape, axis, transposed, padded, layout)


def instances() -> list[Instance]:
    """The kernels that CI compiles."""
    square = nvfp4.replace(block=(16, 16))
    even: Rounding = "even"
    tiles: list[tuple[Variant, QuantDType, np.dtype, bool, bool]] = [
        ("tensor", fp8_e4m3, BFLOAT16, False, True),
        ("tensor", fp8_e4m3, BFLOAT16, True, False),
        ("block1d", mxfp8_e4m3, BFLOAT16, False, False),
        ("pair", mxfp8_e4m3, BFLOAT16, True, False),
        ("pair", nvfp4, BFLOAT16, True, False),
        ("pair", nvfp4, BFLOAT16, False, False),
        ("block2d", square, BFLOAT16, True, False),
        ("block128", fp8_e4m3_b128, BFLOAT16, True, False),
        ("block128", fp8_e4m3_b128.replace(block=(128, 128)), BFLOAT16, True, False),
    ]
    found = []
    for variant, fmt, dtype, col, given in tiles:
        layout: ScaleLayout = "k_major128" if fmt.block_shape and fmt.scale.bits == 32 else "plain"
        macros = tile_defines(variant, fmt, dtype, True, even, True, col, given, layout)
        found.append(Instance(f"quantize_{variant}.cu", f"quantize_{variant}", macros))
    # dy of NVFP4's recipe: the column copy of the rotated matrix.
    drawn = tile_defines("pair", nvfp4, BFLOAT16, True, "stochastic", False, True, False, "plain")
    found.append(Instance("quantize_pair.cu", "quantize_pair", drawn))
    generic = generic_defines(BFLOAT16, nvfp4, True, even, (1, 16), 1)
    found += [Instance("quantize.cu", name, generic) for name in ("quantize_scales", "quantize_codes")]
    # another stack's steps, and a row that a user makes: packed integers under 16-bit scales
    divided = (*generic, *steps_define(*apply_convention(nvfp4, "modelopt")))
    int4 = QuantDType("int4_b32", el.int4, 32, el.bfloat16)
    made = generic_defines(BFLOAT16, int4, True, even, (1, 32), 1)
    searched = level_defines(BFLOAT16, square.replace(four_over_six="mae_256"), True)
    found += [Instance("quantize_levels.cu", name, searched) for name in ("quantize_lines", "quantize_levels")]
    return [
        *found,
        Instance("quantize.cu", "quantize_scales", divided),
        Instance("quantize.cu", "quantize_codes", made),
    ]
