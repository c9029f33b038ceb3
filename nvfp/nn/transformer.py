"""`TransformerLayer`: attention and MLP, each with its norm, dropout and residual."""

from __future__ import annotations

from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import array
from nvfp.arrays.random import Generator
from nvfp.errors import ArgumentError, message
from nvfp.nn import _te
from nvfp.nn._init import Init
from nvfp.nn.dropout import Dropout
from nvfp.nn.inference import InferenceParams
from nvfp.nn.layernorm_mlp import LayerNormMLP
from nvfp.nn.module import Module
from nvfp.nn.multihead_attention import MultiheadAttention
from nvfp.nn.norm import LayerNorm, RMSNorm

_UNBUILT = {
    **_te.BLOCK,
    "enc_dec_attn_mask_type": "no_mask",
    "enc_dec_window_size": None,
    "drop_path_rate": 0.0,
    "activation_params": None,
}


class TransformerLayer(Module):
    """One block of a Transformer: ``x + drop(attention(norm(x)))``, then ``x + drop(mlp(norm(x)))``.

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
        apply_residual_connection_post_layernorm: add the norm's output instead of its input.
        output_layernorm: no norm before attention, one behind the block (``layernorm``).
        parallel_attention_mlp: ``x + drop(attention(norm(x)) + mlp(norm'(x)))``.
        layer_type: ``"encoder"``.
        fuse_qkv_params: one parameter for query, key and value; see `MultiheadAttention`.
        zero_centered_gamma: of every norm.
        qkv_weight_interleaved: of the fused parameter.
        bias: of every GEMM.
        activation: see `LayerNormMLP`.
        normalization: ``"LayerNorm"`` or ``"RMSNorm"``.
        attn_input_format: ``"bshd"``: input and result are (batch, sequence, hidden); ``"sbhd"``, TE's default:
            (sequence, batch, hidden).
        rotary_pos_interleaved: rotate pairs of neighbours instead of halves.
        qk_norm_type: see `MultiheadAttention`.
        qk_norm_eps: see `MultiheadAttention`.
        qk_norm_before_rope: see `MultiheadAttention`.
        softmax_type: ``"vanilla"``.
        dtype: of the parameters; float32 unless given. ``params_dtype`` is TE's name for it.
        device: of the parameters; the default device unless given.
        rng: a `nf.random.Generator` for initial values and dropout; without one fresh entropy.
        fuse_wgrad_accumulation: as in `Linear`.
        delay_wgrad_compute: as in `Linear`.
        name: shown in reports.
        te: TE's other arguments (decoder, drop path, several devices), at their defaults only.

    Shapes: input and result [B, L, E]. Parameter names are TE's, so that its state dicts load.

    Raises:
        ArgumentError: arguments that exclude each other, or an unknown word.
        NotBuiltError: ``layer_type="decoder"``, another layout, or another of TE's arguments, by name.

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
        apply_residual_connection_post_layernorm: bool = False,
        output_layernorm: bool = False,
        parallel_attention_mlp: bool = False,
        layer_type: str = "encoder",
        fuse_qkv_params: bool = False,
        zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True,
        bias: bool = True,
        activation: str = "gelu",
        normalization: str = "LayerNorm",
        attn_input_format: str = "bshd",
        rotary_pos_interleaved: bool = False,
        qk_norm_type: str | None = None,
        qk_norm_eps: float = 1e-6,
        qk_norm_before_rope: bool = False,
        softmax_type: str = "vanilla",
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
        _te.refuse(own, te, _UNBUILT)
        self.layer_type = _te.one_of(own, "layer_type", layer_type, ("encoder",), ("decoder",))
        _te.one_of(own, "attn_input_format", attn_input_format, ("bshd", "sbhd"), ("thd",))
        self.apply_residual_connection_post_layernorm = bool(apply_residual_connection_post_layernorm)
        self.output_layernorm, self.parallel_attention_mlp = bool(output_layernorm), bool(parallel_attention_mlp)
        others = ("apply_residual_connection_post_layernorm", "output_layernorm")
        if self.parallel_attention_mlp and (got := [name for name in others if getattr(self, name)]):
            raise ArgumentError(message(own, "parallel_attention_mlp by itself", f"{got[0]} too", "drop one of them"))
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
        self.self_attention = MultiheadAttention(
            hidden_size,
            num_attention_heads,
            kv_channels,
            attention_dropout,
            layernorm_epsilon,
            layer_number=layer_number,
            attn_mask_type=self_attn_mask_type,
            window_size=window_size,
            num_gqa_groups=num_gqa_groups,
            input_layernorm=not self.output_layernorm,
            fuse_qkv_params=fuse_qkv_params,
            qkv_weight_interleaved=qkv_weight_interleaved,
            qkv_format=attn_input_format,
            rotary_pos_interleaved=rotary_pos_interleaved,
            qk_norm_type=qk_norm_type,
            qk_norm_eps=qk_norm_eps,
            qk_norm_before_rope=qk_norm_before_rope,
            softmax_type=softmax_type,
            name=f"{name}.self_attention" if name else "",
            **weights,
            **norm,
        )
        self.layernorm_mlp = LayerNormMLP(
            hidden_size,
            ffn_hidden_size,
            layernorm_epsilon,
            activation=activation,
            name=f"{name}.layernorm_mlp" if name else "",
            **weights,
            **norm,
        )
        self.dropout = Dropout(hidden_dropout, rng=rng)
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
        *,
        is_first_microbatch: bool | None = None,
        rotary_pos_emb: Array | tuple[Array, Array] | None = None,
        checkpoint_core_attention: bool = False,
        inference_params: InferenceParams | None = None,
        **te: Any,
    ) -> Array:
        """Return the block's output [B, L, E].

        Args:
            hidden_states: [B, L, E].
            attention_mask: bool, True = masked out; see `MultiheadAttention`.
            self_attn_mask_type: in place of the constructor's.
            window_size: in place of the constructor's.
            is_first_microbatch: as in `Linear`.
            rotary_pos_emb: angles of `RotaryPositionEmbedding`, or a pair of them for query and key.
            checkpoint_core_attention: as in `DotProductAttention`.
            inference_params: as in `MultiheadAttention`.
            te: TE's other arguments, at their defaults only.

        Raises:
            ShapeError: an input that is not [B, L, E].
        """
        _te.refuse("TransformerLayer.forward", te, _te.LAYER_FORWARD)
        x = array("TransformerLayer", hidden_states)
        attended = self.self_attention(
            x,
            attention_mask,
            attn_mask_type=self_attn_mask_type,
            window_size=window_size,
            is_first_microbatch=is_first_microbatch,
            rotary_pos_emb=rotary_pos_emb,
            checkpoint_core_attention=checkpoint_core_attention,
            inference_params=inference_params,
        )
        if self.parallel_attention_mlp:
            mlp = self.layernorm_mlp(x, is_first_microbatch)
            return self.dropout(attended + mlp, residual=x)  # type: ignore[no-any-return]
        residual = x
        if self.apply_residual_connection_post_layernorm and not self.output_layernorm:
            attended, residual = attended
        x = self.dropout(attended, residual=residual)
        mlp, residual = self.layernorm_mlp(x, is_first_microbatch), x
        if self.apply_residual_connection_post_layernorm:
            mlp, residual = mlp
        y: Array = self.dropout(mlp, residual=residual)
        return self.layernorm(y) if self.output_layernorm else y

    def extra_repr(self) -> str:
        """What the parts do not say."""
        return f"hidden_dropout={self.hidden_dropout:g}, layer_type={self.layer_type}"
