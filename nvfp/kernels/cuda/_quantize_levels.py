"""Two-level formats with one A per row, or by 4-over-6: their scales first, then the generic codes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvfp.dtypes.formats import QuantDType
from nvfp.kernels.cuda._launch import grid_for, launch
from nvfp.kernels.cuda._layout import Cube
from nvfp.kernels.cuda._loader import Defines, kernel
from nvfp.kernels.cuda._quantize_plan import FLOAT32, Job, Side, quantize_defines
from nvfp.kernels.cuda._xp import cp

SOURCE = "quantize_levels.cu"
THREADS = 256  # = quantize_view.cuh's
_SEARCH = {"mae": 1, "mse": 2}


def level_defines(dtype: np.dtype, fmt: QuantDType, last: bool) -> Defines:
    """Return the macros of ``quantize_levels.cu``."""
    product = int(np.float32(fmt.element.max * fmt.scale_bound).view(np.uint32))
    search = 0 if fmt.four_over_six is None else _SEARCH[fmt.four_over_six[:3]]
    more = (
        ("LAST", int(last)), ("SEARCH", search), ("PRODUCT", f"{product}u"), ("PER_ROW", int(fmt.per_row_tensor_scale)),
        ("ACROSS", (fmt.block_shape or (1, 1))[0]),
    )  # fmt: skip
    return quantize_defines(dtype, fmt, True, "even", *more)


def write_levels(job: Job, side: Side, at: Cube, blocks: tuple[int, int], last: bool, scale: Any) -> Any:
    """Write the plain block scales of a side and its tensor scales; return the multipliers of its blocks."""
    macros = level_defines(job.x.dtype, job.fmt, last)
    amax = side.amax
    if job.fmt.per_row_tensor_scale:
        lines = math.prod(side.plan.tensor_scale)
        amax = cp.empty((max(lines, 1),), FLOAT32)
        grid = grid_for(lines * 32, THREADS)
        launch(kernel(SOURCE, "quantize_lines", macros), grid, (THREADS,), (job.x, *at, amax, side.stored))
    count = math.prod(scale.shape)
    multipliers = cp.empty((max(count, 1),), FLOAT32)
    args = (job.x, *at, *blocks, scale, multipliers, amax, side.given, side.stored)
    launch(kernel(SOURCE, "quantize_levels", macros), grid_for(max(count, 1), THREADS), (THREADS,), args)
    return multipliers
