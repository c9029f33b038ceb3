"""`TransformerLayer`: attention and MLP, each with its norm, dropout and residual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import array
from nvfp.arrays.random import Generator
from nvfp.errors import ArgumentError, message
from nvfp.nn import _te
from nvfp.nn._init import Init
from nvfp.nn.drop_path import DropPath
from nvfp.nn.dropout import Dropout
from nvfp.nn.inference import InferenceParams
from nvfp.nn.layernorm_mlp import LayerNormMLP
from nvfp.nn.module import Module
from nvfp.nn.multihead_attention import MultiheadAttention
from nvfp.nn.norm import LayerNorm, RMSNorm

# Arguments of attention that say where the queries' entries lie, and their counterparts for the keys.
_LENGTHS = {
    "cu_seqlens_kv": "cu_seqlens_q",
    "cu_seqlens_kv_padded": "cu_seqlens_q_padded",
    "max_seqlen_kv": "max_seqlen_q",
}
_INTER = (*_LENGTHS, *_LENGTHS.values(), "checkpoint_core_attention", "pad_between_seqs")


class TransformerLayer(Module):
    """One block of a Transformer: ``x + drop(attention(norm(x)))``, then ``x + drop(mlp(norm(x)))``.

    A decoder has cross-attention over ``encoder_output`` between them, ``x + drop(inter_attention(norm(x)))``.

    Args:
        hidden_size: E.
        ffn_hidden_size: F, inside the MLP.
        num_attention_heads: H.
        num_gqa_groups: key and value heads; H unless given.
        layernorm_epsilon: eps of every norm.
        hidden_dropout: chance of being dropped before each residual addition, in training.
        attention_dropout: chance that an attention weight is dropped, in training.
        init_method: of the query, key, value and first MLP weights; default normal with standard deviation 0.023.
        output_layer_init_method: of ``proj`` and the second MLP weight.
        layer_number: kept for TE's signature.
        kv_channels: length of a head; E / H unless given.
        self_attn_mask_type: ``"causal"`` (top-left) unless given; see `MultiheadAttention`.
        window_size: (left, right) of a sliding window.
        bottom_right_diagonal: as in `DotProductAttention`.
        apply_residual_connection_post_layernorm: add the norm's output instead of its input.
        output_layernorm: no norm before attention, one behind the block (``layernorm``).
        parallel_attention_mlp: ``x + drop(attention(norm(x)) + mlp(norm'(x)))``.
        layer_type: ``"encoder"`` or ``"decoder"``.
        enc_dec_attn_mask_type: of the decoder's cross-attention; ``"no_mask"`` unless given.
        enc_dec_window_size: its sliding window.
        enc_dec_bottom_right_diagonal: its ``bottom_right_diagonal``.
        fuse_qkv_params: one parameter for query, key and value; see `MultiheadAttention`.
        zero_centered_gamma: of every norm.
        qkv_weight_interleaved: of the fused parameter.
        bias: of every GEMM.
        activation: see `LayerNormMLP`.
        activation_params: see `LayerNormMLP`.
        normalization: ``"LayerNorm"`` or ``"RMSNorm"``.
        attn_input_format: ``"bshd"``: input and result are (batch, sequence, hidden); ``"sbhd"``, TE's default:
            (sequence, batch, hidden); ``"thd"``: (tokens, hidden), see `MultiheadAttention`.
        rotary_pos_interleaved: rotate pairs of neighbours instead of halves.
        qk_norm_type: see `MultiheadAttention`.
        qk_norm_eps: see `MultiheadAttention`.
        qk_norm_before_rope: see `MultiheadAttention`.
        softmax_type: see `MultiheadAttention`.
        drop_path_rate: chance that a sample loses a branch (what attention or MLP adds), in training; `DropPath`.
        deterministic: as in `DotProductAttention`.
        dtype: of the parameters; float32 unless given. ``params_dtype`` is TE's name for it.
        device: of the parameters; the default device unless given. ``"meta"``: see `Module.reset_parameters`.
        rng: a `nf.random.Generator` for initial values and dropout; without one fresh entropy.
        fuse_wgrad_accumulation: as in `Linear`.
        delay_wgrad_compute: as in `Linear`.
        name: shown in reports.
        te: TE's other arguments (several devices), at their defaults only.

    Shapes: input and result [B, L, E]. Parameter names are TE's, so that its state dicts load.

    Raises:
        ArgumentError: arguments that exclude each other, or an unknown word.
        NotBuiltError: another of TE's arguments, by name.

    Numerics: the four GEMMs follow the recipe in force; norms, activation, softmax and dropout compute in
        float32 and round to the dtype of the input, which is also that of the residual stream.

    Example:
        >>> import nvfp as nf
        >>> layer = nf.nn.TransformerLayer(16, 32, 4, device="cpu", rng=nf.random.default_rng(0, device="cpu"))
        >>> with nf.autocast(enabled=True, recipe=nf.recipes.MXFP8BlockScaling()):
        ...     layer(nf.ones((2, 5, 16), device="cpu")).shape
        (2, 5, 16)
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        num_attention_heads: int,
        num_gqa_groups: int | None = None,
        layernorm_epsilon: float = 1e-5,
        hidden_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        init_method: Init | None = None,
        output_layer_init_method: Init | None = None,
        layer_number: int | None = None,
        kv_channels: int | None = None,
        self_attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        *,
        bottom_right_diagonal: bool | None = None,
        apply_residual_connection_post_layernorm: bool = False,
        output_layernorm: bool = False,
        parallel_attention_mlp: bool = False,
        layer_type: str = "encoder",
        enc_dec_attn_mask_type: str = "no_mask",
        enc_dec_window_size: tuple[int, int] | None = None,
        enc_dec_bottom_right_diagonal: bool | None = None,
        fuse_qkv_params: bool = False,
        zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True,
        bias: bool = True,
        activation: str = "gelu",
        activation_params: Mapping[str, float] | None = None,
        normalization: str = "LayerNorm",
        attn_input_format: str = "bshd",
        rotary_pos_interleaved: bool = False,
        qk_norm_type: str | None = None,
        qk_norm_eps: float = 1e-6,
        qk_norm_before_rope: bool = False,
        softmax_type: str = "vanilla",
        drop_path_rate: float = 0.0,
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
        own = "TransformerLayer"
        _te.refuse(own, te, _te.BLOCK)
        self.layer_type = _te.one_of(own, "layer_type", layer_type, ("encoder", "decoder"))
        _te.one_of(own, "attn_input_format", attn_input_format, ("bshd", "sbhd", "thd"))
        self.apply_residual_connection_post_layernorm = bool(apply_residual_connection_post_layernorm)
        self.output_layernorm, self.parallel_attention_mlp = bool(output_layernorm), bool(parallel_attention_mlp)
        others = ("apply_residual_connection_post_layernorm", "output_layernorm")
        if self.parallel_attention_mlp and (got := [name for name in others if getattr(self, name)]):
            raise ArgumentError(message(own, "parallel_attention_mlp by itself", f"{got[0]} too", "drop one of them"))
        if self.parallel_attention_mlp and layer_type == "decoder":
            do = "drop parallel_attention_mlp"
            raise ArgumentError(message(own, "parallel_attention_mlp in an encoder", "a decoder", do))
        self.layer_number, self.name = layer_number, name
        self.hidden_dropout = hidden_dropout
        weights: dict[str, Any] = {
            "init_method": init_method,
            "output_layer_init_method": output_layer_init_method,
            "return_layernorm_output": self.apply_residual_connection_post_layernorm,
            "bias": bias,
            "dtype": _te.parameter_dtype(own, dtype, params_dtype),
            "device": device,
            "rng": rng,
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "delay_wgrad_compute": delay_wgrad_compute,
        }
        norm: dict[str, Any] = {"normalization": normalization, "zero_centered_gamma": zero_centered_gamma}
        heads: dict[str, Any] = {
            "hidden_size": hidden_size, "num_attention_heads": num_attention_heads, "kv_channels": kv_channels,
            "attention_dropout": attention_dropout, "layernorm_epsilon": layernorm_epsilon,
            "layer_number": layer_number, "num_gqa_groups": num_gqa_groups, "fuse_qkv_params": fuse_qkv_params,
            "qkv_weight_interleaved": qkv_weight_interleaved, "qkv_format": attn_input_format,
            "rotary_pos_interleaved": rotary_pos_interleaved, "qk_norm_type": qk_norm_type,
            "qk_norm_eps": qk_norm_eps, "qk_norm_before_rope": qk_norm_before_rope, "softmax_type": softmax_type,
            "deterministic": deterministic,
        }  # fmt: skip
        self.self_attention = MultiheadAttention(
            attn_mask_type=self_attn_mask_type,
            window_size=window_size,
            bottom_right_diagonal=bottom_right_diagonal,
            input_layernorm=not self.output_layernorm,
            name=f"{name}.self_attention" if name else "",
            **heads,
            **weights,
            **norm,
        )
        if layer_type == "decoder":
            self.inter_attention = MultiheadAttention(
                attn_mask_type=enc_dec_attn_mask_type,
                window_size=enc_dec_window_size,
                bottom_right_diagonal=enc_dec_bottom_right_diagonal,
                input_layernorm=True,
                attention_type="cross",
                name=f"{name}.inter_attention" if name else "",
                **heads,
                **weights,
                **norm,
            )
        self.layernorm_mlp = LayerNormMLP(
            hidden_size,
            ffn_hidden_size,
            layernorm_epsilon,
            activation=activation,
            activation_params=activation_params,
            name=f"{name}.layernorm_mlp" if name else "",
            **weights,
            **norm,
        )
        self.dropout = Dropout(hidden_dropout, rng=rng)
        if drop_path_rate and attn_input_format == "thd":
            do = "leave drop_path_rate out, or pad the samples"
            raise ArgumentError(message(own, "drop_path_rate=0.0 for packed samples", drop_path_rate, do))
        self.drop_path = DropPath(drop_path_rate, axis=1 if attn_input_format == "sbhd" else 0, rng=rng)
        if self.output_layernorm:
            kind = RMSNorm if normalization == "RMSNorm" else LayerNorm
            place = {key: weights[key] for key in ("dtype", "device")}
            self.layernorm = kind(hidden_size, layernorm_epsilon, zero_centered_gamma, **place)

    def forward(
        self,
        hidden_states: Array,
        attention_mask: Array | tuple[Array, Array] | None = None,
        self_attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        encoder_output: Array | None = None,
        enc_dec_attn_mask: Array | tuple[Array, Array] | None = None,
        *,
        enc_dec_attn_mask_type: str | None = None,
        enc_dec_window_size: tuple[int, int] | None = None,
        enc_dec_bottom_right_diagonal: bool | None = None,
        is_first_microbatch: bool | None = None,
        rotary_pos_emb: Array | tuple[Array, Array] | None = None,
        inference_params: InferenceParams | None = None,
        **attention: Any,
    ) -> Array:
        """Return the block's output [B, L, E].

        Args:
            hidden_states: [B, L, E].
            attention_mask: bool, True = masked out; see `MultiheadAttention`.
            self_attn_mask_type: in place of the constructor's.
            window_size: in place of the constructor's.
            encoder_output: [B, Lk, E], for a decoder.
            enc_dec_attn_mask: bool, True = masked out, for the cross-attention.
            enc_dec_attn_mask_type: in place of the constructor's.
            enc_dec_window_size: in place of the constructor's.
            enc_dec_bottom_right_diagonal: in place of the constructor's.
            is_first_microbatch: as in `Linear`.
            rotary_pos_emb: angles of `RotaryPositionEmbedding`, or a pair of them for query and key; for the
                self-attention.
            inference_params: as in `MultiheadAttention`.
            attention: further arguments of `MultiheadAttention.forward`. Lengths (``cu_seqlens_q`` ...,
                ``max_seqlen_q`` ...) and ``checkpoint_core_attention`` reach both attentions of a decoder, those of
                the keys the cross-attention alone; biases and slopes the self-attention.

        Raises:
            ShapeError: an input that is not [B, L, E].
            ArgumentError: an ``encoder_output`` for an encoder, or none for a decoder.
        """
        x = array("TransformerLayer", hidden_states)
        self._check_encoder(encoder_output, enc_dec_attn_mask)
        own = attention
        if self.layer_type == "decoder":  # its own keys lie as its queries do
            own = {k: attention.get(_LENGTHS.get(k, k)) for k in attention}
        attended = self.self_attention(
            x,
            attention_mask,
            attn_mask_type=self_attn_mask_type,
            window_size=window_size,
            is_first_microbatch=is_first_microbatch,
            rotary_pos_emb=rotary_pos_emb,
            inference_params=inference_params,
            **own,
        )
        if self.parallel_attention_mlp:
            mlp = self.layernorm_mlp(x, is_first_microbatch)
            return self._add(attended + mlp, x)
        residual = x
        if self.apply_residual_connection_post_layernorm and not self.output_layernorm:
            attended, residual = attended
        x = self._add(attended, residual)
        if self.layer_type == "decoder":
            crossed = self.inter_attention(
                x,
                enc_dec_attn_mask,
                encoder_output,
                attn_mask_type=enc_dec_attn_mask_type,
                window_size=enc_dec_window_size,
                bottom_right_diagonal=enc_dec_bottom_right_diagonal,
                is_first_microbatch=is_first_microbatch,
                **{k: value for k, value in attention.items() if k in _INTER},
            )
            crossed, residual = crossed if self.apply_residual_connection_post_layernorm else (crossed, x)
            x = self._add(crossed, residual)
        mlp, residual = self.layernorm_mlp(x, is_first_microbatch), x
        if self.apply_residual_connection_post_layernorm:
            mlp, residual = mlp
        y = self._add(mlp, residual)
        return self.layernorm(y) if self.output_layernorm else y

    def _add(self, branch: Array, residual: Array) -> Array:
        """What a branch makes of the stream."""
        if self.training and self.drop_path.rate:
            return residual + self.drop_path(self.dropout(branch))  # type: ignore[no-any-return]
        return self.dropout(branch, residual=residual)  # type: ignore[no-any-return]

    def _check_encoder(self, encoder_output: Any, mask: Any) -> None:
        decoder = self.layer_type == "decoder"
        if decoder != (encoder_output is not None) or (mask is not None and not decoder):
            expected = "encoder_output (and enc_dec_attn_mask) with layer_type='decoder' only"
            got = "no encoder_output" if decoder else "one for an encoder"
            raise ArgumentError(message("TransformerLayer", expected, got, "pass what the type needs"))

    def extra_repr(self) -> str:
        """What the parts do not say."""
        return f"hidden_dropout={self.hidden_dropout:g}, layer_type={self.layer_type}"
