"""CPU twin of `kernels.attention`: BLAS products and Numba softmax over tiles of queries.

Batch entries and groups of heads are spread over threads; each computes its tiles [queries, Lk] in order, so the
whole [B, H, Lq, Lk] never exists and the bits do not depend on the number of threads. Keys that the causal limit
hides from a whole tile are left out of its products.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.attention import Saved, Settings, no_windows, refuse_backend
from nvfp.kernels.cpu._exp import exp32
from nvfp.kernels.cpu._halves import narrow, widen
from nvfp.kernels.cpu._njit import njit
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.cpu._rows import row_sum
from nvfp.kernels.cpu._tiles import GRAIN
from nvfp.kernels.cpu.softmax import Mask, mask_rows, softmax_rows
from nvfp.kernels.dropout import dropout, dropout_vjp
from nvfp.kernels.softmax import Visible, visible

_FLOAT32 = np.dtype(np.float32)
_BLAS = 1 << 18  # up to this many products OpenBLAS stays on the calling thread; above, callers wait for each other
_MOST = 128  # queries of a tile


def reasons(q: Any, k: Any, v: Any, mask: Any | None, settings: Settings) -> dict[str, str | None]:
    """Return why each backend cannot do it here, None for one that can."""
    return {"cudnn": "the arrays are on the CPU", "composed": no_windows(settings)}


@njit
def _gradient_rows(
    s: np.ndarray, dp: np.ndarray, lse: np.ndarray, scale: np.float32, row: int, rows: int, first: int, more: int,
    mask: np.ndarray, starts: np.ndarray, step: int,
) -> None:  # fmt: skip
    """Scores to weights, and the gradient of the weights to that of the scores (without their scale), both in place."""
    columns = s.shape[1]
    scratch = np.empty(columns, np.float32)
    zero = np.float32(0)
    for t in range(s.shape[0]):
        p, d, low = s[t], dp[t], lse[t]
        seen = 0 if low == np.float32(-np.inf) else min(columns, max(0, first + (row + t) % rows * more))
        for c in range(seen):
            p[c] = exp32(p[c] * scale - low)
        if step >= 0:
            for c in range(seen):
                if mask[starts[t] + step * c]:
                    p[c] = zero
        mass = np.float32(row_sum(p[:seen]))  # a large lse is rounded by more than weights may err: divide it out
        if mass > zero:
            for c in range(seen):
                p[c] = p[c] / mass
        for c in range(seen):
            product = p[c] * d[c]
            scratch[c] = zero if p[c] == zero else product
        total = np.float32(row_sum(scratch[:seen]))
        for c in range(seen):
            value = p[c] * scale * (d[c] - total)
            d[c] = zero if p[c] == zero else value
        p[seen:] = zero
        d[seen:] = zero


class _Heads:
    """What the tiles of one attention share: lengths, the limit of each tile, the mask, the dropout's place."""

    def __init__(self, q: Any, k: Any, v: Any, mask: Any, settings: Settings, step: Any) -> None:
        self.batch, self.queries, self.heads, self.depth = q.shape
        _, self.keys, self.groups, self.values = v.shape
        self.share = self.heads // max(1, self.groups)
        self.settings, self.step = settings, step
        self.scale = np.float32(settings.scale)
        self.seen: Visible = visible(settings.causal, self.queries, self.keys)
        self.mask: Mask = mask_rows(mask, (self.batch, self.heads, self.queries, self.keys))
        products = max(1, self.keys * max(self.depth, self.values))
        scores = max(1, self.share * self.queries * self.keys)
        self.grain = max(1, GRAIN // scores)  # groups worth a thread
        self.tile = max(1, min(self.queries, _BLAS // products // 32 * 32 or _MOST, _MOST))

    def tiles(self) -> list[tuple[int, int, int]]:
        """(first query, behind the last, keys that at least one of them sees) of each tile that sees any."""
        found = []
        for a in range(0, self.queries, self.tile):
            b = min(a + self.tile, self.queries)
            most = max(0, min(self.keys, self.seen.first + (b - 1) * self.seen.step))
            # Dropout counts elements along whole rows.
            found.append((a, b, self.keys if most and self.settings.dropout else most))
        return found

    def place(self, b: int, h: int, first: int, last: int) -> tuple[Any, ...]:
        """The arguments of the row kernels behind lse."""
        starts = self.mask.starts
        if self.mask.step >= 0:
            at = (b * self.heads + h) * self.queries
            starts = starts[at + first : at + last]
        return self.scale, first, *self.seen, self.mask.flat, starts, self.mask.step

    def draw(self, b: int, h: int, first: int) -> dict[str, Any]:
        """The dropout's place of a tile that starts at a query."""
        s = self.settings
        offset = ((b * self.heads + h) * self.queries + first) * self.keys
        return {"p": s.dropout, "key": s.key, "ordinal": s.ordinal, "step": self.step, "offset": offset}


def _panel(x: np.ndarray, b: int, h: int) -> np.ndarray:
    """One head as a float32 matrix that BLAS takes."""
    part = x[b, :, h]
    down, along = part.strides
    if part.dtype == _FLOAT32 and along == 4 and down >= 4 * part.shape[1] and down % 4 == 0:
        return part
    return widen(part)


def _put(values: np.ndarray, out: np.ndarray) -> None:
    """Round float32 values into any 16-bit or float32 view."""
    if out.dtype == _FLOAT32:
        out[...] = values
    else:
        half = np.empty(values.shape, out.dtype)
        narrow(values, half)
        out[...] = half


def attention(q: Any, k: Any, v: Any, mask: Any | None, step: Any | None, settings: Settings) -> tuple[Any, Saved]:
    """See `nvfp.kernels.attention.attention`."""
    why = reasons(q, k, v, mask, settings)
    if why["composed"] is not None or settings.backend == "cudnn":
        raise refuse_backend(settings, why)
    used = None if step is None else step.copy()
    heads = _Heads(q, k, v, mask, settings, used)
    out = np.zeros((heads.batch, heads.queries, heads.heads, heads.values), q.dtype)
    lse = np.full((heads.batch, heads.heads, heads.queries), -np.inf, np.float32)

    def work(start: int, stop: int) -> None:
        scores = np.empty(heads.tile * heads.keys, np.float32)
        with np.errstate(all="ignore"):  # NaN and inf are values here
            for at in range(start, stop):
                b, g = divmod(at, heads.groups)
                keys, values = _panel(k, b, g), _panel(v, b, g)
                for h in range(g * heads.share, (g + 1) * heads.share):
                    _forward(heads, b, h, _panel(q, b, h), keys, values, scores, out[b, :, h], lse[b, h])

    if out.size or lse.size:
        run_chunks(work, heads.batch * heads.groups, heads.grain)
    return out, Saved(settings, "composed", mask, lse, used)


def _forward(
    heads: _Heads, b: int, h: int, q: np.ndarray, k: np.ndarray, v: np.ndarray, scores: np.ndarray, out: np.ndarray,
    lse: np.ndarray,
) -> None:  # fmt: skip
    for first, last, seen in heads.tiles():
        if not seen:
            continue
        s = scores[: (last - first) * seen].reshape(last - first, seen)
        np.matmul(q[first:last], k[:seen].T, out=s)
        softmax_rows(s, s, lse[first:last], *heads.place(b, h, first, last))
        if heads.settings.dropout:
            dropout(s, out=s, **heads.draw(b, h, first))
        _put(np.matmul(s, v[:seen]), out[first:last])


def attention_vjp(dout: Any, q: Any, k: Any, v: Any, out: Any, saved: Saved) -> tuple[Any, Any, Any]:
    """See `nvfp.kernels.attention.attention_vjp`."""
    heads = _Heads(q, k, v, saved.mask, saved.settings, saved.used)
    dq, dk, dv = (np.zeros(x.shape, x.dtype) for x in (q, k, v))

    def work(start: int, stop: int) -> None:
        size = heads.tile * heads.keys
        scratch = np.empty(size, np.float32), np.empty(size, np.float32)
        with np.errstate(all="ignore"):
            for at in range(start, stop):
                b, g = divmod(at, heads.groups)
                keys, values = _panel(k, b, g), _panel(v, b, g)
                sums = np.zeros(keys.shape, np.float32), np.zeros(values.shape, np.float32)
                for h in range(g * heads.share, (g + 1) * heads.share):
                    panels = _panel(q, b, h), keys, values, _panel(dout, b, h)
                    _backward(heads, b, h, panels, scratch, dq[b, :, h], sums, saved.stats[b, h])
                _put(sums[0], dk[b, :, g])
                _put(sums[1], dv[b, :, g])

    run_chunks(work, heads.batch * heads.groups, heads.grain)
    return dq, dk, dv


def _backward(
    heads: _Heads, b: int, h: int, panels: tuple[np.ndarray, ...], scratch: tuple[np.ndarray, np.ndarray],
    dq: np.ndarray, sums: tuple[np.ndarray, np.ndarray], lse: np.ndarray,
) -> None:  # fmt: skip
    q, k, v, dout = panels
    for first, last, seen in heads.tiles():
        if not seen:
            continue
        rows = last - first
        p, ds = (part[: rows * seen].reshape(rows, seen) for part in scratch)
        np.matmul(q[first:last], k[:seen].T, out=p)
        np.matmul(dout[first:last], v[:seen].T, out=ds)
        factors = None
        if heads.settings.dropout:  # one draw for both: 0 or 1 / (1 - p)
            factors = dropout_vjp(np.ones_like(ds), **heads.draw(b, h, first))
            ds *= factors
        _gradient_rows(p, ds, lse[first:last], *heads.place(b, h, first, last))
        if factors is not None:
            p *= factors
        _put(np.matmul(ds, k[:seen]), dq[first:last])
        sums[0][:seen] += np.matmul(ds.T, q[first:last])
        sums[1][:seen] += np.matmul(p.T, dout[first:last])
