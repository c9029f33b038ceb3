"""CUDA twin of `kernels.cross_entropy`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.cuda._dense import BFLOAT16, FLOAT32, INT64
from nvfp.kernels.cuda._launch import launch
from nvfp.kernels.cuda._loader import Defines, Instance, kernel
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp

_SOURCE = "cross_entropy.cu"
_MOST_THREADS = 512  # = online.cuh's MOST_THREADS
_MOST_BLOCKS = 2**20
_MODES = {"none": 0, "sum": 1, "mean": 2}


def _threads(vocabulary: int, itemsize: int) -> int:
    """Threads per row: a power of two with about 4 vectors of 16 bytes for each."""
    wanted = vocabulary * itemsize // 64
    return min(_MOST_THREADS, max(32, 1 << (wanted - 1).bit_length())) if wanted > 1 else 32


def _rows(dtype: np.dtype, ids: np.dtype) -> Defines:
    return (("T_IN", ctype(dtype)), ("T_ID", ctype(ids)))


def _finish(ids: np.dtype) -> Defines:
    return (("T_ID", ctype(ids)),)


def cross_entropy(
    logits: Any, targets: Any, *, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean"
) -> tuple[Any, Any, Any]:
    """See `nvfp.kernels.cross_entropy.cross_entropy`; logits [T, V], targets [T]."""
    rows = len(logits)
    losses, lse = cp.empty(rows, FLOAT32), cp.empty(rows, FLOAT32)
    cross_entropy_rows(logits, targets, losses, lse, ignore_index=ignore_index, label_smoothing=label_smoothing)
    loss, weight = cross_entropy_reduce(losses, targets, ignore_index=ignore_index, reduction=reduction)
    return loss, lse, weight


def cross_entropy_rows(
    logits: Any, targets: Any, losses: Any, lse: Any, *, ignore_index: int = -100, label_smoothing: float = 0.0
) -> None:
    """See `nvfp.kernels.cross_entropy.cross_entropy_rows`."""
    rows, vocabulary = logits.shape
    launch(
        kernel(_SOURCE, "cross_entropy_rows", _rows(logits.dtype, targets.dtype)),
        (min(rows, _MOST_BLOCKS),),
        (_threads(vocabulary, logits.dtype.itemsize),),
        (
            logits, targets, np.int64(rows), np.int64(vocabulary), np.int64(ignore_index),
            np.float32(label_smoothing), losses, lse,
        ),
    )  # fmt: skip


def cross_entropy_reduce(
    losses: Any, targets: Any, *, ignore_index: int = -100, reduction: str = "mean"
) -> tuple[Any, Any]:
    """See `nvfp.kernels.cross_entropy.cross_entropy_reduce`."""
    loss, weight = losses if reduction == "none" else cp.empty((), FLOAT32), cp.empty((), FLOAT32)
    launch(
        kernel(_SOURCE, "cross_entropy_finish", _finish(targets.dtype)),
        (1,),
        (_MOST_THREADS,),
        (
            losses, targets, np.int64(len(losses)), np.int64(ignore_index), np.int32(_MODES[reduction]),
            loss, weight,
        ),
    )  # fmt: skip
    return loss, weight


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
    rows, vocabulary = logits.shape
    dlogits = cp.empty(logits.shape, logits.dtype) if out is None else out
    launch(
        kernel(_SOURCE, "cross_entropy_vjp", _rows(logits.dtype, targets.dtype)),
        (min(rows, _MOST_BLOCKS),),
        (_threads(vocabulary, logits.dtype.itemsize),),
        (
            logits, targets, lse, weight, dloss, np.int64(dloss.size > 1), np.int64(rows), np.int64(vocabulary),
            np.int64(ignore_index), np.float32(1.0 - label_smoothing), np.float32(label_smoothing / vocabulary),
            dlogits,
        ),
    )  # fmt: skip
    return dlogits


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    defines = _rows(BFLOAT16, INT64)
    return [Instance(_SOURCE, "cross_entropy_rows", defines), Instance(_SOURCE, "cross_entropy_vjp", defines)]
