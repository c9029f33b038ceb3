"""`DotProductAttention`: attention over queries, keys and values that are already projected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import array
from nvfp.arrays.functions.shape import reshape, swapaxes
from nvfp.arrays.random import Generator
from nvfp.autograd.recompute import checkpoint
from nvfp.dtypes.dense import float32
from nvfp.errors import ArgumentError, ShapeError, message
from nvfp.kernels.attention import MASK_TYPES, SOFTMAX_TYPES
from nvfp.kernels.dropout import check_probability
from nvfp.nn._dropout import DropoutState
from nvfp.nn._init import Constant, count
from nvfp.nn._initial import Initial
from nvfp.nn._te import UNUSED, one_of, refuse
from nvfp.nn.functional.attention import Mask, attention
from nvfp.nn.inference import InferenceParams, check_cache
from nvfp.nn.module import Module

_NAME = "DotProductAttention"
_FORMATS = ("bshd", "sbhd", "thd")
_UNBUILT: Mapping[str, Any] = {
    "sequence_parallel": False, "tp_size": 1, "tp_group": None, "get_rng_state_tracker": None, "cp_group": None,
    "cp_global_ranks": None, "cp_stream": None, "cp_comm_type": "p2p",
}  # fmt: skip
_UNBUILT_FORWARD: Mapping[str, Any] = {
    "fp8_output": False, "bf16_backward": False, "num_splits": 1, "score_mod": None, "score_mod_bprop": None,
    "score_mod_tensors": None, "score_mod_bprop_tensors": None, "qkv_layer": None, "kv_layer": None,
    "qkv_interleave_dim": -3,
}  # fmt: skip
# With a cache: lengths are known from `InferenceParams.pre_step`.
_UNCACHED: Mapping[str, Any] = {
    "dropout": 0.0, "attention_mask": None, "bottom_right_diagonal": None, "core_attention_bias_type": "no_bias",
    "core_attention_bias": None, "alibi_slopes": None, "cu_seqlens_q": None, "cu_seqlens_kv": None,
    "cu_seqlens_q_padded": None, "cu_seqlens_kv_padded": None, "max_seqlen_q": None, "max_seqlen_kv": None,
    "softmax_type": "vanilla", "softmax_offset": None, "softcap": 0.0, "return_max_logit": False, "deterministic": True,
}  # fmt: skip


class DotProductAttention(Module):
    """``dropout(softmax(scale q k^T, masked)) v`` for each batch entry and head.

    Without parameters, but for a learnable softmax: ``softmax_offset`` [1, H, 1, 1], zero at first.

    Args:
        num_attention_heads: H.
        kv_channels: D, or (D, Dv) where values have another size.
        num_gqa_groups: G, heads of keys and values; divides H. H unless given.
        attention_dropout: probability that a weight is dropped, in training mode.
        qkv_format: ``"bshd"`` (batch, sequence, head, size), ``"sbhd"`` or ``"thd"`` (all entries of the batch one
            behind the other; then a call names where each starts).
        attn_mask_type: ``"no_mask"``, ``"causal"``, ``"causal_bottom_right"``, ``"padding"``, ``"padding_causal"``,
            ``"padding_causal_bottom_right"`` or ``"arbitrary"``; a call may name another one.
        window_size: (left, right), -1 unlimited.
        bottom_right_diagonal: corner of window and ALiBi where the mask type is not causal; True unless given.
        attention_type: ``"self"`` or ``"cross"``; makes no difference here.
        layer_number: kept for reports.
        name: likewise.
        softmax_scale: ``D ** -0.5`` unless given.
        softmax_type: ``"vanilla"``, ``"off-by-one"`` or ``"learnable"``.
        return_max_logit: return also the largest score of each head, float32 [H].
        softcap: bound of the scores, ``softcap tanh(s / softcap)``; 0 for none.
        deterministic: False lets cuDNN's backward add gradients of the queries in any order, as TE does by default:
            faster, with bits that change from run to run.
        device: of the offset of a learnable softmax; the default device unless given.
        rng: a `nf.random.Generator` that gives the seed of the dropout; without one fresh entropy.
        unbuilt: TE's further arguments, at their defaults only.

    Shapes: query [B, Lq, H, D], key [B, Lk, G, D], value [B, Lk, G, Dv], result [B, Lq, H Dv] in the dtype of query;
    ``"thd"``: [T, H, D], [Tk, G, D], [Tk, G, Dv], [T, H Dv].

    Raises:
        ArgumentError: a value out of range.
        NotBuiltError: an argument of TE that is not built, by name.

    Numerics: see `nvfp.nn.functional.attention.attention`; `nf.explain_attention` says which backend runs. Dropout
        state as `nf.nn.Dropout`.

    Example:
        >>> import nvfp as nf
        >>> layer = nf.nn.DotProductAttention(4, 8, num_gqa_groups=2)
        >>> q, k = nf.ones((2, 5, 4, 8), device="cpu"), nf.ones((2, 5, 2, 8), device="cpu")
        >>> layer(q, k, k).shape
        (2, 5, 32)
    """

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "bshd",
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        *,
        bottom_right_diagonal: bool | None = None,
        attention_type: str = "self",
        layer_number: int | None = None,
        name: str = "",
        softmax_scale: float | None = None,
        softmax_type: str = "vanilla",
        return_max_logit: bool = False,
        softcap: float = 0.0,
        deterministic: bool = True,
        device: Any = None,
        rng: Generator | None = None,
        **unbuilt: Any,
    ) -> None:
        super().__init__()
        refuse(_NAME, unbuilt, _UNBUILT)
        self.num_attention_heads = count(_NAME, "num_attention_heads", num_attention_heads)
        channels = kv_channels if isinstance(kv_channels, tuple) else (kv_channels, kv_channels)
        self.kv_channels = tuple(count(_NAME, "kv_channels", n) for n in channels)
        groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        self.num_gqa_groups = count(_NAME, "num_gqa_groups", groups)
        if self.num_attention_heads % self.num_gqa_groups:
            expected = f"num_gqa_groups that divides the {num_attention_heads} heads"
            raise ArgumentError(message(_NAME, expected, num_gqa_groups, "choose a divisor"))
        check_probability(_NAME, attention_dropout)
        self.attention_dropout = attention_dropout
        self.qkv_format = one_of(_NAME, "qkv_format", qkv_format, _FORMATS)
        self.attn_mask_type = _mask_type(attn_mask_type)
        self.attention_type = one_of(_NAME, "attention_type", attention_type, ("self", "cross"))
        self.window_size, self.softmax_scale = window_size, softmax_scale
        if not isinstance(bottom_right_diagonal, bool | None):
            got = repr(bottom_right_diagonal)
            raise ArgumentError(message(_NAME, "bottom_right_diagonal as a bool or None", got, "pass True or False"))
        self.bottom_right_diagonal = bottom_right_diagonal
        self.layer_number, self.name = layer_number, name
        self.softmax_type = one_of(_NAME, "softmax_type", softmax_type, SOFTMAX_TYPES)
        self.return_max_logit, self.softcap = bool(return_max_logit), softcap
        self.deterministic = bool(deterministic)
        self.softmax_offset: Array | None = None
        if softmax_type == "learnable":
            shape = 1, self.num_attention_heads, 1, 1
            self.add_initial("softmax_offset", Initial(shape, float32, Constant(0.0)), device)
        self._dropout = DropoutState(rng)

    def forward(
        self,
        query_layer: Array,
        key_layer: Array,
        value_layer: Array,
        attention_mask: Mask | None = None,
        *,
        qkv_format: str | None = None,
        cu_seqlens_q: Array | None = None,
        cu_seqlens_kv: Array | None = None,
        cu_seqlens_q_padded: Array | None = None,
        cu_seqlens_kv_padded: Array | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: Array | None = None,
        alibi_slopes: Array | None = None,
        pad_between_seqs: bool | None = None,
        inference_params: InferenceParams | None = None,
        **unbuilt: Any,
    ) -> Any:
        """Return the attention, heads side by side; a pair of it and the largest scores under ``return_max_logit``.

        Args:
            query_layer: [B, Lq, H, D] (``"sbhd"``: [Lq, B, H, D]).
            key_layer: [B, Lk, G, D].
            value_layer: [B, Lk, G, Dv].
            attention_mask: bool, True hides: [B, 1, 1, Lk] or a pair of [B, 1, 1, Lq] and [B, 1, 1, Lk] for padding
                types, broadcastable to [B, H, Lq, Lk] for ``"arbitrary"``; None for the other types.
            qkv_format: instead of the layer's.
            cu_seqlens_q: integers [B + 1], where each entry's queries start under ``"thd"``; in the other formats the
                lengths of the entries, in place of a padding mask.
            cu_seqlens_kv: likewise of the keys; those of the queries unless given.
            cu_seqlens_q_padded: where they start if there is room between them.
            cu_seqlens_kv_padded: likewise of the keys.
            max_seqlen_q: no entry has more queries; needed with ``"thd"``.
            max_seqlen_kv: likewise of the keys.
            attn_mask_type: instead of the layer's.
            window_size: instead of the layer's.
            bottom_right_diagonal: instead of the layer's.
            checkpoint_core_attention: keep only the inputs, and compute the attention again in backward with the same
                dropout (`nf.checkpoint`).
            core_attention_bias_type: ``"no_bias"``, ``"pre_scale_bias"``, ``"post_scale_bias"`` or ``"alibi"``.
            core_attention_bias: [1 or B, 1 or H, Lq, Lk] with the middle two; gets a gradient.
            alibi_slopes: float32 [H] or [B, H]; the geometric ones unless given.
            pad_between_seqs: whether the padded starts differ from the others; True needs them.
            inference_params: keys and values of earlier tokens; key_layer and value_layer hold the new ones and are
                kept there. In evaluation mode and inside `nf.no_grad` only; see `InferenceParams`.
            unbuilt: TE's further arguments, at their defaults only.
        """
        unbuilt = {name: value for name, value in unbuilt.items() if name not in UNUSED}
        refuse(_NAME, unbuilt, _UNBUILT_FORWARD)
        form = self.qkv_format if qkv_format is None else one_of(_NAME, "qkv_format", qkv_format, _FORMATS)
        q, k, v = (array(_NAME, x) for x in (query_layer, key_layer, value_layer))
        self._check(q, k, v, 3 if form == "thd" else 4)
        if pad_between_seqs and cu_seqlens_q_padded is None:
            do = "pass where each entry starts"
            raise ArgumentError(message(_NAME, "cu_seqlens_q_padded with pad_between_seqs", None, do))
        if form == "sbhd":
            q, k, v = (swapaxes(x, 0, 1) for x in (q, k, v))
        kind = self.attn_mask_type if attn_mask_type is None else _mask_type(attn_mask_type)
        corner = self.bottom_right_diagonal if bottom_right_diagonal is None else bottom_right_diagonal
        p = self.attention_dropout if self.training else 0.0
        options: dict[str, Any] = {
            "attn_mask_type": kind, "attention_mask": attention_mask, "softmax_scale": self.softmax_scale,
            "window_size": self.window_size if window_size is None else window_size, "dropout": p,
            "bottom_right_diagonal": corner, "core_attention_bias_type": core_attention_bias_type,
            "core_attention_bias": core_attention_bias, "alibi_slopes": alibi_slopes,
            "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_kv": cu_seqlens_kv, "cu_seqlens_q_padded": cu_seqlens_q_padded,
            "cu_seqlens_kv_padded": cu_seqlens_kv_padded, "max_seqlen_q": max_seqlen_q, "max_seqlen_kv": max_seqlen_kv,
            "softmax_type": self.softmax_type, "softmax_offset": self.softmax_offset, "softcap": self.softcap,
            "return_max_logit": self.return_max_logit, "deterministic": self.deterministic,
        }  # fmt: skip
        if inference_params is not None:
            found: Any = self._cached(inference_params, q, k, v, options)
        else:
            found = (
                checkpoint(self._core, q, k, v, options) if checkpoint_core_attention else self._core(q, k, v, options)
            )
        y, *highest = found if self.return_max_logit else (found,)
        if form == "sbhd":
            y = swapaxes(y, 0, 1)
        y = reshape(y, (*y.shape[:-2], y.shape[-2] * y.shape[-1]))
        return (y, *highest) if highest else y

    def _core(self, q: Array, k: Array, v: Array, options: dict[str, Any]) -> Any:
        with self._dropout.drawing(q.raw) if options["dropout"] else nullcontext() as draw:
            return attention(q, k, v, draw=draw, **options)

    def _cached(self, cache: InferenceParams, q: Array, k: Array, v: Array, options: dict[str, Any]) -> Array:
        check_cache(_NAME, cache)
        if options["dropout"]:
            raise ArgumentError(message(_NAME, "no dropout with inference_params", "training mode", "call .eval()"))
        if options["bottom_right_diagonal"]:  # where a cache ends its sequences anyway
            options["bottom_right_diagonal"] = None
        plain = {name: options[name] for name in ("attn_mask_type", "window_size", "softmax_scale")}
        refuse(f"{_NAME} with inference_params", {n: x for n, x in options.items() if n not in plain}, _UNCACHED)
        return cache.attend(self, q, k, v, **plain)

    def _check(self, q: Array, k: Array, v: Array, axes: int) -> None:
        heads, groups, (depth, values) = self.num_attention_heads, self.num_gqa_groups, self.kv_channels
        for name, x, tail in (
            ("query_layer", q, (heads, depth)), ("key_layer", k, (groups, depth)), ("value_layer", v, (groups, values)),
        ):  # fmt: skip
            if x.ndim != axes or x.shape[-2:] != tail:
                do = "split the heads, or make the layer with other sizes"
                lead = ".., " * (axes - 2)
                raise ShapeError(message(_NAME, f"{name} [{lead}{tail[0]}, {tail[1]}]", x.shape, do))

    def extra_state(self) -> dict[str, Any]:
        """Seed, step and calls of the dropout, once the layer has dropped something."""
        return self._dropout.state_dict()

    def load_extra_state(self, state: dict[str, Any]) -> Callable[[], None]:
        """Check saved dropout state and return the call that takes it."""
        return self._dropout.load(state)

    def extra_repr(self) -> str:
        """Sizes and mask type."""
        groups = "" if self.num_gqa_groups == self.num_attention_heads else f", num_gqa_groups={self.num_gqa_groups}"
        return f"{self.num_attention_heads}, {self.kv_channels}{groups}, attn_mask_type={self.attn_mask_type!r}"


def _mask_type(name: str) -> str:
    """Return a mask type; TE also writes ``"padding,causal"`` and ``"causal,padding"``."""
    if name in ("padding,causal", "causal,padding"):
        return "padding_causal"
    return one_of(_NAME, "attn_mask_type", name, tuple(MASK_TYPES))
