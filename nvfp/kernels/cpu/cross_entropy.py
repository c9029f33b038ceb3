"""CPU twin of `kernels.cross_entropy`: rows over threads; a row is read twice (maximum, sum of exp)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvfp.kernels.cpu._exp import exp32
from nvfp.kernels.cpu._halves import narrow, widen
from nvfp.kernels.cpu._njit import njit
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.cpu._rows import row_max, row_sum
from nvfp.kernels.cpu._tiles import GRAIN, TILE

_FLOAT32 = np.dtype(np.float32)


@njit
def _rows(
    logits: np.ndarray, targets: np.ndarray, ignore: int, smoothing: float, loss: np.ndarray, lse: np.ndarray
) -> None:
    vocabulary = logits.shape[1]
    scratch = np.empty(vocabulary, np.float32)
    for t in range(targets.size):
        target = targets[t]
        if target == ignore:
            loss[t] = lse[t] = np.float32(0)
            continue
        row = logits[t]
        top = row_max(row)
        if top == np.float32(-np.inf):
            loss[t] = np.float32(np.nan)
            lse[t] = top
            continue
        for v in range(vocabulary):
            scratch[v] = exp32(row[v] - top)
        log_sum = math.log(row_sum(scratch))
        nll = (float(top) - float(row[target])) + log_sum
        if smoothing > 0.0:
            for v in range(vocabulary):
                scratch[v] = top - row[v]
            nll = (1.0 - smoothing) * nll + smoothing * (row_sum(scratch) / vocabulary + log_sum)
        loss[t] = np.float32(nll)
        lse[t] = np.float32(float(top) + log_sum)


@njit
def _gradient(
    logits: np.ndarray, targets: np.ndarray, lse: np.ndarray, factor: np.ndarray,
    ignore: int, hit: np.float32, uniform: np.float32, dlogits: np.ndarray,
) -> None:  # fmt: skip
    for t in range(targets.size):
        target, f, low = targets[t], factor[t], lse[t]
        if target == ignore:
            dlogits[t, :] = np.float32(0)
            continue
        row, out = logits[t], dlogits[t]
        for v in range(row.size):
            out[v] = (exp32(row[v] - low) - uniform) * f
        # The target's own entry again, with its share taken off before the product rounds.
        out[target] = ((exp32(row[target] - low) - uniform) - hit) * f


def _row_tiles(rows: int, vocabulary: int, work: Any) -> None:
    """Call ``work(a, b)`` for tiles of rows that together hold about `TILE` values."""
    step = max(1, TILE // vocabulary)

    def chunk(start: int, stop: int) -> None:
        for a in range(start, stop, step):
            work(a, min(a + step, stop))

    run_chunks(chunk, rows, max(1, GRAIN // vocabulary))


def cross_entropy(
    logits: Any, targets: Any, *, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean"
) -> tuple[Any, Any, Any]:
    """See `nvfp.kernels.cross_entropy.cross_entropy`; logits [T, V], targets [T]."""
    losses, lse = np.empty(targets.size, np.float32), np.empty(targets.size, np.float32)
    cross_entropy_rows(logits, targets, losses, lse, ignore_index=ignore_index, label_smoothing=label_smoothing)
    loss, weight = cross_entropy_reduce(losses, targets, ignore_index=ignore_index, reduction=reduction)
    return loss, lse, weight


def cross_entropy_rows(
    logits: Any, targets: Any, losses: Any, lse: Any, *, ignore_index: int = -100, label_smoothing: float = 0.0
) -> None:
    """See `nvfp.kernels.cross_entropy.cross_entropy_rows`."""
    ids = np.array(targets, np.int64)

    def work(a: int, b: int) -> None:
        _rows(widen(logits[a:b]), ids[a:b], int(ignore_index), float(label_smoothing), losses[a:b], lse[a:b])

    rows, vocabulary = logits.shape
    _row_tiles(rows, vocabulary, work)


def cross_entropy_reduce(
    losses: Any, targets: Any, *, ignore_index: int = -100, reduction: str = "mean"
) -> tuple[Any, Any]:
    """See `nvfp.kernels.cross_entropy.cross_entropy_reduce`."""
    weight, loss = 1.0, losses
    if reduction != "none":
        total = float(np.sum(losses, dtype=np.float64))
        if reduction == "mean":
            valid = int(np.count_nonzero(targets != ignore_index))
            total, weight = (total / valid, 1.0 / valid) if valid else (0.0, 0.0)
        loss = np.asarray(total, np.float32)
    return loss, np.asarray(weight, np.float32)


def cross_entropy_vjp(
    logits: Any,
    targets: Any,
    lse: Any,
    weight: Any,
    dloss: Any,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    out: Any | None = None,
) -> Any:
    """See `nvfp.kernels.cross_entropy.cross_entropy_vjp`; logits [T, V], targets and lse [T], dloss [1] or [T]."""
    dlogits = np.empty(logits.shape, logits.dtype) if out is None else out
    ids = np.array(targets, np.int64)
    with np.errstate(all="ignore"):
        factor = np.ascontiguousarray(np.broadcast_to(dloss * weight, ids.shape))
    hit = np.float32(1.0 - label_smoothing)
    uniform = np.float32(label_smoothing / logits.shape[1])
    vocabulary = logits.shape[1]
    direct = dlogits.dtype == _FLOAT32 and not np.may_share_memory(dlogits, logits)

    def work(a: int, b: int) -> None:
        y = dlogits[a:b] if direct else np.empty((b - a, vocabulary), np.float32)
        _gradient(widen(logits[a:b]), ids[a:b], lse[a:b], factor[a:b], int(ignore_index), hit, uniform, y)
        if not direct:
            narrow(y, dlogits[a:b])

    _row_tiles(len(logits), vocabulary, work)
    return dlogits
