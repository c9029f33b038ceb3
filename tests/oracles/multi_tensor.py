"""The delayed-scaling update of one tensor in Python numbers; scaling and norm of many tensors in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_F = np.float32
_LARGEST = float(np.finfo(np.float32).max)


def amax_history_update(
    history: list[float], scale: float, fp8_max: float, *, algorithm: str = "max", margin: int = 0
) -> tuple[list[float], float]:
    """(history, scale) after an update; the history holds the amax of this step first."""
    if history[0] == 0:
        return history, scale
    known = [h for h in history if not math.isnan(h)]
    amax = max(known, default=math.nan) if algorithm == "max" else history[0]
    if 0 < amax < math.inf:
        with np.errstate(over="ignore"):
            scale = min(float(_F(_F(fp8_max) * _F(2.0**-margin)) / _F(amax)), _LARGEST)
    rolled = [*history[1:], history[0]]  # history[1] was the oldest: its place is the one cleared next
    rolled[0] = 0.0
    return rolled, scale


def scale_tensors(xs: Sequence[np.ndarray], factor: float) -> tuple[list[np.ndarray], bool]:
    """(float64 products, whether anything is not finite)."""
    wide = [x.astype(np.float64) for x in xs]
    with np.errstate(all="ignore"):
        return [x * factor for x in wide], not all(np.isfinite(x).all() for x in wide)


def l2_norm(xs: Sequence[np.ndarray]) -> float:
    """The norm, summed exactly."""
    return math.sqrt(math.fsum(float(v) ** 2 for x in xs for v in x.astype(np.float64).reshape(-1)))
