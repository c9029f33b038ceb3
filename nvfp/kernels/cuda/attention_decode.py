"""CUDA twin of `kernels.attention_decode`: the lengths stay on the device, so a captured step works at every length."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from nvfp.kernels.cuda._dense import BFLOAT16, FLOAT32, by_value
from nvfp.kernels.cuda._launch import launch, multiprocessors
from nvfp.kernels.cuda._loader import Defines, Instance, kernel
from nvfp.kernels.cuda._memory import aligned
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp

_SOURCE = "attention_decode.cu"
_THREADS, _PER = 128, 16  # = attention_decode.cu's THREADS and PER
_MERGE, _APPEND = 128, 256
_OVERHEAD = 128  # what a block takes beside its keys, in keys
_MOST_SPLITS = 64  # = attention_decode.cu's MOST_SPLITS
_KEYS = 64  # a split is worth at least so many
_LAYOUT = np.dtype(
    [("q", np.int64, (3,))]
    + [(n, np.int32) for n in ("queries", "heads", "groups", "depth", "values", "pages", "page", "causal", "left")]
    + [("scale", np.float32)]
)
_FRESH = np.dtype(
    [("k", np.int64, (3,)), ("v", np.int64, (3,))]
    + [(n, np.int32) for n in ("tokens", "groups", "depth", "values", "pages", "page")]
)


def _decode(dtype: np.dtype, width: int, lanes: int, rows: int) -> Defines:
    return (("T_IN", ctype(dtype)), ("WIDTH", width), ("LANES", lanes), ("ROWS", rows))


def _plain(dtype: np.dtype, width: int) -> Defines:
    return (("T_IN", ctype(dtype)), ("WIDTH", width))


def _width(*arrays: Any) -> int:
    """Elements of one load: 16 bytes' worth where every head of every array starts at a multiple of 16, else 1."""
    fits = all(
        aligned(x) and x.shape[-1] * x.dtype.itemsize % 16 == 0 and not any(s % 16 for s in x.strides[:-1])
        for x in arrays
    )
    return 16 // arrays[0].dtype.itemsize if fits else 1


def _lanes(depth: int) -> int:
    """Threads that hold a head of a key together."""
    return 1 << (-(-max(1, depth) // _PER) - 1).bit_length()


@lru_cache(maxsize=1024)
def _splits(blocks: int, length: int, room: int) -> int:
    """How many blocks share the keys of a row: the number with the least work in the longest line of blocks.

    A function of what does not change from step to step. ``room``: blocks that run at a time.
    """

    def longest(splits: int) -> float:
        return -(-blocks * splits // room) * (length / splits + _OVERHEAD)

    return min(range(1, max(1, min(_MOST_SPLITS, length // _KEYS)) + 1), key=longest)


def attention_decode(
    q: Any, k_cache: Any, v_cache: Any, table: Any, starts: Any, fresh: Any, *, causal: bool = True, left: int = -1,
    scale: float | None = None,
) -> Any:  # fmt: skip
    """See `nvfp.kernels.attention_decode.attention_decode`."""
    assert scale is not None, "the contract sets it"
    batch, queries, heads, depth = q.shape
    _, page, groups, values = v_cache.shape
    out = cp.empty((batch, queries, heads, values), q.dtype)
    if out.size == 0:
        return out
    share, itemsize = heads // groups * queries, q.dtype.itemsize
    rows = min(4, 1 << (share - 1).bit_length())
    tiles = groups * -(-share // rows)
    width = _width(q, k_cache, v_cache)
    resident = 2 if width * itemsize < 16 or itemsize > 2 else 3 if rows > 1 else 5  # = attention_decode.cu's BLOCKS
    splits = _splits(batch * tiles, table.shape[1] * page, resident * multiprocessors())
    layout = np.zeros(1, _LAYOUT)
    strides = [s // itemsize for s in q.strides[:3]]
    layout[0] = (strides, queries, heads, groups, depth, values, table.shape[1], page, int(causal), left, scale)
    partial = out if splits == 1 else cp.empty((batch * queries * heads, splits, values + 2), FLOAT32)
    launch(
        kernel(
            _SOURCE,
            "attention_decode",
            _decode(q.dtype, width, _lanes(max(depth, values)), rows),
        ),
        (splits, tiles, batch),
        (_THREADS,),
        (q, k_cache, v_cache, table, starts, fresh, by_value(layout), out, partial),
    )
    if splits > 1:
        merge = kernel(_SOURCE, "attention_decode_merge", _plain(q.dtype, 1))
        args = (partial, np.int32(splits), np.int32(values), out)
        launch(merge, (batch * queries * heads,), (min(_MERGE, -(-values // 32) * 32),), args)
    return out


def attention_append(k: Any, v: Any, k_cache: Any, v_cache: Any, table: Any, starts: Any, fresh: Any) -> None:
    """See `nvfp.kernels.attention_decode.attention_append`."""
    batch, tokens, groups, depth = k.shape
    values, width = v.shape[3], _width(k, v, k_cache, v_cache)
    layout, itemsize = np.zeros(1, _FRESH), k.dtype.itemsize
    strides = ([s // itemsize for s in x.strides[:3]] for x in (k, v))
    layout[0] = (*strides, tokens, groups, depth, values, table.shape[1], k_cache.shape[1])
    pieces = tokens * groups * (depth + values) // width
    blocks = min(-(-pieces // _APPEND), 8 * multiprocessors())
    args = (k, v, k_cache, v_cache, table, starts, fresh, by_value(layout))
    launch(kernel(_SOURCE, "attention_append", _plain(k.dtype, width)), (blocks, batch), (_APPEND,), args)


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return [Instance(_SOURCE, "attention_decode", _decode(BFLOAT16, 8, 8, 4))]
