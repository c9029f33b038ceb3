"""CPU twin of `kernels.multi_tensor`: the arrays are tiny, so this is NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_LARGEST = np.finfo(np.float32).max


def amax_history_update(
    histories: Sequence[Any],
    scales: Sequence[Any],
    fp8_max: Sequence[tuple[float, ...]],
    *,
    algorithm: str = "max",
    margin: int = 0,
) -> None:
    """See `nvfp.kernels.multi_tensor.amax_history_update`."""
    factor = 2.0**-margin
    with np.errstate(all="ignore"):
        for history, scale, top in zip(histories, scales, fp8_max):
            _update(history, scale, (np.asarray(top, np.float32) * factor).astype(np.float32), algorithm)


def _update(history: np.ndarray, scale: np.ndarray, top: np.ndarray, algorithm: str) -> None:
    ran = history[0] != 0
    amax = np.fmax.reduce(history, axis=0) if algorithm == "max" else history[0]
    usable = ran & (amax > 0) & np.isfinite(amax)
    np.copyto(scale, np.minimum(top / amax, _LARGEST), where=usable)
    newest = history[0].copy()
    np.copyto(history[:-1], history[1:], where=ran)  # NumPy copies overlapping views as if at once
    np.copyto(history[-1], newest, where=ran)
    np.copyto(history[0], 0, where=ran)
