"""CUDA twin of `kernels.dropout`: one kernel forward and backward, and one launch for `WORDS` step words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._dense import BFLOAT16, INT64, by_value
from nvfp.kernels.cuda._launch import grid_for, launch
from nvfp.kernels.cuda._loader import Defines, Instance, kernel
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.dropout import LANE, factor, threshold

_SOURCE = "dropout.cu"
_THREADS = 256  # = dropout.cu's THREADS
_PER_SM = 64
WORDS = 500  # = dropout.cu's WORDS: 500 addresses stay below 4 KiB of arguments
BATCH = np.dtype([("at", np.uint64, (WORDS,)), ("count", np.int64)])


def _defines(dtype: np.dtype, residual: bool) -> Defines:
    return (("T_IN", ctype(dtype)), ("RESIDUAL", int(residual)))


def _run(
    x: Any, p: float, key: int, ordinal: int, step: Any, residual: Any | None, offset: int, y: Any, used: Any | None
) -> Any:
    per_vector = 16 // x.dtype.itemsize
    arrays = (x, y) if residual is None else (x, y, residual)
    vectors = x.size // per_vector if offset % 4 == 0 and all(map(_memory.aligned, arrays)) else 0
    rest = -(-(x.size - vectors * per_vector) // 4) + 1  # Philox groups, whole or cut
    grid = grid_for(max(vectors, rest), _THREADS, per_sm=_PER_SM)
    args = (
        x, residual, y, np.int64(x.size), np.int64(vectors), np.int64(offset), np.uint64(key),
        np.uint32(4 * ordinal + LANE), step, used, np.uint32(threshold(p)), factor(p),
    )  # fmt: skip
    launch(kernel(_SOURCE, "dropout", _defines(x.dtype, residual is not None)), grid, (_THREADS,), args)
    return y


def dropout(
    x: Any,
    p: float,
    *,
    key: int,
    ordinal: int,
    step: Any,
    residual: Any | None = None,
    offset: int = 0,
    out: Any | None = None,
) -> tuple[Any, Any]:
    """See `nvfp.kernels.dropout.dropout`."""
    y = cp.empty(x.shape, x.dtype) if out is None else out
    used = cp.empty((), INT64)
    return _run(x, p, key, ordinal, step, residual, offset, y, used), used


def dropout_vjp(
    dy: Any, p: float, *, key: int, ordinal: int, step: Any, offset: int = 0, out: Any | None = None
) -> Any:
    """See `nvfp.kernels.dropout.dropout_vjp`."""
    dx = cp.empty(dy.shape, dy.dtype) if out is None else out
    return _run(dy, p, key, ordinal, step, None, offset, dx, None)


def advance_steps(steps: Sequence[Any]) -> None:
    """See `nvfp.kernels.dropout.advance_steps`."""
    for first in range(0, len(steps), WORDS):
        part = [_memory.address(step) for step in steps[first : first + WORDS]]
        batch = np.zeros(1, BATCH)
        batch["at"][0, : len(part)] = part
        batch["count"] = len(part)
        launch(kernel(_SOURCE, "advance_steps", _defines(BFLOAT16, False)), (1,), (_THREADS,), (by_value(batch),))


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return [Instance(_SOURCE, "dropout", _defines(BFLOAT16, True))]
