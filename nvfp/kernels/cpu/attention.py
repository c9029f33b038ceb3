"""CPU twin of `kernels.attention`: BLAS products and Numba softmax over tiles of queries.

Batch entries and groups of heads are spread over threads; each computes its tiles [queries, keys] in order, so the
whole [B, H, Lq, Lk] never exists and the bits do not depend on the number of threads. Keys that the diagonal, the
window or the length of an entry hides from a whole tile are left out of its products. Only the gradient of a bias
holds the scores of one batch entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nvfp.kernels._attention import NO_TERMS, Gradients, Saved, Settings, Terms
from nvfp.kernels._attention_check import refuse_backend
from nvfp.kernels.cpu._attention_rows import POST, PRE, gradient_rows, score_rows
from nvfp.kernels.cpu._halves import narrow, widen
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.cpu._tiles import GRAIN
from nvfp.kernels.cpu.softmax import Mask, mask_rows, sinks_of, softmax_rows
from nvfp.kernels.dropout import dropout

_FLOAT32 = np.dtype(np.float32)
_BLAS = 1 << 18  # up to this many products OpenBLAS stays on the calling thread; above, callers wait for each other
_MOST = 128  # queries of a tile
_PLACES = {"pre_scale_bias": PRE, "post_scale_bias": POST}
_NONE = np.zeros((0, 0), np.float32)
_Place = tuple[np.float32, int, int, int, int, np.ndarray, np.ndarray, int, np.ndarray]


def reasons(
    q: Any, k: Any, v: Any, mask: Any | None, settings: Settings, terms: Terms = NO_TERMS
) -> dict[str, str | None]:
    """Return why each backend cannot do it here, None for one that can."""
    return {"cudnn": "the arrays are on the CPU", "composed": None}


class _Tile(NamedTuple):
    """Queries ``first`` to ``last`` of a head of an entry, and the keys ``low`` to ``seen`` that some of them see."""

    b: int
    h: int
    first: int
    last: int
    low: int
    seen: int

    @property
    def rows(self) -> int:
        return self.last - self.first

    def within(self, buffer: np.ndarray) -> np.ndarray:
        """Room for the tile in a flat buffer."""
        columns = self.seen - self.low
        return buffer[: self.rows * columns].reshape(self.rows, columns)


class _Heads:
    """What the tiles of one attention share: lengths, the limits of each tile, the mask, the dropout's place."""

    def __init__(self, q: Any, k: Any, v: Any, mask: Any, settings: Settings, step: Any, terms: Terms) -> None:
        self.heads, self.depth = q.shape[-2:]
        self.groups, self.values = v.shape[-2:]
        self.share = self.heads // max(1, self.groups)
        self.settings, self.step, self.terms = settings, step, terms
        self._measure(q, k)
        self.scored = settings.bends or settings.band[0] >= 0
        self.scale = np.float32(1.0 if self.scored else settings.scale)
        self.mask: Mask = mask_rows(mask, (self.batch, self.heads, self.queries, self.keys))
        self.sinks = sinks_of(terms.sink)
        products = max(1, self.keys * max(self.depth, self.values))
        scores = max(1, self.share * self.queries * self.keys)
        self.grain = max(1, GRAIN // scores)  # groups worth a thread
        self.tile = max(1, min(self.queries, _BLAS // products // 32 * 32 or _MOST, _MOST))

    def _measure(self, q: Any, k: Any) -> None:
        """Rows of each entry, where they start, and the corner of its diagonal."""
        lengths = self.terms.lengths
        if lengths is None:
            self.batch, (self.queries, self.keys) = q.shape[0], (q.shape[1], k.shape[1])
            self.ends = [(self.queries, self.keys)] * self.batch
        else:
            self.batch = lengths.queries.shape[0]
            most = lengths.most if lengths.q_starts is not None else (q.shape[1], k.shape[1])
            self.queries, self.keys = most
            sides = zip(most, (lengths.queries, lengths.keys), strict=True)
            clipped = [np.clip(x, 0, n).tolist() for n, x in sides]
            self.ends = list(zip(*clipped, strict=True))
        if self.settings.corner == "top_left":
            self.ahead = [0] * self.batch
        else:
            ahead = self.terms.ahead
            self.ahead = [self.keys - self.queries] * self.batch if ahead is None else ahead.tolist()

    def entry(self, x: Any, b: int, side: int) -> Any:
        """The rows [L, H, D] of one entry; side 0: queries, 1: keys."""
        lengths, n = self.terms.lengths, self.ends[b][side]
        if lengths is None or lengths.q_starts is None:
            return x[b, :n]
        starts = lengths.k_starts if side else lengths.q_starts
        start = int(starts[b])  # type: ignore[index]
        return x[start : start + n]

    def limit(self, b: int) -> tuple[int, int]:
        """Keys that query 0 of an entry sees, and how many more each further one."""
        right = self.settings.band[1]
        return (self.ends[b][1], 0) if right < 0 else (1 + self.ahead[b] + right, 1)

    def tiles(self, b: int, h: int) -> list[_Tile]:
        """The tiles of a head that see any key."""
        found, (queries, keys), left, (few, more) = [], self.ends[b], self.settings.band[0], self.limit(b)
        for first in range(0, queries, self.tile):
            last = min(first + self.tile, queries)
            seen = min(keys, few + (last - 1) * more)
            low = 0 if left < 0 else max(0, first + self.ahead[b] - left)
            if seen > low:
                found.append(_Tile(b, h, first, last, low, seen))
        return found

    def place(self, tile: _Tile) -> _Place:
        """The arguments of the row kernels behind lse, up to the sinks."""
        starts, step = self.mask.starts, self.mask.step
        if step >= 0:
            at = (tile.b * self.heads + tile.h) * self.queries
            starts = starts[at + tile.first : at + tile.last] + step * tile.low
        few, more = self.limit(tile.b)
        sinks = self.sinks[tile.h : tile.h + 1] if self.sinks.size > 1 else self.sinks
        return self.scale, tile.first, max(1, self.queries), few - tile.low, more, self.mask.flat, starts, step, sinks

    def score(self, s: np.ndarray, tile: _Tile, bend: np.ndarray = _NONE) -> None:
        """Products to scores in place, where they are more than scaled and masked products."""
        if not self.scored:
            return
        settings, terms, bias = self.settings, self.terms, _NONE
        if terms.bias is not None:
            at = (tile.b if terms.bias.shape[0] > 1 else 0, tile.h if terms.bias.shape[1] > 1 else 0)
            bias = np.ascontiguousarray(widen(terms.bias[at][tile.first : tile.last, tile.low : tile.seen]))
        slope = 0.0
        if terms.slopes is not None:
            slope = terms.slopes[tile.h] if terms.slopes.ndim == 1 else terms.slopes[tile.b, tile.h]
        score_rows(
            s, bend, np.float32(settings.scale), np.float32(settings.softcap), bias,
            _PLACES.get(settings.bias_type, 0), np.float32(slope), settings.band[0],
            tile.low - tile.first - self.ahead[tile.b],
        )  # fmt: skip

    def factors(self, tile: _Tile) -> np.ndarray | None:
        """0 or 1 / (1 - p) for each weight of a tile, None without dropout."""
        s = self.settings
        if not s.dropout:
            return None
        offset = ((tile.b * self.heads + tile.h) * self.queries + tile.first) * self.keys
        ones = np.ones((tile.rows, self.keys), np.float32)
        drawn, _ = dropout(ones, s.dropout, key=s.key, ordinal=s.ordinal, step=self.step, offset=offset, out=ones)
        factors: np.ndarray = drawn[:, tile.low : tile.seen]
        return factors

    def over(self, work: Callable[[int, int], None], batch: range | None = None) -> None:
        """Call ``work(start, stop)`` for the groups of heads of some entries, all unless given."""
        entries = range(self.batch) if batch is None else batch
        start = entries.start * self.groups
        run_chunks(lambda a, b: work(start + a, start + b), len(entries) * self.groups, self.grain)


def _panel(x: np.ndarray) -> np.ndarray:
    """One head as a float32 matrix that BLAS takes."""
    down, along = x.strides
    if x.dtype == _FLOAT32 and along == 4 and down >= 4 * x.shape[1] and down % 4 == 0:
        return x
    return widen(x)


def _put(values: np.ndarray, out: np.ndarray) -> None:
    """Round float32 values into any 16-bit or float32 view."""
    if out.dtype == _FLOAT32:
        out[...] = values
    else:
        half = np.empty(values.shape, out.dtype)
        narrow(values, half)
        out[...] = half


def attention(
    q: Any, k: Any, v: Any, mask: Any | None, step: Any | None, settings: Settings, terms: Terms = NO_TERMS
) -> tuple[Any, Saved]:
    """See `nvfp.kernels.attention.attention`."""
    if settings.backend == "cudnn":
        raise refuse_backend(settings, reasons(q, k, v, mask, settings, terms))
    used = None if step is None else step.copy()
    heads = _Heads(q, k, v, mask, settings, used, terms)
    out = np.zeros((*q.shape[:-1], heads.values), q.dtype)
    lse = np.full((heads.batch, heads.heads, heads.queries), -np.inf, np.float32)
    tops = np.full(lse.shape if settings.max_logit else 0, -np.inf, np.float32)

    def work(start: int, stop: int) -> None:
        scores = np.empty(heads.tile * heads.keys, np.float32)
        with np.errstate(all="ignore"):  # NaN and inf are values here
            for at in range(start, stop):
                b, g = divmod(at, heads.groups)
                qs, ys = (heads.entry(x, b, 0) for x in (q, out))
                ks, vs = (heads.entry(x, b, 1) for x in (k, v))
                keys, values = _panel(ks[:, g]), _panel(vs[:, g])
                for h in range(g * heads.share, (g + 1) * heads.share):
                    rows = lse[b, h], tops[b, h] if settings.max_logit else tops
                    _forward(heads, (b, h), (_panel(qs[:, h]), keys, values), scores, ys[:, h], rows)

    if out.size or lse.size:
        heads.over(work)
    highest = tops.max((0, 2), initial=-np.inf) if settings.max_logit else None
    return out, Saved(settings, "composed", mask, lse, used, terms, highest)


def _forward(
    heads: _Heads, at: tuple[int, int], panels: tuple[np.ndarray, ...], scores: np.ndarray, out: np.ndarray,
    rows: tuple[np.ndarray, np.ndarray],
) -> None:  # fmt: skip
    q, k, v = panels
    lse, tops = rows
    for tile in heads.tiles(*at):
        s, part = tile.within(scores), slice(tile.first, tile.last)
        np.matmul(q[part], k[tile.low : tile.seen].T, out=s)
        heads.score(s, tile)
        softmax_rows(s, s, lse[part], *heads.place(tile), tops[part])
        factors = heads.factors(tile)
        if factors is not None:
            s *= factors
        _put(np.matmul(s, v[tile.low : tile.seen]), out[part])


def attention_vjp(dout: Any, q: Any, k: Any, v: Any, out: Any, saved: Saved, bias_gradient: bool = False) -> Gradients:
    """See `nvfp.kernels.attention.attention_vjp`."""
    terms, settings = saved.terms, saved.settings
    heads = _Heads(q, k, v, saved.mask, settings, saved.used, terms)
    dq, dk, dv = (np.zeros(x.shape, x.dtype) for x in (q, k, v))
    spent = np.zeros(
        saved.stats.shape if settings.softmax_type == "learnable" else (*saved.stats.shape[:2], 0), np.float32
    )
    slab = np.zeros((heads.heads, heads.queries, heads.keys) if bias_gradient else (heads.heads, 0, 0), np.float32)

    def work(start: int, stop: int) -> None:
        size = heads.tile * heads.keys
        scratch = tuple(np.empty(size if n < 2 or settings.softcap else 0, np.float32) for n in range(3))
        with np.errstate(all="ignore"):
            for at in range(start, stop):
                b, g = divmod(at, heads.groups)
                qs, ys, dqs = (heads.entry(x, b, 0) for x in (q, dout, dq))
                ks, vs, dks, dvs = (heads.entry(x, b, 1) for x in (k, v, dk, dv))
                keys, values = _panel(ks[:, g]), _panel(vs[:, g])
                sums = np.zeros(keys.shape, np.float32), np.zeros(values.shape, np.float32)
                for h in range(g * heads.share, (g + 1) * heads.share):
                    panels = _panel(qs[:, h]), keys, values, _panel(ys[:, h])
                    more = saved.stats[b, h], spent[b, h], slab[h]
                    _backward(heads, (b, h), panels, scratch, dqs[:, h], sums, more)
                _put(sums[0], dks[:, g])
                _put(sums[1], dvs[:, g])

    dbias = None
    if bias_gradient:
        dbias = _by_entry(heads, work, slab)
    else:
        heads.over(work)
    dsink = None if settings.softmax_type != "learnable" else spent.sum((0, 2), dtype=np.float64).astype(np.float32)
    return Gradients(dq, dk, dv, dbias, dsink)


def _by_entry(heads: _Heads, work: Callable[[int, int], None], slab: np.ndarray) -> np.ndarray:
    """The gradient of the bias: entries of the batch in order, so that sums over them have one order."""
    bias = heads.terms.bias
    assert bias is not None
    total = np.zeros(bias.shape, np.float32)
    for b in range(heads.batch):
        slab[...] = 0
        heads.over(work, range(b, b + 1))
        total[b if bias.shape[0] > 1 else 0] += slab if bias.shape[1] > 1 else slab.sum(0, keepdims=True)
    result = np.empty(bias.shape, bias.dtype)
    _put(total, result)
    return result


def _backward(
    heads: _Heads, at: tuple[int, int], panels: tuple[np.ndarray, ...], scratch: tuple[np.ndarray, ...],
    dq: np.ndarray, sums: tuple[np.ndarray, np.ndarray], more: tuple[np.ndarray, ...],
) -> None:  # fmt: skip
    q, k, v, dout = panels
    lse, spent, slab = more
    for tile in heads.tiles(*at):
        part, seen = slice(tile.first, tile.last), slice(tile.low, tile.seen)
        p, ds = (tile.within(x) for x in scratch[:2])
        bend = tile.within(scratch[2]) if heads.settings.softcap else _NONE
        np.matmul(q[part], k[seen].T, out=p)
        np.matmul(dout[part], v[seen].T, out=ds)
        heads.score(p, tile, bend)
        factors = heads.factors(tile)
        if factors is not None:
            ds *= factors
        gradient_rows(p, ds, lse[part], *heads.place(tile), spent[part])
        if factors is not None:
            p *= factors
        _unscore(heads, ds, bend, slab[part, seen])
        _put(np.matmul(ds, k[seen]), dq[part])
        sums[0][seen] += np.matmul(ds.T, q[part])
        sums[1][seen] += np.matmul(p.T, dout[part])


def _unscore(heads: _Heads, ds: np.ndarray, bend: np.ndarray, dbias: np.ndarray) -> None:
    """The gradient of scores to that of products, in place; the bias's on the way, if its room is not empty."""
    if not heads.scored:
        return
    before = heads.settings.bias_type == "pre_scale_bias"
    if dbias.size and not before:
        dbias[...] = ds
    if bend.size:
        ds *= bend
    ds *= np.float32(heads.settings.scale)
    if dbias.size and before:
        dbias[...] = ds
