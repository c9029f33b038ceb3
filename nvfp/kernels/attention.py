"""`attention` and `attention_vjp`: scaled dot-product attention with masks, biases, grouped heads and dropout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from nvfp.errors import DTypeError, ShapeError, message
from nvfp.kernels._attention import (
    BACKENDS,
    BIAS_TYPES,
    MASK_TYPES,
    NO_TERMS,
    SOFTMAX_TYPES,
    Described,
    Gradients,
    Lengths,
    Saved,
    Settings,
    Terms,
    Window,
    alibi_slopes,
)
from nvfp.kernels._attention_check import check_arrays, check_settings, check_terms
from nvfp.kernels._attention_mask import ahead_of, joined
from nvfp.kernels._dispatch import Kind, backend as twin_of, module, place_like
from nvfp.kernels.dropout import check_step

__all__ = [
    "BACKENDS",
    "BIAS_TYPES",
    "MASK_TYPES",
    "NO_TERMS",
    "SOFTMAX_TYPES",
    "Described",
    "Gradients",
    "Lengths",
    "Saved",
    "Settings",
    "Terms",
    "Window",
    "alibi_slopes",
    "attention",
    "attention_vjp",
    "check_arrays",
    "check_settings",
    "check_terms",
    "reasons",
]


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask_type: str = "causal",
    mask: Any | None = None,
    lengths: Lengths | None = None,
    scale: float | None = None,
    window: Window | None = None,
    bottom_right: bool | None = None,
    bias_type: str = "no_bias",
    bias: Any | None = None,
    slopes: Any | None = None,
    softmax_type: str = "vanilla",
    sink: Any | None = None,
    softcap: float = 0.0,
    max_logit: bool = False,
    deterministic: bool = True,
    dropout: float = 0.0,
    key: int = 0,
    ordinal: int = 0,
    step: Any | None = None,
    backend: str | None = None,
) -> tuple[Any, Saved]:
    """Return ``dropout(softmax(s, masked)) v`` for each batch entry and head, and what its gradient needs.

    ``s = cap(scale (q k^T + pre)) + post`` with ``cap(t) = softcap tanh(t / softcap)`` (t itself without a softcap),
    ``pre`` and ``post`` the bias before or behind the scale, and for ALiBi ``post = -slope |j - i - ahead|``. Head h
    of q reads head ``h // (H / G)`` of k and v (grouped-query attention; G = 1 is multi-query).

    Args:
        q: [B, Lq, H, D] of float32, bfloat16 or float16; any strides (e.g. a slice of a fused buffer). Packed:
            [T, H, D], the entries of the batch one behind the other.
        k: [B, Lk, G, D] or [Tk, G, D], likewise.
        v: [B, Lk, G, Dv] or [Tk, G, Dv], likewise.
        mask_type: ``"no_mask"``; ``"causal"`` (query i sees the keys up to i), ``"causal_bottom_right"`` (up to
            ``i + Lk - Lq``), ``"padding"``, ``"padding_causal"``, ``"padding_causal_bottom_right"``, ``"arbitrary"``.
        mask: bool, True hides; with the last four types only. ``"arbitrary"``: broadcastable to [B, H, Lq, Lk].
            Padding: [B, 1, 1, Lk], the keys that are padding; or a pair of [B, 1, 1, Lq] and [B, 1, 1, Lk], where
            padded queries see nothing (and the bottom right corner is that of the entries that are no padding).
        lengths: in place of such a pair: how long each entry is; with starts, where it lies in packed q, k and v.
            No entry may have more rows than ``lengths.most``, or than q and k.
        scale: of the scores; ``D ** -0.5`` unless given.
        window: (left, right): sliding window around the diagonal, -1 unlimited.
        bottom_right: whether the diagonal of window and ALiBi starts from the bottom right corner, as it does unless
            given; causal types name their corner themselves.
        bias_type: ``"no_bias"``, ``"pre_scale_bias"``, ``"post_scale_bias"`` or ``"alibi"``.
        bias: [1 or B, 1 or H, Lq, Lk] of float32, bfloat16 or float16, with the middle two.
        slopes: float32 [H] or [B, H] of ALiBi; `alibi_slopes` unless given.
        softmax_type: ``"vanilla"``; ``"off-by-one"`` adds 1 to the sum of exponentials, ``"learnable"`` exp(sink).
        sink: float32 [H], with the last.
        softcap: bound of the scores; 0 for none.
        max_logit: whether ``saved.max_logit`` is wanted: float32 [H], the largest s of each head that is seen.
        deterministic: False lets cuDNN's backward add gradients of q in any order: faster, with bits that change.
        dropout: probability that a weight is dropped, 0 to 1; the others are divided by 1 - p.
        key: seed, as in `kernels.dropout.dropout`.
        ordinal: number of the call within its step, likewise.
        step: int64 word on the device, needed with dropout.
        backend: ``"cudnn"`` or ``"composed"`` (products and softmax) forces one; default: the first that can.

    Returns:
        ``(out, saved)``: out [B, Lq, H, Dv] or [T, H, Dv] of q's dtype, contiguous; saved for `attention_vjp`. A query
        that sees no key gives 0, as do rows of a packed q that belong to no entry.

    Raises:
        DTypeError: dtypes that differ or are others, a mask that is not bool, a step that is no int64 word.
        ShapeError: shapes, a mask or a bias that do not fit, or G that does not divide H.
        ArgumentError: an unknown type or backend, a mask, bias or sink where none belongs or none where one does, a
            number out of range, or a backend that cannot do it (the message says why).
        DeviceError: arrays on different devices.

    Numerics:
        Scores are float32 sums of products, what is added to them and softmax is float32. Composed on CUDA: weights
        are rounded to q's dtype before the second product, dropout (the bits of `kernels.dropout` at the row-major
        index of [B, H, Lq, Lk]) multiplies and rounds once more. CPU: weights stay float32. One rounding of the
        result. cuDNN: its own order of operations and its own dropout stream, from the step word and a hash of key
        and ordinal. Each backend repeats its bits. A NaN or inf in v may reach queries from which its key is hidden
        (0 times NaN is NaN): clear what padding holds.

    Source:
        TE features A5 (mask types, True = hidden, alignment, biases, softmax types); Vaswani et al.: Attention is all
        you need (2017); softcap before the bias as in FlashAttention.

    Example:
        >>> import numpy as np
        >>> q = np.zeros((1, 2, 1, 2), np.float32)
        >>> v = np.array([1.0, 3.0], np.float32).reshape(1, 2, 1, 1)
        >>> attention(q, q, v)[0].reshape(-1).tolist()
        [1.0, 2.0]
        >>> attention(q, q, v + v, softmax_type="off-by-one")[0].reshape(-1)[:1].tolist()
        [1.0]
    """
    full = check_arrays(q, k, v, lengths)
    settings = check_settings(
        full, q.shape[-1], mask_type, mask, scale, window, dropout, backend, key, ordinal, bottom_right=bottom_right,
        bias_type=bias_type, softmax_type=softmax_type, softcap=softcap, max_logit=max_logit,
        deterministic=deterministic, lengths=lengths,
    )  # fmt: skip
    terms = Terms(bias, slopes, sink, lengths)
    check_terms(full, settings, terms)
    if dropout:
        check_step("attention", step)
    pair = mask if isinstance(mask, tuple) else None
    twin = twin_of("attention", q, k, v, step, *(pair or (mask,)), *terms.arrays())
    settings, terms = _placed(settings, terms, full, pair, q)
    if pair is not None:
        mask = joined(pair)
    result: tuple[Any, Saved] = twin.attention(q, k, v, mask, step if dropout else None, settings, terms)
    return result


def _placed(settings: Settings, terms: Terms, full: Any, pair: Any, like: Any) -> tuple[Settings, Terms]:
    """Fill in what the call leaves out: slopes of ALiBi, a sink of 0, and the diagonal of entries that are not full."""
    if settings.bias_type == "alibi" and terms.slopes is None:
        terms = replace(terms, slopes=_kept(alibi_slopes, full[1], like))
    if settings.softmax_type == "off-by-one":
        terms = replace(terms, sink=_kept(_zeros, full[1], like))
    if settings.corner == "bottom_right" and (settings.band != (-1, -1) or settings.bias_type == "alibi"):
        terms = replace(terms, ahead=ahead_of(pair, terms.lengths))
    return settings, terms


_made: dict[tuple[Any, str, int], Any] = {}


def _kept(make: Callable[[int], np.ndarray], heads: int, like: Any) -> Any:
    """A constant on the device of ``like``; kept, as a CUDA graph being captured cannot copy from the host."""
    place = make, str(like.device), heads
    found = _made.get(place)
    if found is None:
        found = _made.setdefault(place, place_like(make(heads), like))
    return found


def _zeros(heads: int) -> np.ndarray:
    return np.zeros(heads, np.float32)


def attention_vjp(
    dout: Any, q: Any, k: Any, v: Any, out: Any, saved: Saved, *, bias_gradient: bool = True
) -> Gradients:
    """Return the gradients of `attention` for q, k and v, and for the bias and the sink where it has them.

    With P the weights, Z the dropout factors (1 without dropout): ``dv = (P Z)^T dout``,
    ``dS = P (Z dout v^T - sum_keys P Z dout v^T)``, ``dT = dS cap'(t)``, ``dq = scale dT k``, ``dk = scale dT^T q``; dk
    and dv are summed over the heads of their group. The bias gets dS behind the scale, ``scale dT`` before it, summed
    over the axes that it repeats; the sink gets minus the sum of its weight times ``sum_keys P Z dout v^T``.

    Args:
        dout: gradient of the result, of its shape and dtype; any strides.
        q: as given to `attention`.
        k: as given to `attention`.
        v: as given to `attention`.
        out: what `attention` returned.
        saved: likewise.
        bias_gradient: whether that of the bias is wanted.

    Returns:
        `Gradients` of the shapes and dtypes of q, k, v, bias and sink (None where there is none): contiguous, or views
        of one new buffer where q, k and v are slices of one and cuDNN runs. A query without keys has no part in them.

    Raises:
        ShapeError: dout of another shape.
        DTypeError: dout of another dtype.
        DeviceError: arrays on different devices.

    Numerics:
        P is computed again, not kept. Products are float32 sums, rounded once (composed on CUDA: also P and dS).
        Groups and repeated axes are summed in a fixed order. Each backend repeats its bits.

    Source:
        Dao et al.: FlashAttention (2022), appendix B.

    Example:
        >>> import numpy as np
        >>> q = np.zeros((1, 2, 1, 2), np.float32)
        >>> v = np.array([1.0, 3.0], np.float32).reshape(1, 2, 1, 1)
        >>> out, saved = attention(q, q, v)
        >>> attention_vjp(np.ones_like(out), q, q, v, out, saved).v.reshape(-1).tolist()
        [1.5, 0.5]
    """
    if dout.shape != out.shape:
        raise ShapeError(message("attention_vjp", f"dout of shape {out.shape}", dout.shape, "pass out's gradient"))
    if dout.dtype != out.dtype:
        raise DTypeError(message("attention_vjp", f"dout of {out.dtype}", dout.dtype, "cast dout first"))
    twin = twin_of("attention", dout, q, k, v, out)
    wanted = bias_gradient and saved.terms.bias is not None
    result: Gradients = twin.attention_vjp(dout, q, k, v, out, saved, wanted)
    return result


def reasons(
    q: Any, k: Any, v: Any, mask: Any | None, settings: Settings, kind: Kind, terms: Terms = NO_TERMS
) -> dict[str, str | None]:
    """Return for each backend of a device kind why it cannot run a call, None if it can; the first that can runs.

    Args:
        q: raw array or `Described`.
        k: likewise.
        v: likewise.
        mask: likewise, one mask or None.
        settings: from `check_settings`.
        kind: ``"cpu"`` or ``"cuda"``.
        terms: bias, slopes, sink and lengths, described or not.
    """
    found: dict[str, str | None] = module("attention", kind).reasons(q, k, v, mask, settings, terms)
    return found
