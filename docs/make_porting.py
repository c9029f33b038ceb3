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
    """

    sizes: tuple[int, ...]
    same: str
    differs: dict[str, str] = field(default_factory=dict)
    unread: str = ""
    refused: dict[str, Value] = field(default_factory=dict)


_BUILT = "NotBuiltError"
_DEVICE = {"device": 'the default device unless given; `"meta"` is not known: a layer has its values when it is made'}
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

# Transformer Engine's defaults of what is refused.
DEFAULTS: dict[str, Any] = {
    "tp_group": None,
    "tp_size": 1,
    "sequence_parallel": False,  # None for the norms
    "get_rng_state_tracker": None,
    "symmetric_ar_type": None,
    "parallel_mode": None,
    "return_layernorm_output_gathered": False,
    "set_parallel_mode": False,
    "activation_params": None,
    "sm_margin": 0,
}

LAYERS: dict[str, Layer] = {
    "Linear": Layer(
        (16, 16),
        f"in_features out_features bias {_WGRAD} return_bias parameters_split save_original_input name",
        {**_PLACED, "init_method": "`(shape, rng, dtype, device) -> Array`; returns the values, writes no tensor"},
        f"{_OVERLAP} ub_name rng_tracker_name",
        _LINEAR,
    ),
    "LayerNorm": Layer(**_NORM),
    "RMSNorm": Layer(**_NORM),
    "LayerNormLinear": Layer(
        (16, 16),
        f"in_features out_features eps bias {_WGRAD} normalization zero_centered_gamma return_bias "
        "return_layernorm_output parameters_split name",
        {**_PLACED, "init_method": "`(shape, rng, dtype, device) -> Array`; returns the values, writes no tensor"},
        f"{_OVERLAP} ub_name",
        {**_LINEAR, **_GATHERED},
    ),
    "LayerNormMLP": Layer(
        (16, 16),
        f"hidden_size ffn_hidden_size eps bias {_WGRAD} normalization zero_centered_gamma return_bias "
        "return_layernorm_output checkpoint name",
        {
            **_PLACED,
            "init_method": "`(shape, rng, dtype, device) -> Array`; returns the values, writes no tensor",
            "output_layer_init_method": "as `init_method`",
            "activation": 'every kind but `"clamped_swiglu"`, which raises NotBuiltError',
        },
        f"{_OVERLAP} seq_length micro_batch_size",
        {**_GEMM, **_GATHERED, "set_parallel_mode": (True, _BUILT), "activation_params": ({"limit": 7.0}, _BUILT)},
    ),
}


def rows(layer: Layer) -> dict[str, str]:
    """Return argument -> what becomes of it."""
    found = dict.fromkeys(layer.same.split(), "same")
    found.update({name: f"differs: {how}" for name, how in layer.differs.items()})
    found.update(dict.fromkeys(layer.unread.split(), "no effect"))
    found.update({name: f"refused: {error}" for name, (_, error) in layer.refused.items()})
    return found


def render() -> str:
    """Return the page's text."""
    text = HEAD
    for name, layer in LAYERS.items():
        text += f"\n## {name}\n\n| Transformer Engine | here |\n| --- | --- |\n"
        text += "".join(f"| `{argument}` | {what} |\n" for argument, what in rows(layer).items())
    return text


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
