"""Packed sequences [T, H, D] as [B, L, H, D] and back, on the device: gathers whose indices come from the lengths."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels._attention_mask import positions
from nvfp.kernels._dense import contiguous
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.embedding import embedding
from nvfp.kernels.reduce import reduce

_BOOL, _INT32 = np.dtype(np.bool_), np.dtype(np.int32)


def unpacked(x: Any, starts: Any, lengths: Any, most: int) -> Any:
    """Return [T, H, D] as [B, L, H, D], contiguous; 0 behind the end of an entry.

    Args:
        x: packed rows, at least one.
        starts: int32 [B], first row of each entry.
        lengths: int32 [B].
        most: L.
    """
    total, *tail = x.shape
    at = positions(most, x)[None]
    ids = elementwise("add", at, starts.reshape(-1, 1), dtype=_INT32)
    elementwise("clip", ids, 0, total - 1, out=ids)
    rows = embedding(contiguous(x).reshape(total, -1), ids)
    ended = elementwise("greater_equal", at, lengths.reshape(-1, 1))
    elementwise("where", ended[..., None], 0.0, rows, out=rows)
    return rows.reshape(*ids.shape, *tail)


def packed(y: Any, starts: Any, lengths: Any, out: Any) -> Any:
    """Write [B, L, H, D] into packed rows [T, H, D]; rows that belong to no entry become 0.

    Args:
        y: contiguous.
        starts: int32 [B], first row of each entry.
        lengths: int32 [B].
        out: packed rows, at least one, contiguous.
    """
    (batch, most), total = y.shape[:2], out.shape[0]
    rows, first = positions(total, y)[None], starts.reshape(-1, 1)
    begun = elementwise("greater_equal", rows, first)
    entry = elementwise("subtract", reduce("sum", begun, axis=0, dtype=_INT32), 1)
    start = reduce("max", elementwise("where", begun, first, 0, dtype=_INT32), axis=0)
    at = elementwise("clip", elementwise("subtract", rows[0], start), 0, most - 1)
    ids = elementwise("clip", elementwise("multiply_add", entry, most, at), 0, batch * most - 1, dtype=_INT32)
    ends = elementwise("add", first, elementwise("minimum", lengths, most).reshape(-1, 1))
    inside = elementwise("logical_and", begun, elementwise("less", rows, ends), dtype=_BOOL)
    owned = elementwise("greater", reduce("sum", inside, axis=0, dtype=_INT32), 0)
    found = embedding(y.reshape(batch * most, -1), ids)
    return elementwise("where", owned[:, None], found, 0.0, out=out.reshape(total, -1)).reshape(out.shape)
