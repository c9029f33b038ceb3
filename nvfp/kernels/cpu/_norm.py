"""Normalisation of rows and its gradients, for `layer_norm` and `rms_norm`: the twin of `cuda/include/norm.cuh`.

Rows over threads; statistics of a row in float64 over eight lanes (so that the additions overlap), its values in
float32, rounded once. The sums over rows go by chunks of `chunk_rows` rows, whatever the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.bias_grad import chunk_rows
from nvfp.kernels.cpu._halves import narrow, widen
from nvfp.kernels.cpu._njit import njit
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.cpu._rows import add_rows, row_dot, row_sum
from nvfp.kernels.cpu._tiles import GRAIN, TILE

_FLOAT32 = np.dtype(np.float32)
_ZERO, _ONE = np.float32(0), np.float32(1)


@njit
def _forward(
    x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, centered: bool, eps: np.float32,
    y: np.ndarray, mean: np.ndarray, rstd: np.ndarray,
) -> None:  # fmt: skip
    n = max(x.shape[1], 1)
    shifted = np.empty(x.shape[1], np.float32)
    for r in range(x.shape[0]):
        row, out = x[r], y[r]
        middle = row_sum(row) / n if centered else 0.0
        for i in range(row.size):
            shifted[i] = np.float32(float(row[i]) - middle)
        scale = _ONE / np.sqrt(np.float32(row_dot(shifted, shifted) / n) + eps)
        for i in range(row.size):
            out[i] = (shifted[i] * scale) * gamma[i]
        if beta.size:
            for i in range(row.size):
                out[i] += beta[i]
        mean[r], rstd[r] = np.float32(middle), scale


@njit
def _backward(
    dy: np.ndarray, x: np.ndarray, gamma: np.ndarray, mean: np.ndarray, rstd: np.ndarray, centered: bool,
    dx: np.ndarray, along: np.ndarray, level: np.ndarray,
) -> None:  # fmt: skip
    n = max(x.shape[1], 1)
    unit, up = np.empty(x.shape[1], np.float32), np.empty(x.shape[1], np.float32)
    for r in range(x.shape[0]):
        row, drow, scale, middle = x[r], dy[r], rstd[r], mean[r]
        for i in range(row.size):
            unit[i] = (row[i] - middle) * scale
        if along.size:
            for i in range(row.size):
                along[i] += drow[i] * unit[i]
        if level.size:
            for i in range(row.size):
                level[i] += drow[i]
        if dx.size:
            out = dx[r]
            for i in range(row.size):
                up[i] = drow[i] * gamma[i]
            a = np.float32(row_dot(up, unit) / n)
            b = np.float32(row_sum(up) / n) if centered else _ZERO
            for i in range(row.size):
                out[i] = scale * ((up[i] - b) - unit[i] * a)


def _gamma(weight: np.ndarray, zero_centered: bool) -> np.ndarray:
    with np.errstate(all="ignore"):
        return widen(weight) + _ONE if zero_centered else widen(weight)


def forward(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None,
    eps: float,
    zero_centered: bool,
    centered: bool,
    y: Any,
    residual: np.ndarray | None,
    total: Any | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Fill ``y`` [rows, H] and return (mean, rstd) [rows].

    Args:
        x: [rows, H], contiguous.
        weight: gamma [H].
        bias: beta [H] or None.
        eps: added to the variance.
        zero_centered: gamma counts from 1.
        centered: subtract the mean (layer norm); otherwise mean is 0.
        y: contiguous, may be ``x``.
        residual: added to x first, or None; contiguous.
        total: takes the rounded sum, which is what is normalized; may be ``x`` or ``residual``.
    """
    rows, columns = x.shape
    mean, rstd = np.empty(rows, np.float32), np.empty(rows, np.float32)
    gamma, beta = _gamma(weight, zero_centered), widen(np.empty(0, np.float32) if bias is None else bias)
    apart = not any(a is not None and np.may_share_memory(a, y) for a in (x, residual, total))
    direct = y.dtype == _FLOAT32 and apart
    step = max(1, TILE // max(columns, 1))

    def work(start: int, stop: int) -> None:
        for a in range(start, stop, step):
            b = min(a + step, stop)
            tile = y[a:b] if direct else np.empty((b - a, columns), np.float32)
            source = x[a:b] if total is None else _add(x[a:b], residual[a:b], total[a:b])  # type: ignore[index]
            _forward(widen(source), gamma, beta, centered, np.float32(eps), tile, mean[a:b], rstd[a:b])
            if not direct:
                narrow(tile, y[a:b])

    run_chunks(work, rows, max(1, GRAIN // max(columns, 1)))
    return mean, rstd


def _add(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Fill ``out`` with the rounded sum and return it."""
    with np.errstate(all="ignore"):
        narrow(widen(x) + widen(y), out)
    return out


def vjp(
    dy: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray,
    mean: np.ndarray,
    rstd: np.ndarray,
    zero_centered: bool,
    centered: bool,
    needs: tuple[bool, bool, bool],
    add: np.ndarray | None,
) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
    """Return (dx, dweight, dbias), None where not needed; ``add`` or None is added to dx; else as in `forward`."""
    rows, columns = x.shape
    gamma, chunk = _gamma(weight, zero_centered), chunk_rows(rows)
    dx = np.empty(x.shape, x.dtype) if needs[0] else None
    # One row of sums for each chunk of rows; nothing where they are not needed.
    sums = [np.zeros((-(-rows // chunk), columns if need else 0), np.float32) for need in needs[1:]]
    step = max(1, TILE // max(columns, 1))

    def tile(a: int, b: int, k: int) -> None:
        values = np.empty((b - a, columns if needs[0] else 0), np.float32)
        up, kept = widen(dy[a:b]), widen(x[a:b])
        _backward(up, kept, gamma, mean[a:b], rstd[a:b], centered, values, sums[0][k], sums[1][k])
        if dx is not None:
            narrow(values, dx[a:b])
            if add is not None:
                _add(dx[a:b], add[a:b], dx[a:b])

    def work(first: int, last: int) -> None:
        for k in range(first, last):
            end = min((k + 1) * chunk, rows)
            for a in range(k * chunk, end, step):
                tile(a, min(a + step, end), k)

    run_chunks(work, len(sums[0]), max(1, GRAIN // (chunk * max(columns, 1))))
    dweight, dbias = (_total(partial, weight.dtype) if need else None for partial, need in zip(sums, needs[1:]))
    return dx, dweight, dbias


def _total(partial: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The sum of rows, from the first to the last, rounded once."""
    total, result = np.zeros(partial.shape[1], np.float32), np.empty(partial.shape[1], dtype)
    add_rows(partial, total)
    narrow(total, result)
    return result
