"""Stochastic gradient descent in float64, with momentum as torch.optim.SGD documents it."""

from __future__ import annotations

import numpy as np

State = tuple[np.ndarray, np.ndarray | None]


def sgd(state: State, grad: np.ndarray, step: int, hyper: tuple[float, ...], nesterov: bool = False) -> State:
    """(p, b) after step number ``step`` (from 1); hyper = lr, momentum, dampening, weight decay."""
    lr, momentum, dampening, decay = hyper
    p = state[0].astype(np.float64)
    u = g = grad.astype(np.float64) + decay * p
    b = None
    if state[1] is not None:
        b = g if step == 1 else momentum * state[1].astype(np.float64) + (1 - dampening) * g
        u = g + momentum * b if nesterov else b
    return p - lr * u, b
