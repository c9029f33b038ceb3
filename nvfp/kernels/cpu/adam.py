"""CPU twin of `kernels.adam`; operation for operation as `cuda/adam.cu`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nvfp.kernels.cpu._halves import narrow, widen
from nvfp.kernels.cpu._njit import njit
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.cpu._tiles import GRAIN, TILE

_ONE = np.float32(1.0)
_FLOAT32 = np.dtype(np.float32)


@njit
def _update(p: np.ndarray, g: np.ndarray, m: np.ndarray, v: np.ndarray, words: np.ndarray, l2: bool) -> None:
    lr, b1, b2, eps, decay, rest1, rest2, r1, r2 = (
        words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7], words[8],
    )  # fmt: skip
    for i in range(p.size):
        before = p[i]
        gradient = g[i] + decay * before if l2 else g[i]
        first = b1 * m[i] + rest1 * gradient
        second = b2 * v[i] + (rest2 * gradient) * gradient
        u = (first * r1) / (np.sqrt(second * r2) + eps)
        u = u if l2 else u + decay * before
        m[i] = first
        v[i] = second
        p[i] = before - lr * u


def _correction(beta: np.float32, step: int) -> np.float32:
    """1 / (1 - beta^step): products of float64, the same on every machine (pow is not); the rest float32."""
    power, square = np.float64(1.0), np.float64(beta)
    with np.errstate(all="ignore"):
        while step > 0:
            if step & 1:
                power *= square
            square *= square
            step >>= 1
        return _ONE / np.float32(1.0 - power)


def adam(
    params: Sequence[Any],
    grads: Sequence[Any],
    exp_avg: Sequence[Any],
    exp_avg_sq: Sequence[Any],
    master: Sequence[Any | None],
    hyper: Any,
    step: Any,
    *,
    mode: str = "adamw",
    skip: Any | None = None,
) -> None:
    """See `nvfp.kernels.adam.adam`; all arrays contiguous."""
    if skip is not None and skip != 0:
        return
    step += np.int32(1)
    lr, b1, b2, eps, decay = hyper
    t = int(step)
    words = np.array([lr, b1, b2, eps, decay, _ONE - b1, _ONE - b2, _correction(b1, t), _correction(b2, t)], np.float32)
    for p, g, m, v, w in zip(params, grads, exp_avg, exp_avg_sq, master):
        _one(p, g, m, v, w, words, mode == "adam_l2")


def _one(p: Any, g: Any, m: Any, v: Any, w: Any | None, words: np.ndarray, l2: bool) -> None:
    p, g, m, v = (x.reshape(-1) for x in (p, g, m, v))
    exact = p if w is None else w.reshape(-1)  # what is updated; p is rounded from it
    direct = exact.dtype == _FLOAT32

    def work(start: int, stop: int) -> None:
        for a in range(start, stop, TILE):
            b = min(a + TILE, stop)
            x = exact[a:b] if direct else widen(exact[a:b])
            _update(x, widen(g[a:b]), m[a:b], v[a:b], words, l2)
            if p is not exact or not direct:
                narrow(x, p[a:b])

    run_chunks(work, p.size, GRAIN)
