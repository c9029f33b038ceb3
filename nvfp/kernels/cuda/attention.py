"""CUDA twin of `kernels.attention`: cuDNN, or the composition of the stems gemm, softmax and dropout.

The composition holds float32 scores of a part of the batch, weights in q's dtype beside them, and computes both
again in the backward. Heads that share a group of k and v are rows of one product, so k and v are never repeated
and their gradients are summed over the group inside a product.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from nvfp.kernels._attention import NO_TERMS, Gradients, Lengths, Saved, Settings, Terms
from nvfp.kernels._attention_check import refuse_backend
from nvfp.kernels._attention_mask import arbitrary
from nvfp.kernels._dispatch import place_like
from nvfp.kernels.cast import cast
from nvfp.kernels.cuda._attention_packed import packed, unpacked
from nvfp.kernels.cuda._attention_scores import BiasGradient, Whole, bent, of, straightened, whole
from nvfp.kernels.cuda._dense import FLOAT32
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.cudnn.record import AttentionRecord, record_of
from nvfp.kernels.cudnn.support import beyond
from nvfp.kernels.dropout import dropout, dropout_vjp
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.gemm import gemm
from nvfp.kernels.reduce import reduce
from nvfp.kernels.softmax import softmax, softmax_vjp

_SCORES = 1 << 28  # scores that exist at once: 1 GiB of float32
_LOOP = 2  # products are launched one by one over at most so many entries of a batch axis; else heads are gathered


def reasons(
    q: Any, k: Any, v: Any, mask: Any | None, settings: Settings, terms: Terms = NO_TERMS
) -> dict[str, str | None]:
    """Return why each backend cannot do it, None for one that can; the first that can runs.

    Arrays that are only described (`nvfp.kernels.attention.Described`) will do.
    """
    return _look(q, k, v, mask, settings, terms)[1]


def _look(
    q: Any, k: Any, v: Any, mask: Any | None, settings: Settings, terms: Terms
) -> tuple[AttentionRecord | None, dict[str, str | None]]:
    """The record of the call for cuDNN (None where that is not asked for), and the reasons."""
    found: dict[str, str | None] = {"cudnn": "backend='composed' is asked for", "composed": None}
    if settings.backend == "composed":
        return None, found
    found["cudnn"] = beyond(settings, terms, q.dtype)
    if found["cudnn"] is not None:
        return None, found
    from nvfp.kernels.cudnn.run import unsupported

    record = record_of(
        q, k, v,
        mask_type=settings.mask_type, mask=mask, window=settings.window, scale=settings.scale, dropout=settings.dropout,
        bottom_right=settings.bottom_right, terms=terms, deterministic=settings.deterministic,
    )  # fmt: skip
    found["cudnn"] = unsupported(record)
    return record, found


def attention(
    q: Any, k: Any, v: Any, mask: Any | None, step: Any | None, settings: Settings, terms: Terms = NO_TERMS
) -> tuple[Any, Saved]:
    """See `nvfp.kernels.attention.attention`."""
    if terms.ahead is not None and terms.lengths is None:  # each entry has its own diagonal: no backend's but a mask's
        full = q.shape[0], q.shape[2], q.shape[1], k.shape[1]
        if settings.bias_type != "alibi":
            mask = whole(settings, mask, terms, full, q).mask
            settings, terms = arbitrary(settings), replace(terms, ahead=None)
    record, why = _look(q, k, v, mask, settings, terms)
    chosen = settings.backend or next((name for name, reason in why.items() if reason is None), None)
    if chosen is None or why[chosen] is not None:
        raise refuse_backend(settings, why)
    if record is None or chosen == "composed":
        return _composed(q, k, v, mask, step, settings, terms)
    from nvfp.kernels.cudnn.run import attention as run

    out, stats = run(record, q, k, v, mask=mask, key=settings.key, ordinal=settings.ordinal, step=step, terms=terms)
    return out, Saved(settings, "cudnn", mask, (record, stats), None, terms)


def attention_vjp(dout: Any, q: Any, k: Any, v: Any, out: Any, saved: Saved, bias_gradient: bool = False) -> Gradients:
    """See `nvfp.kernels.attention.attention_vjp`."""
    if saved.backend == "composed":
        return _composed_vjp(dout, q, k, v, out, saved, bias_gradient)
    from nvfp.kernels.cudnn.run import attention_vjp as run

    record, stats = saved.stats
    if record.bias_gradient and not bias_gradient:
        record = replace(record, bias_gradient=False)
    dq, dk, dv, full = run(record, dout, q, k, v, out, stats, saved.terms.bias)
    dbias = None
    if full is not None:
        gradient = BiasGradient(saved.terms.bias)
        gradient.add(full)
        dbias = gradient.result(1.0)
    dsink = None
    if saved.settings.softmax_type == "learnable":
        dsink = _sink_gradient(dout, out, saved.terms, stats.stats)
    return Gradients(dq, dk, dv, dbias, dsink)


def _composed(
    q: Any, k: Any, v: Any, mask: Any | None, step: Any | None, settings: Settings, terms: Terms
) -> tuple[Any, Saved]:
    if terms.lengths is None or terms.lengths.q_starts is None:
        return _dense(q, k, v, mask, step, settings, terms)
    n, out = terms.lengths, cp.empty((*q.shape[:2], v.shape[2]), q.dtype)
    if 0 in (n.queries.shape[0], q.shape[0], k.shape[0], *n.most, out.size):
        return _nothing(out, settings, terms)
    q, k, v = _unpacked(n, q, k, v)
    y, saved = _dense(q, k, v, mask, step, settings, terms)
    return packed(y, n.q_starts, n.queries, out), saved


def _nothing(out: Any, settings: Settings, terms: Terms) -> tuple[Any, Saved]:
    """The result of packed sequences of which there are none."""
    out.fill(0)
    return out, Saved(settings, "composed", None, None, None, terms, _lowest(out, settings))


def _lowest(like: Any, settings: Settings) -> Any | None:
    """The largest score of heads that see nothing."""
    if not settings.max_logit:
        return None
    return place_like(np.full(like.shape[-2], -np.inf, np.float32), like)


def _unpacked(n: Lengths, q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    keys, values = (unpacked(x, n.k_starts, n.keys, n.most[1]) for x in (k, v))
    return unpacked(q, n.q_starts, n.queries, n.most[0]), keys, values


def _dense(
    q: Any, k: Any, v: Any, mask: Any | None, step: Any | None, settings: Settings, terms: Terms
) -> tuple[Any, Saved]:
    batch, queries, heads, _ = q.shape
    out = cp.empty((batch, queries, heads, v.shape[3]), q.dtype)
    rows = batch, heads, queries
    seen = whole(settings, mask, terms, (*rows, k.shape[1]), q)
    lse = cp.empty(rows, FLOAT32) if settings.softmax_type == "learnable" else None
    tops = cp.empty(rows, FLOAT32) if settings.max_logit else None
    used = step
    for part in _parts(batch, heads * queries * k.shape[1]):
        logs, highest = (None if x is None else x[part] for x in (lse, tops))
        weights, _ = _weights(q[part], k[part], settings, terms, seen, part, logs, highest)
        if settings.dropout:
            weights, word = dropout(weights, out=weights, **_draw(settings, step, weights.shape, part))
            used = word if used is step else used
        y = gemm(_grouped(weights, k.shape[2]), _heads_first(v[part]))
        _heads_last(y, out[part])
    highest = None
    if tops is not None:
        highest = reduce("max", tops, axis=(0, 2)) if batch * queries else _lowest(out, settings)
    return out, Saved(settings, "composed", seen.mask, (seen, lse), used, terms, highest)


def _composed_vjp(dout: Any, q: Any, k: Any, v: Any, out: Any, saved: Saved, bias_gradient: bool) -> Gradients:
    n = saved.terms.lengths
    if n is None or n.q_starts is None:
        found = _dense_vjp(dout, q, k, v, saved, bias_gradient)
        return found._replace(sink=_sink_gradient(dout, out, saved.terms, saved.stats[1]))
    dq, dk, dv = (cp.empty(x.shape, x.dtype) for x in (q, k, v))
    if saved.stats is None:
        return _no_gradients((dq, dk, dv), saved, bias_gradient)
    dense = _dense_vjp(unpacked(dout, n.q_starts, n.queries, n.most[0]), *_unpacked(n, q, k, v), saved, bias_gradient)
    packed(dense.q, n.q_starts, n.queries, dq)
    packed(dense.k, n.k_starts, n.keys, dk)
    packed(dense.v, n.k_starts, n.keys, dv)
    return Gradients(dq, dk, dv, dense.bias, _sink_gradient(dout, out, saved.terms, saved.stats[1]))


def _no_gradients(results: tuple[Any, Any, Any], saved: Saved, bias_gradient: bool) -> Gradients:
    terms = saved.terms
    dbias = cp.empty(terms.bias.shape, terms.bias.dtype) if bias_gradient and terms.bias is not None else None
    learned = terms.sink is not None and saved.settings.softmax_type == "learnable"
    dsink = cp.empty(terms.sink.shape, FLOAT32) if learned and terms.sink is not None else None
    for x in (*results, dbias, dsink):
        if x is not None:
            x.fill(0)
    return Gradients(*results, dbias, dsink)


def _dense_vjp(dout: Any, q: Any, k: Any, v: Any, saved: Saved, bias_gradient: bool) -> Gradients:
    settings, terms, groups = saved.settings, saved.terms, k.shape[2]
    seen, _ = saved.stats
    dq, dk, dv = (cp.empty(x.shape, x.dtype) for x in (q, k, v))
    dbias = BiasGradient(terms.bias) if bias_gradient else None
    for part in _parts(q.shape[0], q.shape[2] * q.shape[1] * k.shape[1]):
        weights, tanh = _weights(q[part], k[part], settings, terms, seen, part, keep=True)
        y = _folded(dout[part], groups)
        gradient = gemm(y, _heads_first(v[part]).swapaxes(-1, -2), dtype=FLOAT32).reshape(weights.shape)
        dropped = weights
        if settings.dropout:
            draw = _draw(settings, saved.used, weights.shape, part)
            gradient = dropout_vjp(gradient, out=gradient, **draw)
            dropped, _ = dropout(weights, **draw)
        _heads_last(gemm(_grouped(dropped, groups).swapaxes(-1, -2), y), dv[part])
        if settings.bends:
            softmax_vjp(weights, gradient, dtype=FLOAT32, out=gradient)
            ds = straightened(gradient, settings, tanh, dbias, q.dtype)
        else:
            in_place = gradient if gradient.dtype == q.dtype else None
            ds = softmax_vjp(weights, gradient, scale=settings.scale, dtype=q.dtype, out=in_place)
        ds = _grouped(ds, groups)
        _heads_last(gemm(ds, _heads_first(k[part])), dq[part])
        _heads_last(gemm(ds.swapaxes(-1, -2), _folded(q[part], groups)), dk[part])
    before = settings.bias_type == "pre_scale_bias"
    return Gradients(dq, dk, dv, None if dbias is None else dbias.result(settings.scale if before else 1.0))


def _sink_gradient(dout: Any, out: Any, terms: Terms, lse: Any | None) -> Any | None:
    """Minus the sum over all rows of the sink's weight times ``dout out^T``, float32 [H]."""
    sink, n = terms.sink, terms.lengths
    if sink is None or lse is None:
        return None
    share = elementwise("exp", elementwise("subtract", sink[:, None], lse))  # [B, H, Lq]
    spent = reduce(
        "sum", elementwise("multiply", dout, out, dtype=FLOAT32), axis=-1, dtype=FLOAT32
    )  # [B, Lq, H] or [T, H]
    share = cast(share.transpose(0, 2, 1), FLOAT32)
    if n is not None and n.q_starts is not None:
        share = packed(share, n.q_starts, n.queries, cp.empty(spent.shape, FLOAT32))
    product = elementwise("multiply", share, spent, out=share)
    # Rows that take no part have no lse from cuDNN; their result is 0.
    product = elementwise("where", elementwise("equal", spent, 0.0), 0.0, product, out=product)
    total = reduce("sum", product, axis=tuple(range(spent.ndim - 1)), dtype=FLOAT32)
    return elementwise("negative", total, out=total)


def _parts(batch: int, scores: int) -> list[slice]:
    """The batch in pieces of at most `_SCORES` scores (or of one entry)."""
    step = max(1, _SCORES // max(1, scores))
    return [slice(a, min(a + step, batch)) for a in range(0, batch, step)]


def _draw(settings: Settings, step: Any, shape: tuple[int, ...], part: slice) -> dict[str, Any]:
    """The dropout's place of a part of the batch; ``shape`` is that of its weights."""
    offset = part.start * math.prod(shape[1:])
    place = {"key": settings.key, "ordinal": settings.ordinal, "step": step}
    return {"p": settings.dropout, "offset": offset, **place}


def _weights(
    q: Any, k: Any, settings: Settings, terms: Terms, seen: Whole, part: slice, lse: Any = None, tops: Any = None,
    keep: bool = False,
) -> tuple[Any, Any | None]:  # fmt: skip
    """Softmax of the scores, [B, H, Lq, Lk] in q's dtype, and tanh of the softcap where it is kept."""
    batch, queries, heads, _ = q.shape
    scores = gemm(_folded(q, k.shape[2]), _heads_first(k).swapaxes(-1, -2), dtype=FLOAT32)
    scores, scale, tanh = scores.reshape(batch, heads, queries, k.shape[1]), settings.scale, None
    if settings.bends:
        scores, tanh = bent(scores, settings, terms, seen, part, keep)
        scale = 1.0
    y, logs = softmax(
        scores, scale=scale, mask=of(seen.mask, part), causal=seen.causal, dtype=q.dtype,
        sink=terms.sink, tops=tops,
        out=scores if q.dtype == FLOAT32 else None,
    )  # fmt: skip
    if lse is not None:
        cast(logs, FLOAT32, out=lse)
    return y, tanh


def _heads_first(x: Any) -> Any:
    """[B, L, H, D] as [B, H, L, D]: a view where few products read it, else gathered, so that one call reads all."""
    view = x.transpose(0, 2, 1, 3)
    return view if min(view.shape[:2]) <= _LOOP else cast(view, x.dtype)


def _folded(x: Any, groups: int) -> Any:
    """[B, L, H, D] as [B, G, H/G L, D], the heads of a group one below the other."""
    if x.shape[2] == groups:
        return _heads_first(x)
    return _grouped(cast(x.transpose(0, 2, 1, 3), x.dtype), groups)


def _grouped(x: Any, groups: int) -> Any:
    """[B, H, L, N], contiguous, as [B, G, H/G L, N]."""
    batch, heads, length, columns = x.shape
    return x.reshape(batch, groups, heads // groups * length if groups else length, columns)


def _heads_last(x: Any, out: Any) -> None:
    """Write [B, G, H/G L, N] into [B, L, H, N]."""
    batch, length, heads, columns = out.shape
    cast(x.reshape(batch, heads, length, columns).transpose(0, 2, 1, 3), out.dtype, out=out)
