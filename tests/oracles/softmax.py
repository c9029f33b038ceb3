"""Scaled, masked and causal softmax and its gradient in float64, row by row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def hidden(shape: tuple[int, ...], mask: npt.ArrayLike | None = None, causal: str | None = None) -> np.ndarray:
    """True where a score [..., R, C] is masked out."""
    found = np.zeros(shape, bool)
    if mask is not None:
        found |= np.asarray(mask)
    if causal is not None:
        r, c = np.ogrid[: shape[-2], : shape[-1]]
        found |= c > (r if causal == "top_left" else r + shape[-1] - shape[-2])
    return found


def softmax(
    x: npt.ArrayLike, scale: float = 1.0, mask: npt.ArrayLike | None = None, causal: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """y and log-sum-exp; a row that sees nothing is 0 and -inf."""
    values = np.asarray(x).astype(np.float64) * scale
    off = hidden(values.shape, mask, causal)
    y, lse = np.zeros(values.shape), np.full(values.shape[:-1], -np.inf)
    for at in np.ndindex(values.shape[:-1]):
        seen = values[at][~off[at]]
        if seen.size and not (seen == -np.inf).all():
            top = seen.max()
            lse[at] = top + np.log(np.exp(seen - top).sum())
            y[at][~off[at]] = np.exp(seen - lse[at])
    return y, lse


def softmax_vjp(y: npt.ArrayLike, dy: npt.ArrayLike, scale: float = 1.0) -> np.ndarray:
    """scale y (dy - sum y dy)."""
    p, d = np.asarray(y).astype(np.float64), np.asarray(dy).astype(np.float64)
    return scale * p * (d - (p * d).sum(-1, keepdims=True))
