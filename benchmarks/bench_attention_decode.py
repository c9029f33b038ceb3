"""Time `attention_decode`: one query per sequence reads the keys and values that the cache holds, once."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from _harness import Bench, main

from nvfp.kernels.attention_decode import attention_append, attention_decode

_GPU = [(1, 512), (1, 2048), (1, 8192), (8, 512), (8, 2048), (8, 8192), (64, 2048)]


def bench(b: Bench) -> None:
    sizes = b.size(_GPU, [(1, 8192), (8, 2048)], [(1, 512), (8, 512)], [(2, 256)])
    for heads, groups, depth in b.size(
        [(32, 32, 128), (32, 8, 128), (16, 16, 64)], [(32, 8, 128)], [(8, 8, 64)], [(4, 2, 64)]
    ):
        for batch, length in sizes:
            for page in (None, 64):
                _row(b, batch, length, heads, groups, depth, page)
    at, k, v, q = _problem(b, 1, 256, 4, 4, 64, None)
    b.host("attention_decode", partial(attention_decode, q, k, v, *at))
    new = b.normal((1, 1, 4, 64))
    b.host("attention_append", partial(attention_append, new, new, k, v, *at))


def _problem(
    b: Bench, batch: int, length: int, heads: int, groups: int, depth: int, page: int | None
) -> tuple[tuple[Any, ...], Any, Any, Any]:
    size = length if page is None else page
    each = length // size
    table = np.random.default_rng(0).permutation(batch * each).astype(np.int32).reshape(batch, each)
    words = table, np.full(batch, length - 1, np.int32), np.ones(batch, np.int32)
    k, v = (b.normal((batch * each, size, groups, depth)) for _ in range(2))
    return tuple(b.xp.asarray(w) for w in words), k, v, b.normal((batch, 1, heads, depth))


def _row(b: Bench, batch: int, length: int, heads: int, groups: int, depth: int, page: int | None) -> None:
    at, k, v, q = _problem(b, batch, length, heads, groups, depth, page)
    name = f"attention_decode {batch} x {length}, heads {heads}/{groups} x {depth}, {'paged' if page else 'contiguous'}"
    b.row(name, partial(attention_decode, q, k, v, *at), moved=k.nbytes + v.nbytes)


if __name__ == "__main__":
    main(bench)
