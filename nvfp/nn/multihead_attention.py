"""`MultiheadAttention`: projections, rotary embedding, attention, projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import array
from nvfp.arrays.functions.shape import reshape, swapaxes
from nvfp.arrays.random import Generator
from nvfp.errors import ArgumentError, ShapeError, message
from nvfp.nn import _te
from nvfp.nn._init import Init, count
from nvfp.nn.dot_product_attention import DotProductAttention
from nvfp.nn.functional._qkv import split_qkv
from nvfp.nn.functional.rope import rope
from nvfp.nn.inference import InferenceParams, check_cache
from nvfp.nn.layernorm_linear import LayerNormLinear
from nvfp.nn.linear import Linear
from nvfp.nn.module import Module
from nvfp.nn.norm import L2Normalization, LayerNorm, RMSNorm

_NORMS: dict[str, Callable[..., Module]] = {
    "RMSNorm": RMSNorm, "LayerNorm": LayerNorm, "L2Normalization": L2Normalization,
}  # fmt: skip


class MultiheadAttention(Module):
    """Attention with its projections: query, key and value are one GEMM, ``proj`` the other.

    Cross-attention takes queries from its input, keys and values (one GEMM, ``key_value``) from ``encoder_output``.

    Args:
        hidden_size: E, of input and output.
        num_attention_heads: H.
        kv_channels: D, length of a head; E / H unless given.
        attention_dropout: chance that an attention weight is dropped in training.
        layernorm_epsilon: eps of the input norm.
        init_method: of the query, key and value weights; default normal with standard deviation 0.023.
        output_layer_init_method: of ``proj.weight``.
        layer_number: kept for TE's signature.
        attn_mask_type: ``"causal"`` (top-left), ``"no_mask"``, ``"padding"``, ``"padding_causal"``,
            ``"causal_bottom_right"``, ``"padding_causal_bottom_right"`` or ``"arbitrary"``.
        window_size: (left, right) of a sliding window; -1 means no limit.
        bottom_right_diagonal: as in `DotProductAttention`.
        num_gqa_groups: G key and value heads for H query heads; H unless given.
        return_bias: leave the bias of ``proj`` out and return it behind the result.
        return_layernorm_output: return the normalized input too, as the last value.
        input_layernorm: normalize the input; the projection is then `LayerNormLinear` ``layernorm_qkv``
            (``layernorm_query``), otherwise `Linear` ``qkv`` (``query_layer``).
        attention_type: ``"self"`` or ``"cross"``.
        fuse_qkv_params: one parameter ``weight`` for all three instead of ``query_weight``, ``key_weight``,
            ``value_weight`` (it is one GEMM in both cases).
        zero_centered_gamma: of the input norm.
        qkv_weight_interleaved: rows of the fused parameter are ordered per group: its queries, key, value (of
            ``key_value``: its key, value); otherwise all queries, all keys, all values.
        rotary_pos_interleaved: rotate pairs of neighbours instead of halves.
        bias: of both projections.
        normalization: ``"LayerNorm"`` or ``"RMSNorm"``.
        qkv_format: ``"bshd"``: input and result are (batch, sequence, hidden); ``"sbhd"``, TE's default: (sequence,
            batch, hidden); ``"thd"``: (tokens, hidden), the entries of the batch one behind the other.
        qk_norm_type: ``"RMSNorm"``, ``"LayerNorm"`` or ``"L2Normalization"`` (no parameters): normalize the heads of
            query and key.
        qk_norm_eps: its eps.
        qk_norm_before_rope: do so before the rotary embedding, not after it.
        softmax_type: ``"vanilla"``, ``"off-by-one"`` or ``"learnable"``; see `DotProductAttention`.
        deterministic: as in `DotProductAttention`.
        dtype: of the parameters; float32 unless given. ``params_dtype`` is TE's name for it.
        device: of the parameters; the default device unless given. ``"meta"``: see `Module.reset_parameters`.
        rng: a `nf.random.Generator` for initial values and dropout; without one fresh entropy.
        fuse_wgrad_accumulation: as in `Linear`.
        delay_wgrad_compute: as in `Linear`.
        name: shown in reports.
        te: TE's other arguments (several devices), at their defaults only.

    Raises:
        ArgumentError: heads that do not divide, or an unknown word.
        NotBuiltError: another of TE's arguments, by name.

    Numerics: the GEMMs follow the recipe in force, attention computes in the dtype of the input.

    Example:
        >>> import nvfp as nf
        >>> layer = nf.nn.MultiheadAttention(16, 4, num_gqa_groups=2, bias=False, device="cpu")
        >>> layer(nf.ones((2, 3, 16), device="cpu")).shape, layer.qkv.key_weight.shape
        ((2, 3, 16), (8, 16))
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        kv_channels: int | None = None,
        attention_dropout: float = 0.1,
        layernorm_epsilon: float = 1e-5,
        init_method: Init | None = None,
        output_layer_init_method: Init | None = None,
        layer_number: int | None = None,
        *,
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        num_gqa_groups: int | None = None,
        return_bias: bool = False,
        return_layernorm_output: bool = False,
        input_layernorm: bool = False,
        attention_type: str = "self",
        fuse_qkv_params: bool = False,
        zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True,
        rotary_pos_interleaved: bool = False,
        bias: bool = True,
        normalization: str = "LayerNorm",
        qkv_format: str = "bshd",
        qk_norm_type: str | None = None,
        qk_norm_eps: float = 1e-6,
        qk_norm_before_rope: bool = False,
        softmax_type: str = "vanilla",
        deterministic: bool = True,
        fuse_wgrad_accumulation: bool = False,
        delay_wgrad_compute: bool = False,
        dtype: Any = None,
        params_dtype: Any = None,
        device: Any = None,
        rng: Generator | None = None,
        name: str = "",
        **te: Any,
    ) -> None:
        super().__init__()
        own = "MultiheadAttention"
        _te.refuse(own, te, _te.BLOCK)
        self.attention_type = _te.one_of(own, "attention_type", attention_type, ("self", "cross"))
        self.qkv_format = _te.one_of(own, "qkv_format", qkv_format, ("bshd", "sbhd", "thd"))
        self._sizes(hidden_size, num_attention_heads, num_gqa_groups, kv_channels)
        self.layer_number, self.name = layer_number, name
        self.attn_mask_type, self.window_size = attn_mask_type, window_size
        self.input_layernorm, self.return_layernorm_output = bool(input_layernorm), bool(return_layernorm_output)
        self.return_bias, self.rotary_pos_interleaved = bool(return_bias), bool(rotary_pos_interleaved)
        self.qkv_weight_interleaved = bool(fuse_qkv_params and qkv_weight_interleaved)
        dtype = _te.parameter_dtype(own, dtype, params_dtype)
        options: dict[str, Any] = {"bias": bias, "dtype": dtype, "device": device, "rng": rng}
        options |= {
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "delay_wgrad_compute": delay_wgrad_compute,
        }
        q, kv = self.num_attention_heads * self.kv_channels, self.num_gqa_groups * self.kv_channels
        projection = {**options, "init_method": init_method}
        rows = {"query": q} if attention_type == "cross" else {"query": q, "key": kv, "value": kv}
        split: dict[str, Any] = {} if fuse_qkv_params else {"parameters_split": rows}
        what, kind = ("query", "query_layer") if attention_type == "cross" else ("qkv", "qkv")
        if self.input_layernorm:
            first: Module = LayerNormLinear(
                self.hidden_size,
                sum(rows.values()),
                layernorm_epsilon,
                normalization=normalization,
                zero_centered_gamma=zero_centered_gamma,
                return_layernorm_output=return_layernorm_output,
                name=f"{name}.layernorm_linear_{what}" if name else "",
                **projection,
                **split,
            )
        else:
            first = Linear(
                self.hidden_size,
                sum(rows.values()),
                name=f"{name}.linear_{what}" if name else "",
                **projection,
                **split,
            )
        self._first = f"layernorm_{what}" if self.input_layernorm else kind
        setattr(self, self._first, first)
        if attention_type == "cross":
            if not fuse_qkv_params:
                split = {"parameters_split": {"key": kv, "value": kv}}
            self.key_value = Linear(
                self.hidden_size, 2 * kv, name=f"{name}.linear_kv" if name else "", **projection, **split
            )
        self._add_qk_norm(qk_norm_type, qk_norm_eps, qk_norm_before_rope, dtype, device)
        self.core_attention = DotProductAttention(
            self.num_attention_heads,
            self.kv_channels,
            num_gqa_groups=self.num_gqa_groups,
            attention_dropout=attention_dropout,
            qkv_format=qkv_format,
            attn_mask_type=attn_mask_type,
            window_size=window_size,
            bottom_right_diagonal=bottom_right_diagonal,
            attention_type=attention_type,
            layer_number=layer_number,
            softmax_type=softmax_type,
            deterministic=deterministic,
            device=device,
            rng=rng,
        )
        self.proj = Linear(
            q,
            self.hidden_size,
            init_method=output_layer_init_method,
            return_bias=return_bias,
            name=f"{name}.proj" if name else "",
            **options,
        )

    def _sizes(self, hidden: Any, heads: Any, groups: Any, channels: Any) -> None:
        own = "MultiheadAttention"
        self.hidden_size = count(own, "hidden_size", hidden)
        self.num_attention_heads = count(own, "num_attention_heads", heads)
        self.num_gqa_groups = self.num_attention_heads if groups is None else count(own, "num_gqa_groups", groups)
        if self.num_attention_heads % self.num_gqa_groups:
            got = f"{self.num_attention_heads} heads, {self.num_gqa_groups} groups"
            raise ArgumentError(message(own, "num_gqa_groups that divide the heads", got, "choose a divisor"))
        if channels is None and self.hidden_size % self.num_attention_heads:
            got = f"{self.hidden_size} and {self.num_attention_heads}"
            do = "choose a divisor or pass kv_channels"
            raise ArgumentError(message(own, "heads that divide hidden_size", got, do))
        self.kv_channels = (
            self.hidden_size // self.num_attention_heads if channels is None else count(own, "kv_channels", channels)
        )

    def _add_qk_norm(self, kind: str | None, eps: float, before_rope: bool, dtype: Any, device: Any) -> None:
        self.q_norm: Module | None = None
        self.k_norm: Module | None = None
        self.qk_norm_before_rope = bool(before_rope)
        if kind is not None:
            _te.one_of("MultiheadAttention", "qk_norm_type", kind, tuple(_NORMS))
            options: dict[str, Any] = {"eps": eps, "device": device, "dtype": dtype}
            self.q_norm = _NORMS[kind](self.kv_channels, **options)
            self.k_norm = _NORMS[kind](self.kv_channels, **options)

    def forward(
        self,
        hidden_states: Array,
        attention_mask: Array | tuple[Array, Array] | None = None,
        encoder_output: Array | None = None,
        *,
        window_size: tuple[int, int] | None = None,
        is_first_microbatch: bool | None = None,
        rotary_pos_emb: Array | tuple[Array, Array] | None = None,
        inference_params: InferenceParams | None = None,
        **attention: Any,
    ) -> Any:
        """Return the projected attention [B, L, E], and behind it what the constructor's ``return_`` arguments ask for.

        Args:
            hidden_states: [B, L, E] (``"sbhd"``: [L, B, E], ``"thd"``: [T, E]; and so the result).
            attention_mask: bool, True = masked out: [B, 1, 1, L] for padding, broadcastable to [B, H, L, Lk]
                for ``"arbitrary"``; see `DotProductAttention`.
            encoder_output: [B, Lk, E] (in the layer's format), which keys and values come from in cross-attention.
            window_size: in place of the constructor's.
            is_first_microbatch: as in `Linear`.
            rotary_pos_emb: angles of `RotaryPositionEmbedding`, or a pair of them for query and key; under ``"thd"``
                one row for each token.
            inference_params: as in `DotProductAttention`; ``rotary_pos_emb`` then holds the angles of all its
                positions. Cross-attention keeps nothing there.
            attention: further arguments of `DotProductAttention.forward`: ``attn_mask_type``,
                ``checkpoint_core_attention``, ``core_attention_bias_type``, ``core_attention_bias``,
                ``alibi_slopes``, ``bottom_right_diagonal``, ``cu_seqlens_q`` and the like.

        Raises:
            ShapeError: an input that is not [B, L, E].
            ArgumentError: an ``encoder_output`` in self-attention, or none in cross-attention.
        """
        own = "MultiheadAttention"
        x = self._input("hidden_states", hidden_states)
        memory = None if encoder_output is None else self._input("encoder_output", encoder_output)
        if (memory is None) == (self.attention_type == "cross"):
            expected = f"encoder_output with cross-attention only, this is {self.attention_type}-attention"
            got = "none" if memory is None else f"one of shape {memory.shape}"
            raise ArgumentError(message(own, expected, got, "pass what the type needs"))
        attention = {name: value for name, value in attention.items() if name not in _te.UNUSED}
        first = getattr(self, self._first)(x, is_first_microbatch)
        first, normed = first if self.input_layernorm and self.return_layernorm_output else (first, None)
        query, key, value = self._heads(first, memory, is_first_microbatch)
        if self.qkv_format == "sbhd":
            query, key, value = (swapaxes(z, 0, 1) for z in (query, key, value))
        cache = inference_params if memory is None else None
        query, key = self._placed(query, key, rotary_pos_emb, cache)
        if self.qkv_format == "thd":
            query, key, value = (reshape(z, z.shape[1:]) for z in (query, key, value))
        context = self.core_attention(
            query,
            key,
            value,
            attention_mask=attention_mask,
            qkv_format="thd" if self.qkv_format == "thd" else "bshd",
            inference_params=cache,
            **({} if window_size is None else {"window_size": window_size}),
            **attention,
        )
        if self.qkv_format == "sbhd":
            context = swapaxes(context, 0, 1)
        y = self.proj(context, is_first_microbatch)
        outputs = y if self.return_bias else (y,)
        if self.return_layernorm_output and self.input_layernorm:
            outputs = (*outputs, normed)
        return outputs if len(outputs) > 1 else outputs[0]

    def _input(self, name: str, x: Any) -> Array:
        """``x`` as an Array, checked."""
        x = array("MultiheadAttention", x)
        axes = 2 if self.qkv_format == "thd" else 3
        if x.ndim != axes or x.shape[-1] != self.hidden_size:
            lead = "tokens" if axes == 2 else "batch, sequence"
            expected = f"{name} ({lead}, {self.hidden_size})"
            raise ShapeError(message("MultiheadAttention", expected, x.shape, "reshape the input"))
        return x  # type: ignore[no-any-return]

    def _heads(self, first: Array, memory: Array | None, microbatch: bool | None) -> tuple[Array, Array, Array]:
        """Query, key and value [B, L, heads, D] (``"sbhd"``: [L, B, heads, D], ``"thd"``: [1, T, heads, D])."""
        heads, groups, channels = self.num_attention_heads, self.num_gqa_groups, self.kv_channels
        interleaved = self.qkv_weight_interleaved
        if memory is None:
            return split_qkv(self._batched(first), heads, groups, channels, interleaved=interleaved)
        mixed = self._batched(self.key_value(memory, microbatch))
        _, key, value = split_qkv(mixed, 0, groups, channels, interleaved=interleaved)
        first = self._batched(first)
        return reshape(first, (*first.shape[:2], heads, channels)), key, value

    def _batched(self, x: Array) -> Array:
        return reshape(x, (1, *x.shape)) if self.qkv_format == "thd" else x

    def _placed(self, query: Array, key: Array, rotary: Any, cache: InferenceParams | None) -> tuple[Array, Array]:
        """Query and key, normalized and rotated."""
        if self.qk_norm_before_rope:
            query, key = self._normed(query, key)
        if rotary is not None:
            pair = rotary if isinstance(rotary, tuple) else (rotary, rotary)
            if len(pair) != 2:
                expected, do = "rotary_pos_emb for query and key", "pass one Array, or two"
                raise ArgumentError(message("MultiheadAttention", expected, f"{len(pair)} of them", do))
            q_freqs, k_freqs = pair
            interleaved = self.rotary_pos_interleaved
            if cache is not None:
                cache = check_cache("MultiheadAttention", cache)
                query, key = cache.rotate(query, key, q_freqs, k_freqs, interleaved=interleaved)
            else:
                query = rope(query, q_freqs, interleaved=interleaved)
                key = rope(key, k_freqs, interleaved=interleaved)
        return (query, key) if self.qk_norm_before_rope else self._normed(query, key)

    def _normed(self, query: Array, key: Array) -> tuple[Array, Array]:
        if self.q_norm is None or self.k_norm is None:
            return query, key
        return self.q_norm(query), self.k_norm(key)

    def extra_repr(self) -> str:
        """Sizes and mask."""
        return (
            f"hidden_size={self.hidden_size}, num_attention_heads={self.num_attention_heads}, "
            f"num_gqa_groups={self.num_gqa_groups}, attn_mask_type={self.attn_mask_type}"
        )
