"""Attention over a cache of pages in float64: the tokens of each sequence gathered, then the attention oracle."""

from __future__ import annotations

import numpy as np

from tests.oracles import attention as oracle


def gathered(cache: np.ndarray, table: np.ndarray, length: int) -> np.ndarray:
    """The first ``length`` tokens of the sequence with these pages, [length, G, D]."""
    return np.concatenate([cache[page] for page in table], 0)[:length]


def append(new: np.ndarray, cache: np.ndarray, table: np.ndarray, starts: np.ndarray, fresh: np.ndarray) -> np.ndarray:
    """The cache [P, S, G, D] after the tokens new [B, L, G, D] have been written."""
    cache, size = cache.copy(), cache.shape[1]
    for b in range(len(new)):
        for i in range(fresh[b]):
            at = starts[b] + i
            cache[table[b, at // size], at % size] = new[b, i]
    return cache


def attention_decode(
    q: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, table: np.ndarray, starts: np.ndarray, fresh: np.ndarray,
    causal: bool = True, left: int = -1, scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The result [B, Lq, H, Dv] and, of the same shape, the sums of magnitudes in it."""
    batch, queries, heads, depth = q.shape
    out = np.zeros((batch, queries, heads, v_cache.shape[3]))
    size = np.zeros_like(out)
    for b in range(batch):
        count, length = min(queries, fresh[b]), starts[b] + fresh[b]
        k, v = (gathered(np.asarray(c).astype(np.float64), table[b], length)[None] for c in (k_cache, v_cache))
        i, j = starts[b] + np.arange(count)[:, None], np.arange(length)
        off = np.zeros((count, length), bool)
        if causal:
            off |= j > i
        if left >= 0:
            off |= j < i - left
        off = np.broadcast_to(off, (1, heads, count, length))
        if count:
            args = np.asarray(q[b : b + 1, :count]).astype(np.float64), k
            factor = depth**-0.5 if scale is None else scale
            out[b, :count] = oracle.attention(*args, v, off, factor)[0]
            size[b, :count] = oracle.attention(*args, np.abs(v), off, factor)[0]
    return out, size
