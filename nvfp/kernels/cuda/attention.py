"""CUDA twin of `kernels.attention`: cuDNN, or the composition of the stems gemm, softmax and dropout.

The composition holds float32 scores of a part of the batch, weights in q's dtype beside them, and computes both
again in the backward. Heads that share a group of k and v are rows of one product, so k and v are never repeated
and their gradients are summed over the group inside a product.
"""

from __future__ import annotations

import math
from typing import Any

from nvfp.kernels.attention import Saved, Settings, no_windows, refuse_backend
from nvfp.kernels.cast import cast
from nvfp.kernels.cuda._dense import FLOAT32
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.cudnn.record import AttentionRecord, record_of
from nvfp.kernels.dropout import dropout, dropout_vjp
from nvfp.kernels.gemm import gemm
from nvfp.kernels.softmax import softmax, softmax_vjp

_SCORES = 1 << 28  # scores that exist at once: 1 GiB of float32
_LOOP = 2  # products are launched one by one over at most so many entries of a batch axis; else heads are gathered


def reasons(q: Any, k: Any, v: Any, mask: Any | None, settings: Settings) -> dict[str, str | None]:
    """Return why each backend cannot do it, None for one that can; the first that can runs.

    Arrays that are only described (`nvfp.kernels.attention.Described`) will do.
    """
    return _look(q, k, v, mask, settings)[1]


def _look(
    q: Any, k: Any, v: Any, mask: Any | None, settings: Settings
) -> tuple[AttentionRecord | None, dict[str, str | None]]:
    """The record of the call for cuDNN (None where that is not asked for), and the reasons."""
    found: dict[str, str | None] = {"cudnn": "backend='composed' is asked for", "composed": no_windows(settings)}
    if settings.backend == "composed":
        return None, found
    from nvfp.kernels.cudnn.run import unsupported

    record = record_of(
        q, k, v,
        mask_type=settings.mask_type, mask=mask, window=settings.window, scale=settings.scale, dropout=settings.dropout,
    )  # fmt: skip
    found["cudnn"] = unsupported(record)
    return record, found


def attention(q: Any, k: Any, v: Any, mask: Any | None, step: Any | None, settings: Settings) -> tuple[Any, Saved]:
    """See `nvfp.kernels.attention.attention`."""
    record, why = _look(q, k, v, mask, settings)
    chosen = settings.backend or next((name for name, reason in why.items() if reason is None), None)
    if chosen is None or why[chosen] is not None:
        raise refuse_backend(settings, why)
    if record is None or chosen == "composed":
        return _composed(q, k, v, mask, step, settings)
    from nvfp.kernels.cudnn.run import attention as run

    out, stats = run(record, q, k, v, mask=mask, key=settings.key, ordinal=settings.ordinal, step=step)
    return out, Saved(settings, "cudnn", mask, (record, stats), None)


def attention_vjp(dout: Any, q: Any, k: Any, v: Any, out: Any, saved: Saved) -> tuple[Any, Any, Any]:
    """See `nvfp.kernels.attention.attention_vjp`."""
    if saved.backend == "composed":
        return _composed_vjp(dout, q, k, v, saved)
    from nvfp.kernels.cudnn.run import attention_vjp as run

    record, stats = saved.stats
    gradients: tuple[Any, Any, Any] = run(record, dout, q, k, v, out, stats)
    return gradients


def _composed(q: Any, k: Any, v: Any, mask: Any | None, step: Any | None, settings: Settings) -> tuple[Any, Saved]:
    batch, queries, heads, _ = q.shape
    out = cp.empty((batch, queries, heads, v.shape[3]), q.dtype)
    used = step
    for part in _parts(batch, heads * queries * k.shape[1]):
        weights = _weights(q[part], k[part], _of(mask, part), settings)
        if settings.dropout:
            weights, word = dropout(weights, out=weights, **_draw(settings, step, weights.shape, part))
            used = word if used is step else used
        y = gemm(_grouped(weights, k.shape[2]), _heads_first(v[part]))
        _heads_last(y, out[part])
    return out, Saved(settings, "composed", mask, None, used)


def _composed_vjp(dout: Any, q: Any, k: Any, v: Any, saved: Saved) -> tuple[Any, Any, Any]:
    settings, groups = saved.settings, k.shape[2]
    dq, dk, dv = (cp.empty(x.shape, x.dtype) for x in (q, k, v))
    for part in _parts(q.shape[0], q.shape[2] * q.shape[1] * k.shape[1]):
        weights = _weights(q[part], k[part], _of(saved.mask, part), settings)
        y = _folded(dout[part], groups)
        gradient = gemm(y, _heads_first(v[part]).swapaxes(-1, -2), dtype=FLOAT32).reshape(weights.shape)
        dropped = weights
        if settings.dropout:
            draw = _draw(settings, saved.used, weights.shape, part)
            gradient = dropout_vjp(gradient, out=gradient, **draw)
            dropped, _ = dropout(weights, **draw)
        _heads_last(gemm(_grouped(dropped, groups).swapaxes(-1, -2), y), dv[part])
        in_place = gradient if gradient.dtype == q.dtype else None
        ds = softmax_vjp(weights, gradient, scale=settings.scale, dtype=q.dtype, out=in_place)
        ds = _grouped(ds, groups)
        _heads_last(gemm(ds, _heads_first(k[part])), dq[part])
        _heads_last(gemm(ds.swapaxes(-1, -2), _folded(q[part], groups)), dk[part])
    return dq, dk, dv


def _parts(batch: int, scores: int) -> list[slice]:
    """The batch in pieces of at most `_SCORES` scores (or of one entry)."""
    step = max(1, _SCORES // max(1, scores))
    return [slice(a, min(a + step, batch)) for a in range(0, batch, step)]


def _of(mask: Any | None, part: slice) -> Any | None:
    """The mask of a part of the batch."""
    return mask if mask is None or mask.ndim < 4 or mask.shape[0] == 1 else mask[part]


def _draw(settings: Settings, step: Any, shape: tuple[int, ...], part: slice) -> dict[str, Any]:
    """The dropout's place of a part of the batch; ``shape`` is that of its weights."""
    offset = part.start * math.prod(shape[1:])
    place = {"key": settings.key, "ordinal": settings.ordinal, "step": step}
    return {"p": settings.dropout, "offset": offset, **place}


def _weights(q: Any, k: Any, mask: Any | None, settings: Settings) -> Any:
    """softmax(scale q k^T), masked, [B, H, Lq, Lk] in q's dtype."""
    batch, queries, heads, _ = q.shape
    scores = gemm(_folded(q, k.shape[2]), _heads_first(k).swapaxes(-1, -2), dtype=FLOAT32)
    scores = scores.reshape(batch, heads, queries, k.shape[1])
    in_place = scores if q.dtype == FLOAT32 else None
    y, _ = softmax(scores, scale=settings.scale, mask=mask, causal=settings.causal, dtype=q.dtype, out=in_place)
    return y


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
