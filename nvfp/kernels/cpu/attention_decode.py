"""CPU twin of `kernels.attention_decode`: batch entries and groups of heads over threads, keys read where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.cpu._encode import bfloat_float, half_float
from nvfp.kernels.cpu._exp import exp32
from nvfp.kernels.cpu._halves import narrow, widen
from nvfp.kernels.cpu._njit import bits_float, njit
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.cpu._rows import row_max, row_sum
from nvfp.kernels.cpu._tiles import GRAIN

_BLAS = 1 << 17  # products up to this size stay on the calling thread


@njit
def _softmax(scores: np.ndarray, scale: np.float32) -> None:
    """Rows of scores to weights, in place."""
    for r in range(scores.shape[0]):
        row = scores[r]
        for c in range(row.size):
            row[c] *= scale
        top = row_max(row)
        base = np.float32(0) if top == np.float32(-np.inf) else top
        for c in range(row.size):
            row[c] = exp32(row[c] - base)
        mass = np.float32(row_sum(row))
        if mass != np.float32(0):
            for c in range(row.size):
                row[c] = row[c] / mass


@njit
def _gather(cache: np.ndarray, pages: np.ndarray, group: int, kind: int, found: np.ndarray) -> None:
    """The first tokens of a sequence, one group of heads, as float32; kind 0: float32, 1: float16, 2: bfloat16."""
    size = cache.shape[1]
    for token in range(found.shape[0]):
        row, y = cache[pages[token // size], token % size, group], found[token]
        if kind == 0:
            for i in range(y.size):
                y[i] = bits_float(row[i])
        elif kind == 1:
            for i in range(y.size):
                y[i] = half_float(row[i])
        else:
            for i in range(y.size):
                y[i] = bfloat_float(row[i])


def _tokens(cache: np.ndarray, pages: np.ndarray, length: int, group: int) -> np.ndarray:
    found = np.empty((length, cache.shape[3]), np.float32)
    kind = 0 if cache.dtype == np.float32 else 1 if cache.dtype == np.float16 else 2
    words = np.require(cache.view(np.uint32 if kind == 0 else np.uint16), requirements="W")
    _gather(words, np.require(pages, requirements="W"), group, kind, found)
    return found


def _attend(q: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: np.float32) -> np.ndarray:
    """The heads q [H/G, D] over the tokens they see, in products that OpenBLAS keeps on the calling thread."""
    if len(q) == 1:  # a product with a vector would be spread over threads from a few thousand elements on
        q = np.concatenate((q, q))
    rows, length = len(q), len(keys)
    scores, y = np.empty((rows, length), np.float32), np.zeros((rows, values.shape[1]), np.float32)
    step = max(1, _BLAS // (rows * max(1, q.shape[1], values.shape[1])))
    parts = [slice(a, a + step) for a in range(0, length, step)]
    for part in parts:
        np.matmul(q, keys[part].T, out=scores[:, part])
    _softmax(scores, scale)
    for part in parts:
        y += np.matmul(scores[:, part], values[part])
    return y


def attention_decode(
    q: Any, k_cache: Any, v_cache: Any, table: Any, starts: Any, fresh: Any, *, causal: bool = True, left: int = -1,
    scale: float | None = None,
) -> Any:  # fmt: skip
    """See `nvfp.kernels.attention_decode.attention_decode`."""
    assert scale is not None, "the contract sets it"
    batch, queries, heads, _ = q.shape
    groups, factor = k_cache.shape[2], np.float32(scale)
    share = heads // max(1, groups)
    out = np.zeros((batch, queries, heads, v_cache.shape[3]), q.dtype)

    def work(begin: int, stop: int) -> None:
        with np.errstate(all="ignore"):  # NaN and inf are values here
            for at in range(begin, stop):
                b, g = divmod(at, groups)
                start, count = int(starts[b]), int(fresh[b])
                asking = min(queries, count)
                if asking <= 0:
                    continue
                keys, values = (_tokens(cache, table[b], start + count, g) for cache in (k_cache, v_cache))
                mine = slice(g * share, (g + 1) * share)
                panel = widen(np.ascontiguousarray(q[b, :asking, mine]))
                for i in range(asking):
                    first = max(0, start + i - left) if left >= 0 else 0
                    last = start + i + 1 if causal else start + count
                    y = _attend(panel[i], keys[first:last], values[first:last], factor)
                    narrow(y[:share], out[b, i, mine])

    length = table.shape[1] * k_cache.shape[1]
    if out.size:
        run_chunks(work, batch * groups, max(1, GRAIN // (length * share * queries)))
    return out


def attention_append(k: Any, v: Any, k_cache: Any, v_cache: Any, table: Any, starts: Any, fresh: Any) -> None:
    """See `nvfp.kernels.attention_decode.attention_append`."""
    size = k_cache.shape[1]
    for b in range(len(k)):
        count = min(int(fresh[b]), k.shape[1])
        positions = int(starts[b]) + np.arange(count)
        pages, lines = table[b, positions // size], positions % size
        k_cache[pages, lines] = k[b, :count]
        v_cache[pages, lines] = v[b, :count]
