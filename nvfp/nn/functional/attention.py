"""Scaled dot-product attention as a primitive, and which backend runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import array, integers
from nvfp.autograd.tape import Output, record
from nvfp.device import Device, cuda_problem, default_device
from nvfp.dtypes.dense import as_dtype, bfloat16
from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.kernels import attention as kernel
from nvfp.nn._dropout import Draw

Mask = Array | tuple[Array, Array]
_BOOL = np.dtype(np.bool_)


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    attn_mask_type: str = "causal",
    attention_mask: Mask | None = None,
    softmax_scale: float | None = None,
    window_size: tuple[int, int] | None = None,
    dropout: float = 0.0,
    draw: Draw | None = None,
    backend: str | None = None,
) -> Array:
    """Return ``dropout(softmax(scale q k^T, masked)) v`` for each batch entry and head.

    Head h of q reads head ``h // (H / G)`` of k and v.

    Args:
        q: [B, Lq, H, D], float32/bfloat16/float16, any strides; quantized ones count as float32.
        k: [B, Lk, G, D], G divides H.
        v: [B, Lk, G, Dv].
        attn_mask_type: ``"no_mask"``, ``"causal"`` (from the top left corner), ``"causal_bottom_right"``,
            ``"padding"``, ``"padding_causal"``, ``"padding_causal_bottom_right"`` or ``"arbitrary"``.
        attention_mask: bool, True hides; with the last four. Padding: [B, 1, 1, Lk], or a pair of [B, 1, 1, Lq] and
            [B, 1, 1, Lk]; arbitrary: broadcastable to [B, H, Lq, Lk].
        softmax_scale: ``D ** -0.5`` unless given.
        window_size: (left, right), -1 unlimited; other windows with cuDNN only.
        dropout: probability that a weight is dropped.
        draw: which dropout mask, ``state.draw(q.raw)`` of the module's `DropoutState`; needed with dropout.
        backend: ``"cudnn"`` or ``"composed"`` forces one; see `nf.explain_attention`.

    Returns:
        [B, Lq, H, Dv] in the dtype of ``q``. A query that sees no key gives 0, and no gradient.

    Raises:
        DTypeError: dtypes that differ or are others, or no arrays.
        ShapeError: shapes or a mask that do not fit.
        ArgumentError: an unknown mask type, a mask where none belongs, dropout without draw, or a backend that
            cannot do it.
        NotBuiltError: a window that no usable backend has.

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
    if dropout and draw is None:
        raise ArgumentError(message("attention", "draw= with dropout", None, "pass state.draw(q.raw)"))
    place: dict[str, Any] = {}
    if dropout and draw is not None:
        place = {"dropout": dropout, "key": draw.key, "ordinal": draw.ordinal, "step": draw.step}
    raw, saved = kernel.attention(
        q.raw, k.raw, v.raw,
        mask_type=attn_mask_type, mask=_raw_mask(masks), scale=softmax_scale, window=window_size, backend=backend,
        **place,
    )  # fmt: skip
    y = wrap(raw)
    y._node = record("attention", (q, k, v), _vjp, saved=(q, k, v, Output(y), saved, draw if place else None, *masks))
    return y


def _vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    q, k, v, y, more, draw, *_ = saved
    if draw is not None:
        draw.finish()
    gradients = kernel.attention_vjp(dy.raw, q.raw, k.raw, v.raw, y.raw, more)
    return tuple(wrap(g) if needed else None for g, needed in zip(gradients, needs, strict=True))


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
    dropout: float = 0.0,
    backend: str | None = None,
    dtype: Any = bfloat16,
    device: Any = None,
) -> AttentionChoice:
    """Say which attention backend runs a call, and why each other one is passed over. Nothing is computed.

    Args:
        q: the Array [B, Lq, H, D], or its shape.
        k: the Array [B, Lk, G, D], or its shape.
        v: the Array [B, Lk, G, Dv], or its shape.
        attn_mask_type: as in the call (``nvfp.nn.functional.attention.attention``).
        attention_mask: likewise; may be left out here with shapes (then [B, 1, 1, Lk] is assumed where there must
            be one).
        softmax_scale: likewise.
        window_size: likewise.
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
    """
    place = q.device if isinstance(q, Array) else default_device() if device is None else Device(device)
    queries, keys, values = (_described(x, as_dtype(dtype)) for x in (q, k, v))
    kernel.check_arrays(queries, keys, values)
    full = (queries.shape[0], queries.shape[2], queries.shape[1], keys.shape[1])
    mask = _raw_mask(_masks(attention_mask))
    if mask is None and (attn_mask_type == "arbitrary" or str(attn_mask_type).startswith("padding")):
        mask = kernel.Described((full[0], 1, 1, full[3]), _BOOL)
    settings = kernel.check_settings(
        full, queries.shape[3], attn_mask_type, mask, softmax_scale, window_size, dropout, backend
    )
    if isinstance(mask, tuple):  # joined into one before the backend sees it
        settings, mask = kernel.joined(settings), kernel.Described((full[0], 1, full[2], full[3]), _BOOL)
    reasons = _reasons(queries, keys, values, mask, settings, place)
    first = next((name for name, why in reasons.items() if why is None and backend in (None, name)), None)
    for name, why in reasons.items():
        if why is None and name != first:
            reasons[name] = f"{first} comes first" if backend is None else f"backend={backend!r} is asked for"
    return AttentionChoice(first, reasons)


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


def _reasons(q: Any, k: Any, v: Any, mask: Any, settings: Any, place: Device) -> dict[str, str | None]:
    problem = cuda_problem() if place.type == "cuda" else None
    if problem is not None:
        return dict.fromkeys(kernel.BACKENDS, f"no CUDA device here: {problem}")
    return kernel.reasons(q, k, v, mask, settings, "cuda" if place.type == "cuda" else "cpu")
