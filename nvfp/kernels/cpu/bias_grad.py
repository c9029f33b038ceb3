"""CPU twin of `kernels.bias_grad`, in the order of summation that its contract states."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.bias_grad import LANES, chunk_rows
from nvfp.kernels.cpu._halves import narrow, widen
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.cpu._rows import add_rows
from nvfp.kernels.cpu._tiles import GRAIN, TILE


def bias_grad(dy: Any, *, dtype: np.dtype | None = None, out: Any | None = None) -> Any:
    """See `nvfp.kernels.bias_grad.bias_grad`; dy [M, N]."""
    rows, columns = dy.shape
    db = np.empty(columns, dy.dtype if dtype is None else dtype) if out is None else out
    if not columns:
        return db
    chunk = chunk_rows(rows)
    partial = np.zeros((-(-rows // chunk), columns), np.float32)
    step = max(1, TILE // columns)

    def work(first: int, last: int) -> None:
        for k in range(first, last):
            end = min((k + 1) * chunk, rows)
            for m in range(k * chunk, end, step):
                add_rows(widen(dy[m : min(m + step, end)]), partial[k])

    run_chunks(work, len(partial), max(1, GRAIN // (chunk * columns)))
    lanes = np.zeros((LANES, columns), np.float32)
    for k in range(len(partial)):
        add_rows(partial[k : k + 1], lanes[k % LANES])
    total = lanes[0]
    add_rows(lanes[1:], total)
    narrow(total, db)
    return db
