"""Writes docs/porting-from-te.md from the tables below: ``python -m docs.make_porting``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("porting-from-te.md")
HEAD = """# Porting from Transformer Engine

Written by `python -m docs.make_porting` from its own table; a test tries it. Constructor arguments of Transformer
Engine's PyTorch layers, as `nf.nn` takes them:

- *same*: the same name and meaning. Only the sizes and `eps` are sure to go by position here; pass the rest by keyword.
- *differs*: taken, with the difference stated.
- *no effect*: taken whatever it is; alone it changes no result in Transformer Engine either.
- *refused*: at Transformer Engine's default it passes; another value raises the error, which names the argument.

Arguments of `forward` follow in a table of their own. What MultiheadAttention and TransformerLayer do not name there
they hand on to DotProductAttention.

A state dict that was saved as safetensors loads by name: `ignored = layer.load_state_dict(nf.load("te.safetensors"))`.
Keys that end in `_extra_state` hold pickles and are not read; `ignored` names them.
"""

Value = tuple[Any, str]  # what a test passes, and the name of the error


@dataclass(frozen=True)
class Layer:
    """One layer: Transformer Engine's constructor arguments by what becomes of them here.

    Attributes:
        sizes: what a test makes it with.
        same: names, apart by spaces.
        differs: name -> how.
        unread: names that are taken without effect.
        refused: name -> a value and the error it raises.
        forward: names that its ``forward`` takes likewise.
        forward_differs: name -> how.
        forward_refused: name -> a value and the error it raises.
    """

    sizes: tuple[int, ...]
    same: str
    differs: dict[str, str] = field(default_factory=dict)
    unread: str = ""
    refused: dict[str, Value] = field(default_factory=dict)
    forward: str = ""
    forward_differs: dict[str, str] = field(default_factory=dict)
    forward_refused: dict[str, Value] = field(default_factory=dict)


_BUILT = "NotBuiltError"
_DEVICE = {"device": 'the default device unless given; from `"meta"`, `reset_parameters(device=)` says where to'}
_DTYPE = {"params_dtype": "float32 unless given, whatever torch's default; `dtype` is its name here"}
_PLACED = {**_DEVICE, **_DTYPE}
_PARALLEL: dict[str, Value] = {
    "tp_group": ("group", _BUILT),
    "tp_size": (2, _BUILT),
    "sequence_parallel": (True, _BUILT),
    "get_rng_state_tracker": (dict, _BUILT),
}
_GEMM: dict[str, Value] = {**_PARALLEL, "symmetric_ar_type": ("multimem_all_reduce", _BUILT)}
_LINEAR: dict[str, Value] = {**_GEMM, "parallel_mode": ("column", _BUILT)}
_GATHERED: dict[str, Value] = {"return_layernorm_output_gathered": (True, _BUILT)}
_OVERLAP = "ub_overlap_ag ub_overlap_rs ub_overlap_rs_dgrad ub_bulk_dgrad ub_bulk_wgrad"
_WGRAD = "fuse_wgrad_accumulation delay_wgrad_compute"
_NORM: dict[str, Any] = {
    "sizes": (16,),
    "same": "normalized_shape eps zero_centered_gamma",
    "differs": {**_PLACED, "dtype": "float32 unless given, whatever torch's default"},
    "refused": {"sequence_parallel": (True, _BUILT), "sm_margin": (4, _BUILT)},
}

_INIT = {"init_method": "`(shape, rng, dtype, device) -> Array`; returns the values, writes no tensor"}
_INITS = {**_INIT, "output_layer_init_method": "as `init_method`"}
_INPUT = {"inp": "named `x`; an `nf.Array`"}
_ATTENTION = (
    "cu_seqlens_q cu_seqlens_kv cu_seqlens_q_padded cu_seqlens_kv_padded max_seqlen_q max_seqlen_kv "
    "bottom_right_diagonal checkpoint_core_attention core_attention_bias_type alibi_slopes fast_zero_fill "
    "pad_between_seqs"
)
_MASK = {"attention_mask": "the same sense (True hides); the pair of a padding type is (queries, keys) [B, 1, 1, L]"}
_CACHE = {"inference_params": "`nf.nn.InferenceParams`; see inference.md"}
_LAYOUT = '`"bshd"` unless given (TE: `"sbhd"`), so that inputs are (batch, sequence, hidden)'
_HEADS = (
    "num_gqa_groups layer_number fuse_qkv_params rotary_pos_interleaved qkv_weight_interleaved qk_norm_type "
    "qk_norm_eps qk_norm_before_rope softmax_type"
)
_BLOCK: dict[str, Value] = {**_PARALLEL, "set_parallel_mode": (True, _BUILT)}

# Transformer Engine's defaults of what is refused.
DEFAULTS: dict[str, Any] = {
    "ub_tp_comm_overlap": False,
    "cp_group": None,
    "cp_global_ranks": None,
    "cp_stream": None,
    "cp_comm_type": "p2p",
    "tp_group": None,
    "tp_size": 1,
    "sequence_parallel": False,  # None for the norms
    "get_rng_state_tracker": None,
    "symmetric_ar_type": None,
    "parallel_mode": None,
    "return_layernorm_output_gathered": False,
    "set_parallel_mode": False,
    "sm_margin": 0,
}

LAYERS: dict[str, Layer] = {
    "Linear": Layer(
        (16, 16),
        f"in_features out_features bias {_WGRAD} return_bias parameters_split save_original_input name",
        {**_PLACED, **_INIT},
        f"{_OVERLAP} ub_name rng_tracker_name",
        _LINEAR,
        "is_first_microbatch fp8_output fp8_grad",
        _INPUT,
    ),
    "LayerNorm": Layer(**_NORM),
    "RMSNorm": Layer(**_NORM),
    "LayerNormLinear": Layer(
        (16, 16),
        f"in_features out_features eps bias {_WGRAD} normalization zero_centered_gamma return_bias "
        "return_layernorm_output parameters_split name",
        {**_PLACED, **_INIT},
        f"{_OVERLAP} ub_name",
        {**_LINEAR, **_GATHERED},
        "is_first_microbatch fp8_output",
        {**_INPUT, "fp8_grad": "not an argument: the norm before the product takes gradients in high precision"},
    ),
    "LayerNormMLP": Layer(
        (16, 16),
        f"hidden_size ffn_hidden_size eps bias {_WGRAD} normalization zero_centered_gamma return_bias "
        "return_layernorm_output checkpoint activation activation_params name",
        {**_PLACED, **_INITS},
        f"{_OVERLAP} seq_length micro_batch_size",
        {**_GEMM, **_GATHERED, "set_parallel_mode": (True, _BUILT)},
        "is_first_microbatch",
        _INPUT,
    ),
    "DotProductAttention": Layer(
        (2, 8),
        "num_attention_heads kv_channels num_gqa_groups attention_dropout attn_mask_type window_size "
        "bottom_right_diagonal layer_number attention_type softmax_scale softmax_type return_max_logit name",
        {"qkv_format": _LAYOUT},
        "",
        {
            **_PARALLEL, "cp_group": ("group", _BUILT), "cp_global_ranks": ([0], _BUILT),
            "cp_stream": ("stream", _BUILT), "cp_comm_type": ("a2a", _BUILT),
        },
        f"query_layer key_layer value_layer qkv_format attn_mask_type window_size core_attention_bias {_ATTENTION}",
        {**_MASK, **_CACHE},
        {
            "fp8_output": (True, _BUILT), "bf16_backward": (True, _BUILT), "num_splits": (2, _BUILT),
            "score_mod": (print, _BUILT), "score_mod_bprop": (print, _BUILT), "score_mod_tensors": ({}, _BUILT),
            "score_mod_bprop_tensors": ({}, _BUILT), "qkv_layer": ("qkv", _BUILT), "kv_layer": ("kv", _BUILT),
            "qkv_interleave_dim": (-2, _BUILT),
        },
    ),
    "MultiheadAttention": Layer(
        (16, 2),
        f"hidden_size num_attention_heads kv_channels attention_dropout layernorm_epsilon {_HEADS} attn_mask_type "
        "window_size bottom_right_diagonal fuse_wgrad_accumulation return_bias return_layernorm_output input_layernorm "
        "attention_type zero_centered_gamma bias normalization name",
        {**_PLACED, **_INITS, "qkv_format": _LAYOUT},
        f"{_OVERLAP} seq_length micro_batch_size",
        _BLOCK,
        f"hidden_states encoder_output attn_mask_type window_size is_first_microbatch rotary_pos_emb "
        f"core_attention_bias {_ATTENTION}",
        {**_MASK, **_CACHE},
    ),
    "TransformerLayer": Layer(
        (16, 16, 2),
        f"hidden_size ffn_hidden_size num_attention_heads layernorm_epsilon hidden_dropout attention_dropout {_HEADS} "
        "kv_channels self_attn_mask_type window_size bottom_right_diagonal enc_dec_attn_mask_type enc_dec_window_size "
        "enc_dec_bottom_right_diagonal fuse_wgrad_accumulation apply_residual_connection_post_layernorm "
        "output_layernorm parallel_attention_mlp layer_type zero_centered_gamma bias activation activation_params "
        "normalization name",
        {
            **_PLACED, **_INITS, "attn_input_format": _LAYOUT,
            "drop_path_rate": "drops samples in every layout (TE: positions of the first axis)",
        },
        f"{_OVERLAP} seq_length micro_batch_size",
        {**_BLOCK, "ub_tp_comm_overlap": (True, _BUILT)},
        f"hidden_states self_attn_mask_type window_size encoder_output enc_dec_attn_mask enc_dec_attn_mask_type "
        f"enc_dec_window_size enc_dec_bottom_right_diagonal is_first_microbatch rotary_pos_emb {_ATTENTION}",
        {**_MASK, **_CACHE, "core_attention_bias": "reaches the self-attention of a decoder alone"},
    ),
    "RotaryPositionEmbedding": Layer(
        (8,),
        "dim rotary_percent seq_len_interpolation_factor pretrained_max_position_embeddings rotary_base interleaved",
        forward="max_seq_len offset",
    ),
}  # fmt: skip

# What is no layer: name here -> (arguments that are the same, name -> how it differs). `fp8_dpa` and `fp8_mha` of the
# recipes raise NotBuiltError where they are on.
OTHERS: dict[str, tuple[str, dict[str, str]]] = {
    "autocast": ("enabled calibrating recipe", {
        "amax_reduction_group": "a function that reduces the amaxes: no process group",
        "fp8_recipe": "not an argument: `recipe`; `te.fp8_autocast` is `nf.autocast`",
        "fp8_group": "not an argument: `amax_reduction_group`",
    }),
    "quantized_model_init": ("enabled recipe preserve_high_precision_init_val", {}),
    "nn.functional.rope.rope": ("freqs start_positions interleaved", {
        "t": "named `x`, [B, L, H, D]",
        "tensor_format": "not an argument: `\"bshd\"`; `nf.swapaxes(x, 0, 1)` of `\"sbhd\"` copies nothing",
        "cu_seqlens": "not an argument: for packed tokens pass a row of angles for each",
        "fused": "not an argument: always",
        "cp_size": "not an argument: one device",
        "cp_rank": "not an argument: one device",
    }),
    "recipes.DelayedScaling": (
        "margin fp8_format amax_history_len amax_compute_algo scaling_factor_compute_algo reduce_amax fp8_dpa fp8_mha "
        "backward_override", {}),
    "recipes.Float8CurrentScaling": (
        "use_power_2_scales fp8_format fp8_gemm_fprop fp8_gemm_dgrad fp8_gemm_wgrad fp8_dpa fp8_mha "
        "backward_override", {}),
    "recipes.Float8BlockScaling": (
        "use_f32_scales fp8_format x_block_scaling_dim w_block_scaling_dim grad_block_scaling_dim fp8_gemm_fprop "
        "fp8_gemm_dgrad fp8_gemm_wgrad fp8_dpa fp8_mha backward_override", {}),
    "recipes.MXFP8BlockScaling": ("margin fp8_format fp8_dpa fp8_mha backward_override enable_2d_quantization", {}),
    "recipes.NVFP4BlockScaling": (
        "disable_rht disable_stochastic_rounding disable_2d_quantization row_scaled_activation nvfp4_4over6 "
        "nvfp4_4over6_e4m3_use_256 nvfp4_4over6_err_mode fp8_dpa fp8_mha backward_override",
        {"fp4_format": "not an argument: E2M1", "fp8_format": "not an argument: E4M3 scales"}),
    "recipes.CustomRecipe": (
        "qfactory fp8_dpa fp8_mha backward_override quantization_alignment",
        {"fp8_format": "not an argument: the factory names formats"}),
    "optim.AdamW": ("params lr betas eps weight_decay master_weights", {
        "amsgrad": "not an argument, as TE raises for it",
        "bias_correction": "not an argument: always on",
        "adam_w_mode": "False is `nf.optim.Adam`",
        "capturable": "not an argument: rate and step always are device words",
        "master_weight_dtype": "not an argument: float32",
        "exp_avg_dtype": "not an argument: float32",
        "exp_avg_sq_dtype": "not an argument: float32",
        "use_decoupled_grad": "`main_grad` is read where a parameter has one",
        "store_param_remainders": "not an argument: masters are whole float32",
        "set_grad_none": "`zero_grad()` drops gradients and clears `main_grad`",
    }),
}  # fmt: skip

THEIRS = {"optim.AdamW": "FusedAdam", "nn.functional.rope.rope": "apply_rotary_pos_emb"}


def rows(layer: Layer) -> dict[str, str]:
    """Return argument -> what becomes of it."""
    found = dict.fromkeys(layer.same.split(), "same")
    found.update({name: f"differs: {how}" for name, how in layer.differs.items()})
    found.update(dict.fromkeys(layer.unread.split(), "no effect"))
    found.update({name: f"refused: {error}" for name, (_, error) in layer.refused.items()})
    return found


def forward_rows(layer: Layer) -> dict[str, str]:
    """Return argument of ``forward`` -> what becomes of it."""
    found = dict.fromkeys(layer.forward.split(), "same")
    found.update({name: f"differs: {how}" for name, how in layer.forward_differs.items()})
    found.update({name: f"refused: {error}" for name, (_, error) in layer.forward_refused.items()})
    return found


def table(title: str, found: dict[str, str]) -> str:
    """Return a heading and its rows."""
    text = f"\n{title}\n\n| Transformer Engine | here |\n| --- | --- |\n"
    return text + "".join(f"| `{argument}` | {what} |\n" for argument, what in found.items())


def render() -> str:
    """Return the page's text."""
    text = HEAD
    for name, layer in LAYERS.items():
        text += table(f"## {name}", rows(layer))
        if forward := forward_rows(layer):
            text += table(f"{name}, `forward`:", forward)
    for name, (same, differs) in OTHERS.items():
        title = f"## {f'{THEIRS[name]}, here ' if name in THEIRS else ''}`nf.{name}`"
        text += table(title, dict.fromkeys(same.split(), "same") | {k: f"differs: {v}" for k, v in differs.items()})
    return text


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
