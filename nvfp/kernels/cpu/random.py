"""`random` on the CPU: Philox words in Numba, their conversion in NumPy, over chunks on several threads."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from nvfp.device import Device
from nvfp.kernels.cpu._philox import fill_words
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.random import Draw

_GROUPS = 1 << 13  # of four words: a chunk and its temporaries stay in the cache
_FLOAT64 = np.dtype(np.float64)
_MASK, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def random(
    kind: Draw,
    shape: tuple[int, ...],
    *,
    dtype: np.dtype,
    key: int,
    stream: int,
    step: Any,
    low: Any,
    high: Any,
    limit: Any,
    device: Device,
) -> Any:
    """Compute `kernels.random`; ``low`` and ``high`` are offset and factor, ``limit`` the largest uniform value."""
    n = prod(shape)
    out = np.empty(n, dtype)
    per = 2 if kind == "integers" and high > 2**32 else 4  # elements of a group of four words
    groups = -(-n // per)
    convert = _converter(kind, dtype, low, high, limit)
    counter = np.uint32(stream), np.uint32(int(step) & 0xFFFFFFFF), np.uint64(key)

    def work(start: int, stop: int) -> None:
        for first in range(start * _GROUPS, min(stop * _GROUPS, groups), _GROUPS):
            count = min(_GROUPS, groups - first)
            words = np.empty((count, 4), np.uint32)
            fill_words(words, np.uint64(first), *counter)
            to = out[per * first : per * (first + count)]
            to[...] = convert(words)[: to.size]

    run_chunks(work, -(-groups // _GROUPS), 2)
    return out.reshape(shape)


def _converter(kind: str, dtype: np.dtype, low: Any, high: Any, limit: Any) -> Callable[[np.ndarray], np.ndarray]:
    """The function from words [groups, 4] to a flat array of values, not yet rounded to 16 bits."""
    if kind == "bits":
        return np.ravel
    if kind == "integers":
        shift = _integers if high <= 2**32 else _wide_integers
        return lambda words: shift(words, np.uint64(low % 2**64), np.uint64(high % 2**64)).astype(dtype)
    real: Any = np.float64 if dtype == _FLOAT64 else np.float32
    offset, factor, most = real(low), real(high), real(limit)
    if kind == "uniform":
        unit = _unit64 if real is np.float64 else _unit24
        return lambda words: np.minimum(offset + unit(words.ravel()) * factor, most)
    return lambda words: offset + _normal(words, real) * factor


def _unit24(words: np.ndarray) -> Any:
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def _unit64(words: np.ndarray) -> Any:
    return (words.astype(np.float64) + 0.5) * 2.0**-32


def _normal(words: np.ndarray, real: Any) -> np.ndarray:
    """Box-Muller over neighbouring words."""
    pairs = words.reshape(-1, 2)
    turn = np.ascontiguousarray(pairs[:, 1]).view(np.int32)
    if real is np.float64:
        u, x = _unit64(pairs[:, 0]), turn * 2.0**-31
    else:
        u = pairs[:, 0].astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
        x = (turn >> np.int32(8)).astype(np.float32) * np.float32(2.0**-23)
    r, angle = np.sqrt(real(-2) * np.log(u)), real(np.pi) * x
    z = np.empty(pairs.shape, real)
    np.multiply(r, np.cos(angle), out=z[:, 0])
    np.multiply(r, np.sin(angle), out=z[:, 1])
    return z.ravel()


def _integers(words: np.ndarray, low: np.uint64, span: np.uint64) -> Any:
    return low + (words.ravel().astype(np.uint64) * span >> _HALF)


def _wide_integers(words: np.ndarray, low: np.uint64, span: np.uint64) -> Any:
    """The high half of (64-bit word) * span; a span of 2**64 (held as 0) keeps the word."""
    pairs = words.reshape(-1, 2).astype(np.uint64)
    w0, w1 = pairs[:, 0], pairs[:, 1]
    if span == 0:
        return low + (w1 << _HALF | w0)
    s0, s1 = span & _MASK, span >> _HALF
    cross = w1 * s0 + (w0 * s0 >> _HALF)
    return low + w1 * s1 + (cross >> _HALF) + (w0 * s1 + (cross & _MASK) >> _HALF)
