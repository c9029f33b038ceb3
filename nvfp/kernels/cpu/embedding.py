"""CPU twin of `kernels.embedding`: copies over tokens; sums over columns, each in the order of the ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.cpu._halves import narrow, widen
from nvfp.kernels.cpu._njit import njit
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.cpu._tiles import GRAIN, TILE

_FLOAT32 = np.dtype(np.float32)


@njit
def _add_rows(dy: np.ndarray, ids: np.ndarray, first: int, total: np.ndarray) -> None:
    width = dy.shape[1]
    for t in range(ids.size):
        source, target = dy[t], total[ids[t], first : first + width]
        for h in range(width):
            target[h] += source[h]


def embedding(table: Any, ids: Any, *, out: Any | None = None) -> Any:
    """See `nvfp.kernels.embedding.embedding`; table [R, H], ids [T]."""
    width, bits = table.shape[1], np.dtype(f"uint{8 * table.dtype.itemsize}")
    y = np.empty((ids.size, width), table.dtype) if out is None else out
    source, target = table.view(bits), y.view(bits)

    def work(start: int, stop: int) -> None:
        # The contract has checked the ids; without mode= NumPy would buffer the output.
        np.take(source, ids[start:stop], axis=0, out=target[start:stop], mode="clip")

    if width:
        run_chunks(work, ids.size, max(1, GRAIN // width))
    return y


def embedding_vjp(dy: Any, ids: Any, rows: int, *, dtype: np.dtype, out: Any | None = None) -> Any:
    """See `nvfp.kernels.embedding.embedding_vjp`; dy [T, H], ids [T]."""
    width = dy.shape[1]
    dtable = np.empty((rows, width), dtype) if out is None else out
    direct = dtype == _FLOAT32 and not np.may_share_memory(dtable, dy)
    total = dtable if direct else np.empty((rows, width), np.float32)
    total[...] = 0
    numbers = np.array(ids, np.int64)
    if not width:
        return dtable

    def work(first: int, last: int) -> None:
        step = max(1, TILE // (last - first))
        for t in range(0, ids.size, step):
            _add_rows(widen(dy[t : t + step, first:last]), numbers[t : t + step], first, total)

    run_chunks(work, width, max(16, GRAIN // max(1, ids.size)))
    if not direct:
        run_chunks(lambda a, b: narrow(total[a:b], dtable[a:b]), rows, max(1, GRAIN // width))
    return dtable
