"""CPU twin of `kernels.attention_decode`: batch entries and groups of heads over threads, keys read where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.cpu._exp import exp32
from nvfp.kernels.cpu._halves import narrow, widen
from nvfp.kernels.cpu._njit import njit
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.cpu._rows import row_max, row_sum
from nvfp.kernels.cpu._tiles import GRAIN


@njit
def _softmax(scores: np.ndarray, scale: np.float32) -> None:
    """Scores to weights, in place."""
    for c in range(scores.size):
        scores[c] *= scale
    top = row_max(scores)
    base = np.float32(0) if top == np.float32(-np.inf) else top
    for c in range(scores.size):
        scores[c] = exp32(scores[c] - base)
    mass = np.float32(row_sum(scores))
    if mass == np.float32(0):
        return
    for c in range(scores.size):
        scores[c] = scores[c] / mass


def _pages(cache: np.ndarray, pages: np.ndarray, length: int, group: int) -> np.ndarray:
    """The first ``length`` tokens of a sequence, one group of heads, as float32 [length, D]."""
    size = cache.shape[1]
    found = np.empty((length, cache.shape[3]), np.float32)
    for i in range(-(-length // size)):
        part = cache[pages[i], : min(size, length - i * size), group]
        found[i * size : i * size + len(part)] = widen(part)
    return found


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
                keys, values = (_pages(cache, table[b], start + count, g) for cache in (k_cache, v_cache))
                mine = slice(g * share, (g + 1) * share)
                panel = widen(np.ascontiguousarray(q[b, :asking, mine]))
                for i in range(asking):
                    first = max(0, start + i - left) if left >= 0 else 0
                    last = start + i + 1 if causal else start + count
                    scores = panel[i] @ keys[first:last].T
                    for row in scores:
                        _softmax(row, factor)
                    narrow(scores @ values[first:last], out[b, i, mine])

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
