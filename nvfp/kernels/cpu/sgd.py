"""CPU twin of `kernels.sgd`; operation for operation as `cuda/sgd.cu`."""

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
def _plain(p: np.ndarray, g: np.ndarray, words: np.ndarray) -> None:
    lr, decay = words[0], words[3]
    for i in range(p.size):
        p[i] = p[i] - lr * (g[i] + decay * p[i])


@njit
def _with_momentum(p: np.ndarray, g: np.ndarray, m: np.ndarray, words: np.ndarray, first: bool, nesterov: bool) -> None:
    lr, momentum, rest, decay = words[0], words[1], words[2], words[3]
    for i in range(p.size):
        gradient = g[i] + decay * p[i]
        mean = gradient if first else momentum * m[i] + rest * gradient
        m[i] = mean
        p[i] = p[i] - lr * (gradient + momentum * mean if nesterov else mean)


def sgd(
    params: Sequence[Any],
    grads: Sequence[Any],
    momentum: Sequence[Any | None],
    master: Sequence[Any | None],
    hyper: Any,
    step: Any,
    *,
    nesterov: bool = False,
    skip: Any | None = None,
) -> None:
    """See `nvfp.kernels.sgd.sgd`; all arrays contiguous."""
    if skip is not None and skip != 0:
        return
    step += np.int32(1)
    words = np.array([hyper[0], hyper[1], _ONE - hyper[2], hyper[3]], np.float32)
    for p, g, m, w in zip(params, grads, momentum, master):
        _one(p, g, m, w, words, int(step) == 1, nesterov)


def _one(p: Any, g: Any, m: Any, w: Any | None, words: np.ndarray, first: bool, nesterov: bool) -> None:
    p, g = p.reshape(-1), g.reshape(-1)
    m = None if m is None else m.reshape(-1)
    exact = p if w is None else w.reshape(-1)  # what is updated; p is rounded from it
    direct = exact.dtype == _FLOAT32

    def work(start: int, stop: int) -> None:
        for a in range(start, stop, TILE):
            b = min(a + TILE, stop)
            x = exact[a:b] if direct else widen(exact[a:b])
            if m is None:
                _plain(x, widen(g[a:b]), words)
            else:
                _with_momentum(x, widen(g[a:b]), m[a:b], words, first, nesterov)
            if p is not exact or not direct:
                narrow(x, p[a:b])

    run_chunks(work, p.size, GRAIN)
