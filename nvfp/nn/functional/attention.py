"""Scaled dot-product attention as a primitive, and which backend runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import array, integers
from nvfp.autograd.tape import Output, record
from nvfp.device import Device, cuda_problem, default_device
from nvfp.dtypes.dense import as_dtype, bfloat16
from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.kernels import attention as kernel
from nvfp.kernels._attention_mask import arbitrary
from nvfp.nn._dropout import Draw
from nvfp.nn.functional._lengths import lengths_of

Mask = Array | tuple[Array, Array]
_BOOL, _INT32, _FLOAT32 = (np.dtype(name) for name in ("bool", "int32", "float32"))


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    attn_mask_type: str = "causal",
    attention_mask: Mask | None = None,
    softmax_scale: float | None = None,
    window_size: tuple[int, int] | None = None,
    bottom_right_diagonal: bool | None = None,
    core_attention_bias_type: str = "no_bias",
    core_attention_bias: Array | None = None,
    alibi_slopes: Array | None = None,
    softmax_type: str = "vanilla",
    softmax_offset: Array | None = None,
    softcap: float = 0.0,
    deterministic: bool = True,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_kv: Array | None = None,
    cu_seqlens_q_padded: Array | None = None,
    cu_seqlens_kv_padded: Array | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_kv: int | None = None,
    return_max_logit: bool = False,
    dropout: float = 0.0,
    draw: Draw | None = None,
    backend: str | None = None,
) -> Any:
    """Return ``dropout(softmax(s, masked)) v`` for each batch entry and head.

    ``s = cap(scale (q k^T + pre)) + post``: pre and post are the bias, before the scale or behind it, or ALiBi's
    ``-slope |j - i - ahead|``; ``cap(t) = softcap tanh(t / softcap)``. Head h of q reads head ``h // (H / G)`` of k, v.

    Args:
        q: [B, Lq, H, D], float32/bfloat16/float16, any strides; quantized ones count as float32. Packed: [T, H, D].
        k: [B, Lk, G, D] or [Tk, G, D], G divides H.
        v: [B, Lk, G, Dv] or [Tk, G, Dv].
        attn_mask_type: ``"no_mask"``, ``"causal"`` (from the top left corner), ``"causal_bottom_right"``,
            ``"padding"``, ``"padding_causal"``, ``"padding_causal_bottom_right"`` or ``"arbitrary"``.
        attention_mask: bool, True hides; with the last four. Padding: [B, 1, 1, Lk], or a pair of [B, 1, 1, Lq] and
            [B, 1, 1, Lk]; arbitrary: broadcastable to [B, H, Lq, Lk].
        softmax_scale: ``D ** -0.5`` unless given.
        window_size: (left, right), -1 unlimited.
        bottom_right_diagonal: corner of window and ALiBi where the mask type is not causal; True unless given.
        core_attention_bias_type: ``"no_bias"``, ``"pre_scale_bias"``, ``"post_scale_bias"`` or ``"alibi"``.
        core_attention_bias: [1 or B, 1 or H, Lq, Lk], with the middle two; gets a gradient.
        alibi_slopes: float32 [H] or [B, H]; the geometric ones unless given.
        softmax_type: ``"vanilla"``, ``"off-by-one"`` (1 joins the sum of exponentials) or ``"learnable"``.
        softmax_offset: with the last, float32 of H entries, e.g. [1, H, 1, 1], whose exp joins it; gets a gradient.
        softcap: bound of the scores, 0 for none.
        deterministic: False lets cuDNN's backward add in any order: faster, with bits that change from call to call.
        cu_seqlens_q: integers [B + 1], where each entry's queries start (the last: where they end). With packed
            arrays; or, in place of a mask, with padding types: the differences are the lengths of the entries.
        cu_seqlens_kv: likewise of the keys; those of the queries unless given.
        cu_seqlens_q_padded: where entries start in packed q with room between them; `cu_seqlens_q` unless given.
        cu_seqlens_kv_padded: likewise of k and v.
        max_seqlen_q: needed with packed arrays: no entry has more queries. Nothing on the device is waited for.
        max_seqlen_kv: likewise of the keys; that of the queries unless given.
        return_max_logit: return also the largest s of each head that is seen, float32 [H].
        dropout: probability that a weight is dropped.
        draw: which dropout mask, ``state.draw(q.raw)`` of the module's `DropoutState`; needed with dropout.
        backend: ``"cudnn"`` or ``"composed"`` forces one; see `nf.explain_attention`.

    Returns:
        [B, Lq, H, Dv] or [T, H, Dv] in the dtype of ``q``; a pair of it and the largest scores where those are asked
        for. A query that sees no key gives 0, and no gradient.

    Raises:
        DTypeError: dtypes that differ or are others, or no arrays.
        ShapeError: shapes, a mask or a bias that do not fit.
        ArgumentError: an unknown type, a mask, bias or offset where none belongs, dropout without draw, packed arrays
            without lengths, or a backend that cannot do it.

    Numerics: see `nvfp.kernels.attention.attention`. Weights are computed again in the backward pass, not kept.

    Example:
        >>> import nvfp as nf
        >>> from nvfp.nn.functional.attention import attention
        >>> q, v = nf.zeros((1, 2, 1, 4), device="cpu"), nf.asarray([[[[1.0]], [[3.0]]]], device="cpu")
        >>> attention(q, q, v).reshape((-1,)).tolist()
        [1.0, 2.0]
    """
    q, k, v = (array("attention", x) for x in (q, k, v))
    masks = _masks(attention_mask)
    bias, slopes, sink = (_optional(x) for x in (core_attention_bias, alibi_slopes, softmax_offset))
    if dropout and draw is None:
        raise ArgumentError(message("attention", "draw= with dropout", None, "pass state.draw(q.raw)"))
    place: dict[str, Any] = {}
    if dropout and draw is not None:
        place = {"dropout": dropout, "key": draw.key, "ordinal": draw.ordinal, "step": draw.step}
    lengths = lengths_of(
        (q, k),
        (cu_seqlens_q, cu_seqlens_kv),
        (cu_seqlens_q_padded, cu_seqlens_kv_padded),
        (max_seqlen_q, max_seqlen_kv),
    )
    raw, saved = kernel.attention(
        q.raw, k.raw, v.raw,
        mask_type=attn_mask_type, mask=_raw_mask(masks), lengths=lengths, scale=softmax_scale, window=window_size,
        bottom_right=bottom_right_diagonal, bias_type=core_attention_bias_type, bias=None if bias is None else bias.raw,
        slopes=None if slopes is None else slopes.raw, softmax_type=softmax_type,
        sink=None if sink is None else sink.raw.reshape(-1), softcap=softcap, max_logit=return_max_logit,
        deterministic=deterministic, backend=backend, **place,
    )  # fmt: skip
    y = wrap(raw)
    learned = [x for x in (bias, sink) if x is not None]
    kept = (q, k, v, Output(y), saved, draw if place else None, bias, sink, slopes, *masks)
    y._node = record("attention", (q, k, v, *learned), _vjp, saved=kept)
    return (y, wrap(saved.max_logit)) if return_max_logit else y


def _vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    q, k, v, y, more, draw, bias, sink, *_ = saved
    if draw is not None:
        draw.finish()
    found = kernel.attention_vjp(dy.raw, q.raw, k.raw, v.raw, y.raw, more, bias_gradient=bias is not None and needs[3])
    gradients: list[Any] = [found.q, found.k, found.v]
    if bias is not None:
        gradients.append(found.bias)
    if sink is not None:
        gradients.append(None if found.sink is None else found.sink.reshape(sink.shape))
    return tuple(wrap(g) if needed else None for g, needed in zip(gradients, needs, strict=True))


def _optional(x: Array | None) -> Array | None:
    return None if x is None else array("attention", x)


def _masks(mask: Mask | None) -> tuple[Array, ...]:
    if mask is None:
        return ()
    return tuple(array("attention", part) for part in (mask if isinstance(mask, tuple) else (mask,)))


def _raw_mask(masks: tuple[Array, ...]) -> Any:
    """What the kernel takes: None, one raw mask, or a pair."""
    return None if not masks else masks[0].raw if len(masks) == 1 else tuple(m.raw for m in masks)


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """Which backend runs an attention; printed, it says why each other one does not.

    Attributes:
        backend: its name, or None if none can.
        reasons: backend -> why it does not run; None for the one that does.
    """

    backend: str | None
    reasons: dict[str, str | None]

    def __repr__(self) -> str:
        lines = [f"attention runs on: {self.backend or 'nothing here'}"]
        return "\n".join(lines + [f"  not {name}: {why}" for name, why in self.reasons.items() if why])


def explain_attention(
    q: Array | Sequence[int],
    k: Array | Sequence[int],
    v: Array | Sequence[int],
    *,
    attn_mask_type: str = "causal",
    attention_mask: Mask | None = None,
    softmax_scale: float | None = None,
    window_size: tuple[int, int] | None = None,
    bottom_right_diagonal: bool | None = None,
    core_attention_bias_type: str = "no_bias",
    core_attention_bias: Array | Sequence[int] | None = None,
    softmax_type: str = "vanilla",
    softcap: float = 0.0,
    cu_seqlens_q: Array | Sequence[int] | None = None,
    cu_seqlens_kv: Array | Sequence[int] | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_kv: int | None = None,
    return_max_logit: bool = False,
    dropout: float = 0.0,
    backend: str | None = None,
    dtype: Any = bfloat16,
    device: Any = None,
) -> AttentionChoice:
    """Say which attention backend runs a call, and why each other one is passed over. Nothing is computed.

    Args:
        q: the Array [B, Lq, H, D] or [T, H, D], or its shape.
        k: the Array [B, Lk, G, D] or [Tk, G, D], or its shape.
        v: the Array [B, Lk, G, Dv] or [Tk, G, Dv], or its shape.
        attn_mask_type: as in the call (``nvfp.nn.functional.attention.attention``).
        attention_mask: likewise; may be left out here with shapes (then [B, 1, 1, Lk] is assumed where there must
            be one).
        softmax_scale: likewise.
        window_size: likewise.
        bottom_right_diagonal: likewise.
        core_attention_bias_type: likewise.
        core_attention_bias: likewise; or its shape; [1, H, Lq, Lk] of the dtype of q unless given.
        softmax_type: likewise.
        softcap: likewise.
        cu_seqlens_q: likewise; or its shape.
        cu_seqlens_kv: likewise; the same unless given.
        max_seqlen_q: likewise.
        max_seqlen_kv: likewise.
        return_max_logit: likewise.
        dropout: likewise.
        backend: likewise.
        dtype: of q, k and v where only shapes are given.
        device: likewise; the default device unless given.

    Returns:
        An `AttentionChoice`: ``.backend``, ``.reasons``, and a text when it is printed. A GPU may build cuDNN's plan
        for it (up to 2 s, once).

    Raises:
        DTypeError: what the call itself would raise.
        ShapeError: likewise.
        ArgumentError: likewise.

    Example:
        >>> import nvfp as nf
        >>> q = (2, 128, 12, 64)
        >>> nf.explain_attention(q, q, q, device="cpu")
        attention runs on: composed
          not cudnn: the arrays are on the CPU
          not flash-attn: not used, needs torch
    """
    place = q.device if isinstance(q, Array) else default_device() if device is None else Device(device)
    queries, keys, values = (_described(x, as_dtype(dtype)) for x in (q, k, v))
    lengths = _lengths((cu_seqlens_q, cu_seqlens_kv), (max_seqlen_q, max_seqlen_kv), queries.ndim == 3)
    full = kernel.check_arrays(queries, keys, values, lengths)
    mask = _raw_mask(_masks(attention_mask))
    if (
        mask is None
        and lengths is None
        and (attn_mask_type == "arbitrary" or str(attn_mask_type).startswith("padding"))
    ):
        mask = kernel.Described((full[0], 1, 1, full[3]), _BOOL)
    settings = kernel.check_settings(
        full, queries.shape[-1], attn_mask_type, mask, softmax_scale, window_size, dropout, backend,
        bottom_right=bottom_right_diagonal, bias_type=core_attention_bias_type, softmax_type=softmax_type,
        softcap=softcap, max_logit=return_max_logit, lengths=lengths,
    )  # fmt: skip
    if isinstance(mask, tuple):  # joined into one before the backend sees it
        settings = arbitrary(settings) if settings.causal == "bottom_right" else settings
        mask = kernel.Described((full[0], 1, full[2], full[3]), _BOOL)
    bias = None
    if core_attention_bias is not None or core_attention_bias_type in ("pre_scale_bias", "post_scale_bias"):
        bias = _described((1, *full[1:]) if core_attention_bias is None else core_attention_bias, queries.dtype)
    sink = None if softmax_type == "vanilla" else kernel.Described((full[1],), _FLOAT32)
    terms = kernel.Terms(bias, None, sink if softmax_type == "learnable" else None, lengths)
    kernel.check_terms(full, settings, terms)
    reasons = _reasons(queries, keys, values, mask, settings, replace(terms, sink=sink), place)
    first = next((name for name, why in reasons.items() if why is None and backend in (None, name)), None)
    for name, why in reasons.items():
        if why is None and name != first:
            reasons[name] = f"{first} comes first" if backend is None else f"backend={backend!r} is asked for"
    return AttentionChoice(first, reasons | {"flash-attn": "not used, needs torch"})


def _lengths(ends: tuple[Any, Any], most: tuple[Any, Any], packed: bool) -> kernel.Lengths | None:
    """Lengths that need not exist: one description for queries and keys where they are the same."""
    if ends[0] is None:
        if packed:
            do = "pass where each entry starts"
            raise ArgumentError(message("explain_attention", "cu_seqlens_q with packed arrays", None, do))
        return None
    first = kernel.Described((_described(ends[0], _INT32).shape[0] - 1,), _INT32)
    same = ends[1] is None or ends[1] is ends[0]
    second = first if same else kernel.Described(first.shape, _INT32)
    if not packed:
        return kernel.Lengths(first, second)
    longest = int(most[0] or 0), int((most[0] if most[1] is None else most[1]) or 0)
    return kernel.Lengths(first, second, first, second, longest)


def _described(x: Any, dtype: Any) -> Any:
    """The raw array of an Array, or the description that stands for one."""
    if isinstance(x, Array):
        return array("explain_attention", x).raw
    if isinstance(x, str) or not isinstance(x, Sequence):
        do = "pass e.g. (2, 128, 12, 64)"
        raise DTypeError(message("explain_attention", "Arrays or their shapes", type(x).__name__, do))
    shape = integers("explain_attention", "lengths", x)
    if min(shape, default=0) < 0:
        raise ShapeError(message("explain_attention", "lengths of at least 0", shape, "pass e.g. (2, 128, 12, 64)"))
    return kernel.Described(shape, dtype)


def _reasons(q: Any, k: Any, v: Any, mask: Any, settings: Any, terms: Any, place: Device) -> dict[str, str | None]:
    problem = cuda_problem() if place.type == "cuda" else None
    if problem is not None:
        return dict.fromkeys(kernel.BACKENDS, f"no CUDA device here: {problem}")
    return kernel.reasons(q, k, v, mask, settings, "cuda" if place.type == "cuda" else "cpu", terms)
