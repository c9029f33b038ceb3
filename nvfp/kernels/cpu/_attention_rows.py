"""Row kernels of attention on the CPU: from products to scores, and from gradients of weights to those of scores."""

from __future__ import annotations

import math

import numpy as np

from nvfp.kernels.cpu._exp import exp32
from nvfp.kernels.cpu._njit import njit
from nvfp.kernels.cpu._rows import row_sum

PRE, POST = 1, 2


@njit
def score_rows(
    s: np.ndarray, bend: np.ndarray, scale: np.float32, cap: np.float32, bias: np.ndarray, place: int,
    slope: np.float32, left: int, far: int,
) -> None:  # fmt: skip
    """Products q k^T [n, C] to scores in place: scale, softcap, bias, ALiBi, and -inf left of the window.

    ``bend`` [n, C] takes the derivative of the softcap, if it has room; ``bias`` [n, C] is added before the scale
    (``place`` 1) or behind the cap (2); key c lies ``far + c - t`` right of the diagonal of row t; ``left`` -1: no
    window.
    """
    for t in range(s.shape[0]):
        row = s[t]
        if place == PRE:
            for c in range(row.size):
                row[c] = row[c] + bias[t, c]
        for c in range(row.size):
            row[c] = row[c] * scale
        if cap > np.float32(0):
            for c in range(row.size):
                u = np.float32(math.tanh(row[c] / cap))
                row[c] = cap * u
                if bend.size:
                    bend[t, c] = np.float32(1) - u * u
        if place == POST:
            for c in range(row.size):
                row[c] = row[c] + bias[t, c]
        if slope != np.float32(0):
            for c in range(row.size):
                row[c] = row[c] - slope * np.float32(abs(far + c - t))
        if left >= 0:
            for c in range(min(row.size, t - far - left)):
                row[c] = np.float32(-np.inf)


@njit
def gradient_rows(
    s: np.ndarray, dp: np.ndarray, lse: np.ndarray, scale: np.float32, row: int, rows: int, first: int, more: int,
    mask: np.ndarray, starts: np.ndarray, step: int, sinks: np.ndarray, spent: np.ndarray,
) -> None:  # fmt: skip
    """Scores to weights, and the gradient of the weights to that of the scores (with their scale), both in place.

    ``spent``, if it has room, takes the part of each row in the gradient of its sink.
    """
    columns = s.shape[1]
    scratch = np.empty(columns, np.float32)
    zero = np.float32(0)
    for t in range(s.shape[0]):
        p, d, low = s[t], dp[t], lse[t]
        seen = 0 if low == np.float32(-np.inf) else min(columns, max(0, first + (row + t) % rows * more))
        for c in range(seen):
            p[c] = exp32(p[c] * scale - low)
        if step >= 0:
            for c in range(seen):
                if mask[starts[t] + step * c]:
                    p[c] = zero
        # A large lse is rounded by more than weights may err: divide their sum out.
        lost = exp32(sinks[0] - low) if sinks[0] > np.float32(-np.inf) else zero
        mass = np.float32(row_sum(p[:seen]) + lost)
        if mass > zero:
            for c in range(seen):
                p[c] = p[c] / mass
        for c in range(seen):
            product = p[c] * d[c]
            scratch[c] = zero if p[c] == zero else product
        total = np.float32(row_sum(scratch[:seen]))
        if spent.size:
            spent[t] = -(lost / mass) * total if lost > zero else zero
        for c in range(seen):
            value = p[c] * scale * (d[c] - total)
            d[c] = zero if p[c] == zero else value
        p[seen:] = zero
        d[seen:] = zero
