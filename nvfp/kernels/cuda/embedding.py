"""CUDA twin of `kernels.embedding`; how the gradient is summed stands in `embedding.cu`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._dense import BFLOAT16, FLOAT32, INT32, INT64, row_vector
from nvfp.kernels.cuda._launch import grid_for, launch
from nvfp.kernels.cuda._loader import Defines, Instance, Kernel, kernel
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp

_SOURCE = "embedding.cu"
_THREADS = 128  # = embedding.cu's THREADS
_DIGITS = 256  # = embedding.cu's DIGITS
_ROWS = 8  # = embedding.cu's ROWS
_CHUNK, _SMALL_CHUNK = 1024, 256  # positions that one warp places in order: of many ids, of up to 256 chunks
_MOST_BLOCKS = 2**20


def _gather(dtype: np.dtype, ids: np.dtype, per_thread: int) -> Defines:
    return (("T_ROW", ctype(dtype)), ("T_ID", ctype(ids)), ("W", per_thread))


def _sort(ids: np.dtype) -> Defines:
    return (("SORT", 1), ("T_ID", ctype(ids)))


def _sum(come: np.dtype, go: np.dtype, per_thread: int) -> Defines:
    return (("T_IN", ctype(come)), ("T_OUT", ctype(go)), ("W", per_thread))


def embedding(table: Any, ids: Any, *, out: Any | None = None) -> Any:
    """See `nvfp.kernels.embedding.embedding`; table [R, H], ids [T]."""
    rows, width = table.shape
    y = cp.empty((ids.size, width), table.dtype) if out is None else out
    if width:
        per_thread = row_vector(width, table.dtype.itemsize, table, y)
        launch(
            kernel(_SOURCE, "embedding", _gather(table.dtype, ids.dtype, per_thread)),
            (min(ids.size, _MOST_BLOCKS),),
            (_THREADS,),
            (table, ids, np.int64(ids.size), np.int64(rows), np.int64(width), y),
        )
    return y


def embedding_vjp(dy: Any, ids: Any, rows: int, *, dtype: np.dtype, out: Any | None = None) -> Any:
    """See `nvfp.kernels.embedding.embedding_vjp`; dy [T, H], ids [T]."""
    count, width = dy.shape
    dtable = cp.empty((rows, width), dtype) if out is None else out
    if not dtable.size:
        return dtable
    if not count:
        _memory.zero(dtable, 0, dtable.nbytes)
        return dtable
    keys, order, valid = _sorted(ids, rows)
    starts = cp.empty(rows + 1, INT32)
    launch(
        kernel(_SOURCE, "embedding_starts", _sort(ids.dtype)),
        grid_for(rows + 1, _THREADS),
        (_THREADS,),
        (keys, valid, np.int32(rows), starts),
    )
    # About sqrt(count) / 2: pieces and parts of a row stay few.
    piece = max(32, 1 << max(0, count.bit_length() // 2 - 1))
    pieces = -(-count // piece)
    partial = cp.empty((2 * pieces, width), FLOAT32)
    per_thread = row_vector(width, dy.dtype.itemsize, dy, dtable)
    defines = _sum(dy.dtype, dtable.dtype, per_thread)
    tiles = -(-width // (_THREADS * per_thread))
    launch(
        kernel(_SOURCE, "embedding_walk", defines),
        (pieces, tiles),
        (_THREADS,),
        (dy, keys, order, valid, np.int64(width), np.int32(piece), dtable, partial),
    )
    launch(
        kernel(_SOURCE, "embedding_rows", defines),
        (min(-(-rows // _ROWS), _MOST_BLOCKS), tiles),
        (_THREADS,),
        (starts, np.int64(rows), np.int64(width), np.int32(piece), partial, dtable),
    )
    return dtable


def _sorted(ids: Any, rows: int) -> tuple[Any, Any, Any]:
    """The ids in range in ascending order, the position of each (ascending for equal ids), and their number."""
    count = ids.size
    chunk = _SMALL_CHUNK if count <= 256 * _SMALL_CHUNK else _CHUNK
    chunks = -(-count // chunk)
    keys, order = cp.empty((2, count), INT32), cp.empty((2, count), INT32)
    histogram, totals, valid = cp.empty((_DIGITS, chunks), INT32), cp.empty(_DIGITS, INT32), cp.empty((), INT32)
    step = _steps(ids.dtype)
    passes = max(1, -(-(rows - 1).bit_length() // 8))
    null = np.int64(0)
    for p in range(passes):
        given, source, target = (ids if p == 0 else null), (p - 1) % 2, p % 2
        sizes = (np.int64(count), np.int64(chunk), np.int32(rows), np.int32(8 * p))
        launch(step["count"], (chunks,), (_DIGITS,), (given, keys[source], valid, *sizes, histogram))
        launch(step["scan"], (_DIGITS,), (_DIGITS,), (histogram, np.int64(chunks), totals))
        launch(
            step["place"],
            (chunks,),
            (32,),
            (given, keys[source], order[source], valid, *sizes, histogram, totals, keys[target], order[target]),
        )
    return keys[(passes - 1) % 2], order[(passes - 1) % 2], valid


def _steps(ids: np.dtype) -> dict[str, Kernel]:
    return {name: kernel(_SOURCE, f"embedding_{name}", _sort(ids)) for name in ("count", "scan", "place")}


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return [
        Instance(_SOURCE, "embedding", _gather(BFLOAT16, INT64, 8)),
        Instance(_SOURCE, "embedding_place", _sort(INT64)),
        Instance(_SOURCE, "embedding_walk", _sum(BFLOAT16, BFLOAT16, 8)),
    ]
