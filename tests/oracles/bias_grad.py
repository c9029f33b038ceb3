"""Column sums in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def bias_grad(dy: npt.ArrayLike) -> np.ndarray:
    """The sum over all axes but the last."""
    dy = np.asarray(dy).astype(np.float64)
    return np.asarray(dy.reshape(-1, dy.shape[-1]).sum(0)) if dy.size else np.zeros(dy.shape[-1])
