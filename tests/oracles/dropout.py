"""Dropout element by element with Python integers, and float64 values."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from tests.oracles.random import word


def keeps(n: int, p: float, key: int, ordinal: int, step: int, offset: int = 0) -> np.ndarray:
    """Which of n elements stay; exact."""
    words = (word(offset + i, key, ordinal, lane=2, step=step % 2**32) for i in range(n))
    return np.array([Fraction(w >> 8, 2**24) >= Fraction(p) for w in words], bool)


def dropout(x: npt.ArrayLike, keep: np.ndarray, p: float) -> np.ndarray:
    """x / (1 - p) where kept, else 0."""
    values = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        return np.where(keep.reshape(values.shape), values / (1 - p), 0.0)
