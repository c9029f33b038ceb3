"""CUDA twin of `nvfp.kernels.amax`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from nvfp.kernels.cuda._amax import defines, record_amax
from nvfp.kernels.cuda._loader import Instance
from nvfp.kernels.cuda._xp import cp

BFLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)


def amax(x: Any, *, finite: bool, out: Any | None) -> Any:
    """See `nvfp.kernels.amax.amax`."""
    word = cp.zeros((), FLOAT32) if out is None else out
    record_amax(x, "finite" if finite else "skip_nan", word)
    return word


def instances() -> list[Instance]:
    """The kernels that CI compiles."""
    return [
        Instance("amax.cu", "amax_flat", defines(BFLOAT16, "skip_nan")),
        Instance("amax.cu", "amax_strided", defines(BFLOAT16, "skip_nan", 2)),
    ]
