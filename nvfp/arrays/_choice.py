"""A weighted draw without repeats, for `Generator.choice`."""

from __future__ import annotations

import math

import numpy as np

from nvfp.errors import ArgumentError, message


def first_arrivals(u: np.ndarray, p: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The elements that arrive first when each waits an exponential time of rate p: a weighted draw without repeats."""
    need, possible = math.prod(shape), int(np.count_nonzero(p))
    if need > possible:
        got = f"{need} of {possible} with a probability above 0"
        raise ArgumentError(message("choice", "no more elements than there are", got, "pass replace=True"))
    with np.errstate(divide="ignore"):
        times = -np.log1p(-u) / p
    times[p == 0] = np.inf
    return np.argsort(times, kind="stable")[:need].reshape(shape)
