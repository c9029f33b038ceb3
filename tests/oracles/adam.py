"""Adam in float64, as Kingma and Ba and Loshchilov and Hutter write it."""

from __future__ import annotations

import numpy as np

State = tuple[np.ndarray, np.ndarray, np.ndarray]


def adam(state: State, grad: np.ndarray, step: int, hyper: tuple[float, ...], mode: str = "adamw") -> State:
    """(p, m, v) after step number ``step`` (from 1); hyper = lr, beta1, beta2, eps, weight decay."""
    p, m, v = (x.astype(np.float64) for x in state)
    lr, b1, b2, eps, decay = hyper
    g = grad.astype(np.float64) + (decay * p if mode == "adam_l2" else 0)
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    u = m / (1 - b1**step) / (np.sqrt(v / (1 - b2**step)) + eps)
    return p - lr * (u + (decay * p if mode == "adamw" else 0)), m, v
