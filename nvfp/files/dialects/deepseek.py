"""DeepSeek's FP8, which transformers calls fine-grained FP8: ``weight`` and ``weight_scale_inv``.

The scale multiplies, whatever its name suggests: value = code * scale of its 128 x 128 block, ragged at the edges.
DeepSeek-V4 and others store it as E8M0 bytes. Static activation scales are ``activation_scale`` or ``input_scale``.
Older files of this ``quant_method`` have one ``weight_scale`` per tensor.

Source: deepseek-ai/DeepSeek-V3 (inference/fp8_cast_bf16.py), transformers (integrations/finegrained_fp8.py), vLLM.
"""

from __future__ import annotations

from nvfp.errors import FileFormatError, message
from nvfp.files.dialects import geometry
from nvfp.files.dialects.dialect import Dialect, Written
from nvfp.files.dialects.layout import FLOATS, Layout, Part

_CODES = Part("{}", ("F8_E4M3", "F8_E5M2"))

LAYOUTS = (
    Layout(
        "fp8-block", _CODES, Part("{}_scale_inv", FLOATS), None, geometry.block_scaled, geometry.is_square_scaled,
        bits=8,
    ),
    Layout(
        "fp8-block-ue8m0", _CODES, Part("{}_scale_inv", ("F8_E8M0", "U8")), None, geometry.e8m0_blocks,
        geometry.is_e8m0_blocks, bits=8,
    ),
    Layout("fp8", _CODES, Part("{}_scale", FLOATS), None, geometry.float_scaled, lambda fmt: False, bits=8),
)  # fmt: skip


def _config(written: Written) -> dict[str, object]:
    blocks = {row.dtype.block for row in written.rows}
    if len(blocks) != 1:
        do = "quantize all weights alike, or use dialect compressed-tensors"
        raise FileFormatError(
            message("save_model", "one block shape in dialect deepseek", sorted(map(str, blocks)), do)
        )
    block = blocks.pop()
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "static" if written.static else "dynamic",
        "weight_block_size": list(block) if isinstance(block, tuple) else None,
        **({"scale_fmt": "ue8m0"} if any(row.layout == "fp8-block-ue8m0" for row in written.rows) else {}),
        "modules_to_not_convert": list(written.dense),
    }


DEEPSEEK = Dialect(
    "deepseek",
    ("fp8",),
    LAYOUTS,
    _config,
    inputs=(Part("{}.activation_scale", FLOATS), Part("{}.input_scale", FLOATS)),
)
