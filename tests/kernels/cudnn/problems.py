"""Attention problems and their float64 reference, written for these tests alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Expected:
    """Values in float64, and what one unit of error means for each: sums of magnitudes."""

    out: np.ndarray
    grads: tuple[np.ndarray, ...]
    out_scale: np.ndarray
    grad_scales: tuple[np.ndarray, ...]


def visible(
    queries: int, keys: int, mask_type: str, window: tuple[int, int] | None = None, mask: Any = None
) -> np.ndarray:
    """Which key each query sees, bool, broadcastable to [B, H, Lq, Lk]."""
    i, j = np.ogrid[:queries, :keys]
    if mask_type not in ("causal", "padding_causal"):
        i = i + keys - queries
    left, right = window or (-1, -1)
    right = 0 if "causal" in mask_type else right
    seen = np.ones((queries, keys), bool)
    if left >= 0:
        seen &= j >= i - left
    if right >= 0:
        seen &= j <= i + right
    return seen if mask is None else seen & ~np.asarray(mask)


def weights(q: np.ndarray, k: np.ndarray, scale: float, seen: np.ndarray) -> np.ndarray:
    """Softmax of the scores [B, H, Lq, Lk]; a row that sees nothing is 0. Heads first."""
    s = np.where(seen, scale * q @ k.swapaxes(2, 3), -np.inf)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isfinite(top), top, 0.0))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total > 0, total, 1.0)


def expected(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    dout: np.ndarray,
    seen: np.ndarray,
    scale: float | None = None,
    keep: np.ndarray | float = 1.0,
) -> Expected:
    """O, its gradients and their scales of [B, L, H, D] operands; ``keep`` multiplies the weights (dropout)."""
    heads, groups = q.shape[2], k.shape[2]
    share = heads // groups
    qh, kh, vh, do = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v, dout))
    kh, vh = np.repeat(kh, share, 1), np.repeat(vh, share, 1)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    p = weights(qh, kh, scale, seen)
    dropped = p * keep
    o = dropped @ vh
    d = (do * o).sum(-1, keepdims=True)
    ds = scale * p * (keep * (do @ vh.swapaxes(2, 3)) - d)
    size = scale * p * (keep * (abs(do) @ abs(vh).swapaxes(2, 3)) + (abs(do) * abs(o)).sum(-1, keepdims=True))

    def back(x: np.ndarray) -> np.ndarray:
        return x.transpose(0, 2, 1, 3)

    def grouped(x: np.ndarray) -> np.ndarray:
        b, _, n, depth = x.shape
        return back(x.reshape(b, groups, share, n, depth).sum(2))

    return Expected(
        back(o),
        (back(ds @ kh), grouped(ds.swapaxes(2, 3) @ qh), grouped(dropped.swapaxes(2, 3) @ do)),
        back(dropped @ abs(vh)),
        (back(size @ abs(kh)), grouped(size.swapaxes(2, 3) @ abs(qh)), grouped(dropped.swapaxes(2, 3) @ abs(do))),
    )
