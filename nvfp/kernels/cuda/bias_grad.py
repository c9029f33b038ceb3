"""CUDA twin of `kernels.bias_grad`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from nvfp.kernels.bias_grad import LANES, tiles_of
from nvfp.kernels.cuda._dense import BFLOAT16, FLOAT32, row_vector
from nvfp.kernels.cuda._launch import launch
from nvfp.kernels.cuda._loader import Defines, Instance, Kernel, kernel
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp

_SOURCE = "bias_grad.cu"
_THREADS, _ABREAST, _COLUMNS = 256, 32, 32  # = bias_grad.cu's THREADS, threads along a row, COLUMNS


def _partial(dtype: np.dtype, per_thread: int) -> Defines:
    return (("T_IN", ctype(dtype)), ("W", per_thread))


def _finish(dtype: np.dtype) -> Defines:
    return (("T_OUT", ctype(dtype)),)


@lru_cache(maxsize=64)
def _kernels(dtype: np.dtype, per_thread: int) -> Kernel:
    return kernel(_SOURCE, "bias_grad_partial", _partial(dtype, per_thread))


@lru_cache(maxsize=8)
def _finisher(dtype: np.dtype) -> Kernel:
    return kernel(_SOURCE, "bias_grad_finish", _finish(dtype))


def bias_grad(dy: Any, *, dtype: np.dtype | None = None, out: Any | None = None) -> Any:
    """See `nvfp.kernels.bias_grad.bias_grad`; dy [M, N]."""
    rows, columns = dy.shape
    db = cp.empty(columns, dy.dtype if dtype is None else dtype) if out is None else out
    tiles = tiles_of(rows)
    partial = cp.empty((tiles, columns), FLOAT32)
    per_thread = row_vector(columns, dy.dtype.itemsize, dy)
    blocks = -(-columns // (_ABREAST * per_thread)) * tiles
    launch(_kernels(dy.dtype, per_thread), (blocks,), (_THREADS,), (dy, partial, np.int64(rows), np.int64(columns)))
    finish(partial, db, tiles)
    return db


def finish(partial: Any, db: Any, tiles: int) -> None:
    """Add the column sums of tiles of `TILE` rows.

    Args:
        partial: float32 [tiles, N].
        db: [N], written.
        tiles: their number.
    """
    columns = db.size
    args = (partial, db, np.int64(tiles), np.int64(columns))
    launch(_finisher(db.dtype), (-(-columns // _COLUMNS),), (_COLUMNS, LANES), args)


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return [Instance(_SOURCE, "bias_grad_partial", _partial(BFLOAT16, 8))]
