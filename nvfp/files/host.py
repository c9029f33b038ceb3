"""Codes and scales of a quantized array as other stacks hold them: on the host, blocks along the last axis."""

from __future__ import annotations

import numpy as np

from nvfp.arrays.convert import asnumpy
from nvfp.arrays.quantized import QuantizedArray
from nvfp.errors import FileFormatError, message


def parts_of(name: str, q: QuantizedArray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return (codes, block scales, tensor scale or None) in logical order.

    Args:
        name: of the array, for messages.
        q: blocks along its last axis; packed codes of an even length.

    Raises:
        FileFormatError: blocks along another axis, or an odd number of packed codes, which no other stack can read.
    """
    if q.dtype.block is not None and q.axis != q.ndim - 1:
        got, do = f"{name} with blocks along axis {q.axis} of {q.ndim}", "save q.T, q.requantize(axis=-1), or use nvfp"
        raise FileFormatError(message("save_model", "blocks along the last axis", got, do))
    if q.dtype.element.packed and (not q.ndim or q.shape[-1] % 2):
        do = "pad it, or save in dialect nvfp"
        raise FileFormatError(message("save_model", "an even number of packed codes", f"{name} {q.shape}", do))
    word = q.tensor_scale
    parts = (q.codes, q.scale, word)
    codes, scale, factor = (None if part is None else np.asarray(asnumpy(part), order="C") for part in parts)
    assert codes is not None and scale is not None
    return codes, scale, factor
