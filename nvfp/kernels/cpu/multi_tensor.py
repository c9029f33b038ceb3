"""CPU twin of `kernels.multi_tensor`: the arrays are tiny, so this is NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nvfp.kernels.cpu._halves import narrow, widen
from nvfp.kernels.multi_tensor import PIECE

_LARGEST = np.finfo(np.float32).max


def prepare_amax_history_update(
    histories: Sequence[Any],
    scales: Sequence[Any],
    fp8_max: Sequence[tuple[float, ...]],
    *,
    algorithm: str = "max",
    margin: int = 0,
) -> Callable[[], None]:
    """See `nvfp.kernels.multi_tensor.prepare_amax_history_update`."""
    factor = 2.0**-margin
    with np.errstate(all="ignore"):
        tops = [(np.asarray(top, np.float32) * factor).astype(np.float32) for top in fp8_max]
    state = list(zip(histories, scales, tops))

    def update() -> None:
        with np.errstate(all="ignore"):
            for history, scale, top in state:
                _update(history, scale, top, algorithm)

    return update


def _update(history: np.ndarray, scale: np.ndarray, top: np.ndarray, algorithm: str) -> None:
    ran = history[0] != 0
    amax = np.fmax.reduce(history, axis=0) if algorithm == "max" else history[0]
    usable = ran & (amax > 0) & np.isfinite(amax)
    np.copyto(scale, np.minimum(top / amax, _LARGEST), where=usable)
    newest = history[0].copy()
    np.copyto(history[:-1], history[1:], where=ran)  # NumPy copies overlapping views as if at once
    np.copyto(history[-1], newest, where=ran)
    np.copyto(history[0], 0, where=ran)


def scale_tensors(
    xs: Sequence[Any], factor: Any, *, outs: Sequence[Any] | None = None, nonfinite: Any | None = None
) -> list[Any]:
    """See `nvfp.kernels.multi_tensor.scale_tensors`."""
    results = [np.empty(x.shape, x.dtype) for x in xs] if outs is None else list(outs)
    with np.errstate(all="ignore"):
        for x, out in zip(xs, results):
            for flat, target in _pieces(x, out):
                wide = widen(flat)
                if nonfinite is not None and not np.isfinite(wide).all():
                    nonfinite[...] = 1
                narrow(wide * factor, target)
    return results


def l2_norm(xs: Sequence[Any], *, like: Any | None = None) -> Any:
    """See `nvfp.kernels.multi_tensor.l2_norm`."""
    with np.errstate(all="ignore"):
        sums = [np.float64(np.square(widen(piece)).sum(dtype=np.float32)) for x in xs for piece, _ in _pieces(x, x)]
        return np.asarray(np.sqrt(np.sum(sums, dtype=np.float64)), np.float32).reshape(())


def _pieces(x: np.ndarray, out: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The pieces of two contiguous arrays of one shape, as views."""
    flat, target = x.reshape(-1), out.reshape(-1)
    return [(flat[i : i + PIECE], target[i : i + PIECE]) for i in range(0, flat.size, PIECE)]
