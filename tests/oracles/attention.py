"""Attention and its gradients in float64, head by head, with the dropout factors given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.oracles import softmax


def hidden(shape: tuple[int, ...], mask_type: str, mask: Any = None) -> np.ndarray:
    """True where query i does not see key j, for ``shape`` [B, H, Lq, Lk]."""
    found = np.zeros(shape, bool)
    ahead = np.zeros(shape[0], int)  # of the bottom right corner
    if isinstance(mask, tuple):
        queries, keys = (np.asarray(m) for m in mask)
        found |= queries.swapaxes(-1, -2) | keys
        ahead += (~keys).sum((1, 2, 3)) - (~queries).sum((1, 2, 3))
    else:
        ahead += shape[3] - shape[2]
        if mask is not None:
            found |= np.asarray(mask)
    if "causal" in mask_type:
        i, j = np.ogrid[: shape[2], : shape[3]]
        last = i + (ahead[:, None, None, None] if "bottom_right" in mask_type else 0)
        found |= j > last
    return found


def _heads(x: npt.ArrayLike, heads: int) -> np.ndarray:
    """[B, L, G, D] as float64 [B, H, L, D], groups repeated."""
    a = np.asarray(x).astype(np.float64).transpose(0, 2, 1, 3)
    return np.repeat(a, heads // max(1, a.shape[1]), axis=1)


def _summed(x: np.ndarray, groups: int) -> np.ndarray:
    """[B, H, L, D] as [B, L, G, D], summed over the heads of a group."""
    batch, heads, length, depth = x.shape
    return x.reshape(batch, groups, heads // max(1, groups), length, depth).sum(2).transpose(0, 2, 1, 3)


def weights(q: npt.ArrayLike, k: npt.ArrayLike, off: np.ndarray, scale: float) -> np.ndarray:
    """softmax(scale q k^T), [B, H, Lq, Lk]."""
    heads = np.shape(q)[2]
    scores = _heads(q, heads) @ _heads(k, heads).swapaxes(-1, -2)
    return softmax.softmax(scores, scale, off)[0]


def attention(
    q: npt.ArrayLike, k: npt.ArrayLike, v: npt.ArrayLike, off: np.ndarray, scale: float, factors: Any = 1.0
) -> np.ndarray:
    """[B, Lq, H, Dv]; ``factors`` multiply the weights (0 or 1 / (1 - p))."""
    heads = np.shape(q)[2]
    return ((weights(q, k, off, scale) * factors) @ _heads(v, heads)).transpose(0, 2, 1, 3)


def attention_vjp(
    dout: npt.ArrayLike, q: npt.ArrayLike, k: npt.ArrayLike, v: npt.ArrayLike, off: np.ndarray, scale: float,
    factors: Any = 1.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """dq, dk and dv."""
    heads, groups = np.shape(q)[2], np.shape(k)[2]
    p, d = weights(q, k, off, scale), _heads(dout, heads)
    q4, k4, v4 = (_heads(x, heads) for x in (q, k, v))
    ds = softmax.softmax_vjp(p, factors * (d @ v4.swapaxes(-1, -2)), scale)
    found = ds @ k4, ds.swapaxes(-1, -2) @ q4, (p * factors).swapaxes(-1, -2) @ d

    return found[0].transpose(0, 2, 1, 3), _summed(found[1], groups), _summed(found[2], groups)


def magnitudes(
    dout: npt.ArrayLike, q: npt.ArrayLike, k: npt.ArrayLike, v: npt.ArrayLike, off: np.ndarray, scale: float,
    factors: Any = 1.0,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """What the sums of out, dq, dk and dv add up in magnitude: the scale in which roundings in between err."""
    a = [np.abs(np.asarray(x).astype(np.float64)) for x in (dout, q, k, v)]
    heads, groups = np.shape(q)[2], np.shape(k)[2]
    p, d = weights(q, k, off, scale), _heads(a[0], heads)
    q4, k4, v4 = (_heads(x, heads) for x in a[1:])
    dp = d @ v4.swapaxes(-1, -2) * factors
    ds = abs(scale) * p * (dp + (p * dp).sum(-1, keepdims=True))

    found = ((p * factors) @ v4).transpose(0, 2, 1, 3), (ds @ k4).transpose(0, 2, 1, 3)
    return *found, _summed(ds.swapaxes(-1, -2) @ q4, groups), _summed((p * factors).swapaxes(-1, -2) @ d, groups)


def band(shape: tuple[int, ...], window: tuple[int, int], ahead: Any = 0) -> np.ndarray:
    """True where key j lies outside of a window around the diagonal ``j = i + ahead``; ahead is one for all or [B]."""
    far, (left, right) = distances(shape, ahead), window
    found = np.zeros(far.shape, bool)
    if left >= 0:
        found |= far < -left
    if right >= 0:
        found |= far > right
    return np.broadcast_to(found, shape)


def distances(shape: tuple[int, ...], ahead: Any = 0) -> np.ndarray:
    """How far key j lies to the right of the diagonal ``j = i + ahead``, [1 or B, 1, Lq, Lk]."""
    i, j = np.ogrid[: shape[2], : shape[3]]
    return j - i - np.asarray(ahead).reshape(-1, 1, 1, 1)


def padding(shape: tuple[int, ...], lengths: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """The pair of padding masks of entries with ``lengths`` [2, B] queries and keys."""
    queries, keys = np.asarray(lengths)
    return (
        (np.arange(shape[2]) >= queries[:, None])[:, None, None, :],
        (np.arange(shape[3]) >= keys[:, None])[:, None, None, :],
    )


@dataclass(frozen=True)
class Whole:
    """Result, gradients and the largest score of each head; ``sizes`` are the sums of magnitudes behind the arrays."""

    arrays: dict[str, np.ndarray]
    sizes: dict[str, np.ndarray]
    top: np.ndarray


def whole(
    arrays: Any, off: np.ndarray, scale: float, factors: Any = 1.0, *, pre: Any = 0.0, post: Any = 0.0,
    cap: float = 0.0, sink: Any = None,
) -> Whole:  # fmt: skip
    """Attention of q, k, v (and its gradients for dout): softmax of ``cap(scale (q k^T + pre)) + post``.

    ``sink`` [H] is the logarithm of what joins each sum of exponentials. Gradients of pre and post are of the full
    shape [B, H, Lq, Lk].
    """
    q, k, v, dout = arrays
    heads, groups = np.shape(q)[2], np.shape(k)[2]
    q4, k4, v4, d = (_heads(x, heads) for x in (q, k, v, dout))
    t = scale * (q4 @ k4.swapaxes(-1, -2) + pre)
    bend = 1 - np.tanh(t / cap) ** 2 if cap else 1.0
    s = np.where(off, -np.inf, (cap * np.tanh(t / cap) if cap else t) + post)
    rest = np.full(heads, -np.inf) if sink is None else np.asarray(sink, np.float64)
    rest = np.broadcast_to(rest[:, None], s.shape[:3])[..., None]
    p = softmax.softmax(np.concatenate([s, rest], -1))[0]
    p, lost = p[..., :-1], p[..., -1:]
    dp, size = factors * (d @ v4.swapaxes(-1, -2)), factors * (abs(d) @ abs(v4).swapaxes(-1, -2))
    found, sizes = {}, {}
    for into, g, (a, b, c, e) in ((found, dp, (q4, k4, v4, d)), (sizes, size, map(abs, (q4, k4, v4, d)))):
        total = (p * g).sum(-1, keepdims=True)
        ds = p * (g - total if into is found else g + total)
        # 1 - tanh^2 errs by a rounding of 1, not of itself.
        dt = ds * (bend + (2**-6 if cap else 0)) * abs(scale) if into is sizes else ds * bend * scale
        into["out"] = ((p * factors) @ c).transpose(0, 2, 1, 3)
        into["q"] = (dt @ b).transpose(0, 2, 1, 3)
        into["k"] = _summed(dt.swapaxes(-1, -2) @ a, groups)
        into["v"] = _summed((p * factors).swapaxes(-1, -2) @ e, groups)
        into["pre"], into["post"] = dt, ds
        into["sink"] = (lost * total).sum((0, 2, 3)) * (-1 if into is found else 1)
    return Whole(found, sizes, s.max((0, 2, 3), initial=-np.inf))
