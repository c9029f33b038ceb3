"""Cross-entropy and its gradient in float64, row by row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def _rows(logits: npt.ArrayLike, targets: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    x = np.asarray(logits).astype(np.float64)
    return x.reshape(-1, x.shape[-1]), np.asarray(targets).reshape(-1)


def log_sum_exp(logits: npt.ArrayLike) -> np.ndarray:
    """log sum exp over the last axis."""
    x = np.asarray(logits).astype(np.float64)
    top = x.max(-1)
    return top + np.log(np.exp(x - top[..., None]).sum(-1))


def losses(
    logits: npt.ArrayLike, targets: npt.ArrayLike, ignore_index: int = -100, smoothing: float = 0.0
) -> np.ndarray:
    """The loss of each row, 0 where the target is ignored."""
    x, ids = _rows(logits, targets)
    result = np.zeros(len(ids))
    for t, target in enumerate(ids):
        if target != ignore_index:
            minus_log_p = log_sum_exp(x[t]) - x[t]
            wanted = np.full(x.shape[1], smoothing / x.shape[1])
            wanted[target] += 1 - smoothing
            result[t] = sum(w * m for w, m in zip(wanted, minus_log_p) if w)  # 0 * inf is no loss
    return result.reshape(np.shape(targets))


def cross_entropy(
    logits: npt.ArrayLike,
    targets: npt.ArrayLike,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> np.ndarray:
    """The loss; 0 if every target is ignored."""
    each = losses(logits, targets, ignore_index, label_smoothing)
    if reduction == "none":
        return each
    valid = int((np.asarray(targets) != ignore_index).sum())
    return np.asarray(each.sum() / (max(valid, 1) if reduction == "mean" else 1))


def cross_entropy_vjp(
    logits: npt.ArrayLike,
    targets: npt.ArrayLike,
    dloss: npt.ArrayLike,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> np.ndarray:
    """The gradient for the logits; dloss is one number, or one per row for ``"none"``."""
    x, ids = _rows(logits, targets)
    valid = ids != ignore_index
    weight = 1 / max(int(valid.sum()), 1) if reduction == "mean" else 1.0
    each = np.broadcast_to(np.asarray(dloss, np.float64).reshape(-1), ids.shape)
    dx = np.zeros_like(x)
    for t in np.flatnonzero(valid):
        dx[t] = np.exp(x[t] - log_sum_exp(x[t])) - label_smoothing / x.shape[1]
        dx[t, ids[t]] -= 1 - label_smoothing
        dx[t] *= each[t] * weight
    return dx.reshape(np.shape(logits))
