"""NVIDIA Model Optimizer: ``weight``, ``weight_scale`` and, for NVFP4, ``weight_scale_2``, which multiplies.

NVFP4 codes are uint8 with two codes each, low nibble first; ``input_scale`` is the decode factor of the activations
(amax / 2688 for NVFP4, amax / 448 for FP8). ``hf_quant_config.json`` stands beside ``config.json`` and says the same.

Source: NVIDIA/Model-Optimizer 0.47 (torch/export/).
"""

from __future__ import annotations

from typing import Any

from nvfp.files.dialects import geometry
from nvfp.files.dialects.dialect import Dialect, Row, Written
from nvfp.files.dialects.layout import FLOATS, Layout, Part

_FP8 = Part("{}", ("F8_E4M3",))
_PACKED = Part("{}", ("U8",))
_BYTES = ("U8", "F8_E8M0")

LAYOUTS = (
    Layout(
        "nvfp4", _PACKED, Part("{}_scale", ("F8_E4M3",)), Part("{}_scale_2", FLOATS), geometry.two_level,
        geometry.is_two_level,
    ),
    Layout("fp8", _FP8, Part("{}_scale", FLOATS), None, geometry.float_scaled, geometry.is_e4m3_scaled, bits=8),
    Layout("mxfp8", _FP8, Part("{}_scale", _BYTES), None, geometry.mx_eight, geometry.is_mx_eight, bits=8),
    Layout("mxfp4", _PACKED, Part("{}_scale", _BYTES), None, geometry.mx_four, geometry.is_mx_four),
)  # fmt: skip


def _algorithm(row: Row, static: bool) -> dict[str, Any]:
    """The layer's entry of ``quantized_layers``."""
    if row.layout == "nvfp4":
        return {"quant_algo": "NVFP4" if static else "W4A16_NVFP4", "group_size": row.dtype.block}
    if row.layout in ("mxfp8", "mxfp4"):
        return {"quant_algo": {"mxfp8": "MXFP8", "mxfp4": "W4A8_MXFP4_FP8"}[row.layout], "group_size": row.dtype.block}
    block = row.dtype.block
    per_row = isinstance(block, int) and block == row.shape[-1]
    return {"quant_algo": "FP8" if block is None else "FP8_PER_CHANNEL_PER_TOKEN" if per_row else "FP8_PB_WO"}


def _said(written: Written) -> dict[str, Any]:
    layers = {row.module: _algorithm(row, row.module in written.static) for row in written.rows}
    different = {str(layer) for layer in layers.values()}
    ignore = list(written.dense)
    if len(different) == 1:
        return {**next(iter(layers.values())), "kv_cache_quant_algo": None, "exclude_modules": ignore}
    return {
        "quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None, "quantized_layers": layers,
        "exclude_modules": ignore,
    }  # fmt: skip


def _config(written: Written) -> dict[str, Any]:
    said = _said(written)
    return {"quant_method": "modelopt", "producer": written.producer, "ignore": said.pop("exclude_modules"), **said}


def _beside(written: Written) -> dict[str, Any]:
    return {"hf_quant_config.json": {"producer": written.producer, "quantization": _said(written)}}


MODELOPT = Dialect("modelopt", ("modelopt",), LAYOUTS, _config, inputs=(Part("{}.input_scale", FLOATS),), files=_beside)
