"""CUDA twin of `kernels.bias_grad`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.bias_grad import LANES, chunk_rows
from nvfp.kernels.cuda._dense import BFLOAT16, FLOAT32, row_vector
from nvfp.kernels.cuda._launch import launch
from nvfp.kernels.cuda._loader import Defines, Instance, kernel
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp

_SOURCE = "bias_grad.cu"
_THREADS, _COLUMNS = 128, 32  # = bias_grad.cu's THREADS and COLUMNS


def _partial(dtype: np.dtype, per_thread: int) -> Defines:
    return (("T_IN", ctype(dtype)), ("W", per_thread))


def _finish(dtype: np.dtype) -> Defines:
    return (("T_OUT", ctype(dtype)),)


def bias_grad(dy: Any, *, dtype: np.dtype | None = None, out: Any | None = None) -> Any:
    """See `nvfp.kernels.bias_grad.bias_grad`; dy [M, N]."""
    rows, columns = dy.shape
    db = cp.empty(columns, dy.dtype if dtype is None else dtype) if out is None else out
    chunk = chunk_rows(rows)
    chunks = -(-rows // chunk)
    partial = cp.empty((chunks, columns), FLOAT32)
    per_thread = row_vector(columns, dy.dtype.itemsize, dy)
    launch(
        kernel(_SOURCE, "bias_grad_partial", _partial(dy.dtype, per_thread)),
        (-(-columns // (_THREADS * per_thread)), chunks),
        (_THREADS,),
        (dy, partial, np.int64(rows), np.int64(columns), np.int64(chunk)),
    )
    launch(
        kernel(_SOURCE, "bias_grad_finish", _finish(db.dtype)),
        (-(-columns // _COLUMNS),),
        (_COLUMNS, LANES),
        (partial, db, np.int64(chunks), np.int64(columns)),
    )
    return db


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return [
        Instance(_SOURCE, "bias_grad_partial", _partial(BFLOAT16, 8)),
        Instance(_SOURCE, "bias_grad_finish", _finish(BFLOAT16)),
    ]
