"""compressed-tensors, the format of llm-compressor and vLLM.

``float-quantized``: ``weight`` in FP8 and ``weight_scale`` per tensor, row, group or block. ``nvfp4-pack-quantized``:
``weight_packed`` (low nibble first), ``weight_scale`` in E4M3 and ``weight_global_scale``, the *inverse* of nvfp's
tensor_scale; likewise ``input_global_scale``. ``mxfp4-pack-quantized``, ``mxfp8-quantized``: E8M0 scales as uint8.

Source: vllm-project/compressed-tensors 0.20 (compressors/).
"""

from __future__ import annotations

from typing import Any

from nvfp.files.dialects import geometry
from nvfp.files.dialects.dialect import Dialect, Row, Written
from nvfp.files.dialects.layout import FLOATS, Layout, Part

_CODES = Part("{}", ("F8_E4M3", "F8_E5M2"))
_PACKED = Part("{}_packed", ("U8",))
_BYTES = ("U8", "F8_E8M0")
_STEP = {4: "local", 8: False}

LAYOUTS = (
    Layout(
        "float-quantized", _CODES, Part("{}_scale", FLOATS, single=(1,)), None, geometry.float_scaled,
        geometry.is_float_scaled, bits=8,
    ),
    Layout("mxfp8-quantized", _CODES, Part("{}_scale", _BYTES), None, geometry.mx_eight, geometry.is_mx_eight, bits=8),
    Layout(
        "nvfp4-pack-quantized", _PACKED, Part("{}_scale", ("F8_E4M3",)),
        Part("{}_global_scale", FLOATS, inverse=True, single=(1,)), geometry.two_level, geometry.is_two_level,
    ),
    Layout("mxfp4-pack-quantized", _PACKED, Part("{}_scale", _BYTES), None, geometry.mx_four, geometry.is_mx_four),
)  # fmt: skip


def _weights(row: Row) -> dict[str, Any]:
    """`QuantizationArgs` of a weight, in the order in which the library writes them."""
    block, kind = row.dtype.block, row.layout
    group = None if not isinstance(block, int) or (kind == "float-quantized" and block == row.shape[-1]) else block
    strategy = "block" if isinstance(block, tuple) else "group" if group else "channel" if block else "tensor"
    if kind == "nvfp4-pack-quantized":
        strategy = "tensor_group"
    found: dict[str, Any] = {
        "num_bits": row.dtype.element.bits, "type": "float", "symmetric": True, "group_size": group,
        "strategy": strategy, "dynamic": False,
    }  # fmt: skip
    if isinstance(block, tuple):
        found["block_structure"] = list(block)
    if kind != "float-quantized":
        found["scale_dtype"] = "torch.float8_e4m3fn" if kind.startswith("nvfp4") else "torch.uint8"
    return found


def _config(written: Written) -> dict[str, Any]:
    groups: list[tuple[dict[str, Any], list[str]]] = []
    for row in written.rows:
        weights = _weights(row)
        static = None
        if row.module in written.static:
            bits = weights["num_bits"]
            static = {**weights, "dynamic": _STEP[bits], "strategy": "tensor_group" if bits == 4 else "tensor"}
            static = static if bits == 4 else {**static, "group_size": None}
            static.pop("block_structure", None)
        scheme = {"weights": weights, "input_activations": static, "output_activations": None, "format": row.layout}
        names = next((names for known, names in groups if known == scheme), None)
        if names is None:
            groups.append((scheme, names := []))
        names.append(row.module)
    formats = {scheme["format"] for scheme, _ in groups}
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{i}": {"targets": ["Linear"] if len(groups) == 1 else names, **scheme}
            for i, (scheme, names) in enumerate(groups)
        },
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
        "ignore": list(written.dense),
    }


COMPRESSED_TENSORS = Dialect(
    "compressed-tensors",
    ("compressed-tensors", "fp8"),
    LAYOUTS,
    _config,
    inputs=(
        Part("{}.input_scale", FLOATS, single=(1,)),
        Part("{}.input_global_scale", FLOATS, inverse=True, single=(1,)),
    ),
)
