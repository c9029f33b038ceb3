"""CPU twin of `kernels.rope`: per run of positions one table of coefficients, then its heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.cpu._exp import fma
from nvfp.kernels.cpu._halves import narrow, widen
from nvfp.kernels.cpu._njit import njit
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.cpu._tiles import GRAIN, TILE
from nvfp.kernels.cpu._trig import sincos32


@njit
def _table(freqs: np.ndarray, stride: int, offset: int, inverse: bool, table: np.ndarray) -> None:
    """Per position the four rows ca, cb, ab, ba of y_a = x_a ca + x_b ab, y_b = x_b cb + x_a ba."""
    for r in range(table.shape[0]):
        angles, ca, cb, ab, ba = freqs[r], table[r, 0], table[r, 1], table[r, 2], table[r, 3]
        for i in range(ca.size):
            sine_a, ca[i] = sincos32(angles[i * stride])
            sine_b, cb[i] = sincos32(angles[i * stride + offset])
            ab[i] = sine_b if inverse else -sine_a
            ba[i] = -sine_a if inverse else sine_b


@njit
def _halves(x: np.ndarray, table: np.ndarray, y: np.ndarray) -> None:
    half = table.shape[2]
    for r in range(x.shape[0]):
        ca, cb, ab, ba = table[r, 0], table[r, 1], table[r, 2], table[r, 3]
        for h in range(x.shape[1]):
            xa, xb, ya, yb = x[r, h, :half], x[r, h, half:], y[r, h, :half], y[r, h, half:]
            for i in range(half):
                ya[i] = fma(xa[i], ca[i], xb[i] * ab[i])
                yb[i] = fma(xb[i], cb[i], xa[i] * ba[i])
            y[r, h, 2 * half :] = x[r, h, 2 * half :]


@njit
def _pairs(x: np.ndarray, table: np.ndarray, y: np.ndarray) -> None:
    half = table.shape[2]
    for r in range(x.shape[0]):
        ca, cb, ab, ba = table[r, 0], table[r, 1], table[r, 2], table[r, 3]
        for h in range(x.shape[1]):
            source, to = x[r, h], y[r, h]
            for i in range(half):
                a, b = source[2 * i], source[2 * i + 1]
                to[2 * i] = fma(a, ca[i], b * ab[i])
                to[2 * i + 1] = fma(b, cb[i], a * ba[i])
            to[2 * half :] = source[2 * half :]


def rope(x: Any, freqs: Any, *, interleaved: bool = False, inverse: bool = False, out: Any | None = None) -> Any:
    """See `nvfp.kernels.rope.rope`."""
    batches, positions, heads, width = x.shape
    y = np.empty(x.shape, x.dtype) if out is None else out
    if x.size == 0:
        return y
    half = freqs.shape[1] // 2
    angles = np.require(freqs, requirements=("C", "W"))
    stride, offset = (2, 1) if interleaved else (1, half)
    kernel = _pairs if interleaved else _halves
    step = max(1, TILE // (heads * width))

    def work(start: int, stop: int) -> None:
        while start < stop:
            b, first = divmod(start, positions)
            end = min(first + step, positions, first + stop - start)
            table = np.empty((end - first, 4, half), np.float32)
            _table(angles[first:end], stride, offset, inverse, table)
            values = np.empty((end - first, heads, width), np.float32)
            kernel(widen(x[b, first:end]), table, values)
            target = y[b, first:end]
            if target.flags.c_contiguous:
                narrow(values, target)
            else:
                rounded = np.empty(values.shape, y.dtype)
                narrow(values, rounded)
                target[...] = rounded
            start += end - first

    run_chunks(work, batches * positions, max(1, GRAIN // (heads * width)))
    return y
