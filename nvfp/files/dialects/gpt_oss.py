"""gpt-oss: MXFP4 experts as ``<name>_blocks`` and ``<name>_scales``.

Blocks are uint8 ``[..., rows, K / 32, 16]``, low nibble first; scales E8M0 bytes ``[..., rows, K / 32]``. The array has
the shape ``[..., rows, K]``: transformers transposes the last two axes after it has dequantized. OpenAI's own files
write ``.blocks`` and ``.scales``.

Source: openai/gpt-oss (torch/weights.py), transformers (integrations/mxfp4.py).
"""

from __future__ import annotations

from nvfp.dtypes.formats import QuantDType
from nvfp.files.dialects import geometry
from nvfp.files.dialects.dialect import Dialect, Written
from nvfp.files.dialects.geometry import Found
from nvfp.files.dialects.layout import Layout, Part
from nvfp.files.quant_config import Rule

_BYTES = ("U8", "F8_E8M0")


def _whole_blocks(found: Found, rule: Rule) -> tuple[QuantDType, tuple[int, ...]]:
    """MXFP4 in whole blocks: an axis per block leaves no ragged one."""
    fmt, scales = geometry.mx_four(found, rule)
    if found.shape[-1] != 32 * scales[-1]:
        raise found.refuse("16 bytes a block")
    return fmt, scales


LAYOUTS = (
    Layout(
        "mxfp4", Part("{}_blocks", ("U8",)), Part("{}_scales", _BYTES), None, _whole_blocks, geometry.is_mx_four, True
    ),
    Layout(
        "mxfp4-original", Part("{}.blocks", ("U8",)), Part("{}.scales", _BYTES), None, _whole_blocks, lambda fmt: False,
        True,
    ),
)  # fmt: skip


def _config(written: Written) -> dict[str, object]:
    return {"quant_method": "mxfp4", "modules_to_not_convert": list(written.dense)}


GPT_OSS = Dialect("gpt-oss", ("mxfp4",), LAYOUTS, _config)
