"""The generic quantize: any format, block shape, strides and axis, in two launches per side."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvfp.dtypes.codec import Rounding
from nvfp.dtypes.formats import QuantDType
from nvfp.dtypes.stochastic import COL_LANE, ROW_LANE
from nvfp.kernels.cuda._constants import steps_define
from nvfp.kernels.cuda._launch import grid_for, launch
from nvfp.kernels.cuda._layout import Cube, blocked_cube, element_strides
from nvfp.kernels.cuda._loader import Defines, kernel
from nvfp.kernels.cuda._quantize_levels import write_levels
from nvfp.kernels.cuda._quantize_plan import FLOAT32, Job, Side, SidePlan, quantize_defines
from nvfp.kernels.cuda._tiles import write_k_major, write_tiles
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.operand import scale_shape

THREADS = 256
LONG = 256  # elements of a block from which a warp takes its maximum together
View = tuple[Cube, tuple[int, int], int]


def generic_view(x: Any, fmt: QuantDType, side: SidePlan) -> View | None:
    """Return (``x`` in stored order as a `Cube`, (block rows, block columns), PACK), or None if its axes have gaps."""
    axis, last = side.axis, side.axis >= len(side.stored) - 1
    across, along = fmt.block_shape or (1, 1)
    at = blocked_cube(side.stored, element_strides(x.T if side.transposed else x), axis, square=across > 1)
    if at is None:
        return None
    blocks = (across, along) if last else (along, across)
    if fmt.block is None:
        blocks = (max(at.rows, 1), max(at.columns, 1))
    return at, blocks, (1 if last else 2) if fmt.element.packed else 0


def defines(
    dtype: np.dtype, fmt: QuantDType, saturate: bool, rounding: Rounding, blocks: tuple[int, int], pack: int
) -> Defines:
    """Return the macros of ``quantize.cu``."""
    per_tensor = fmt.block is None
    lanes = 32 if not per_tensor and blocks[0] * blocks[1] >= LONG else 1
    more = (("LANES", lanes), ("PACK", pack), ("PER_TENSOR", int(per_tensor)))
    return quantize_defines(dtype, fmt, saturate, rounding, *more)


def launch_generic(job: Job, sides: list[tuple[Side, View]]) -> None:
    """Write each side; a scale that is one per tensor is made once for both."""
    multipliers: Any | None = None
    for index, (side, (at, blocks, pack)) in enumerate(sides):
        macros = defines(job.x.dtype, job.fmt, job.saturate, job.rounding, blocks, pack)
        macros += steps_define(job.fmt, job.steps)
        source = (job.x, *at, *blocks)
        amax = side.amax if job.amax is None else job.amax
        scale = side.scale
        if job.layout != "plain":
            scale = cp.empty(scale_shape(job.fmt, side.plan.stored, side.plan.axis), side.plan.scale_dtype)
        if job.fmt.leveled:
            multipliers = write_levels(job, side, at, blocks, side.plan.axis >= len(side.plan.stored) - 1, scale)
            macros += (("LEVELS", 1),)
        elif job.fmt.block is not None or index == 0:
            count = math.prod(scale.shape)
            if job.fmt.block is None or job.fmt.scale_family == "float32":
                multipliers = cp.empty((max(count, 1),), FLOAT32)
            words = (amax, job.raw, side.given, job.multiplier, side.stored, *job.floats)
            grid = grid_for(max(count, 1) * int(dict(macros)["LANES"]), THREADS)
            args: tuple[Any, ...] = (*source, scale, multipliers, *words)
            launch(kernel("quantize.cu", "quantize_scales", macros), grid, (THREADS,), args)
        pitch, allocated = side.plan.pitch, side.plan.allocated
        args = (*source, side.codes, pitch, allocated, scale, multipliers, amax, job.raw, side.given)
        if job.rounding != "even":
            lane = COL_LANE if side.plan.transposed and not job.fmt.square else ROW_LANE
            args = (*args, *job.random(lane), np.int32(side.plan.transposed))
        grid = grid_for(pitch * allocated, THREADS)
        launch(kernel("quantize.cu", "quantize_codes", macros), grid, (THREADS,), args)
        across = (job.fmt.block_shape or (1, 1))[0]
        if job.layout == "tiles128x4":
            rows = side.plan.stored[0] if across > 1 else scale.shape[0]
            write_tiles(scale, side.scale, rows, repeat=across)
        elif job.layout == "k_major128":
            write_k_major(scale.T if across > 1 else scale, side.scale)
