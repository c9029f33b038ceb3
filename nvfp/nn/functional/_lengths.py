"""Lengths of the entries of a batch from TE's cumulative ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import array
from nvfp.errors import ArgumentError, ShapeError, message
from nvfp.kernels.attention import Lengths
from nvfp.kernels.cast import cast
from nvfp.kernels.elementwise import elementwise

_INT32 = np.dtype(np.int32)
_OP = "attention"
Pair = tuple[Any, Any]


def lengths_of(arrays: tuple[Array, Array], ends: Pair, padded: Pair, most: Pair) -> Lengths | None:
    """Return what the kernel takes: how long each entry is and where it starts, on the device; None without lengths.

    Args:
        arrays: q and k, packed [T, H, D] or [B, L, H, D].
        ends: cumulative lengths [B + 1] of queries and keys, the latter those of the queries unless given.
        padded: where entries start, likewise, or None.
        most: the largest length of queries and keys, likewise; needed with packed arrays only.

    Raises:
        ArgumentError: packed arrays without lengths or without the largest, or starts without lengths.
        ShapeError: cumulative lengths that are not [B + 1].
    """
    packed = arrays[0].ndim == 3
    if ends[0] is None:
        if packed or any(x is not None for x in (ends[1], *padded)):
            raise ArgumentError(message(_OP, "cu_seqlens_q with packed arrays", None, "pass where each entry starts"))
        return None
    first = _words("cu_seqlens_q", ends[0], None)
    batch = first.shape[0] - 1
    second = first if ends[1] is None else _words("cu_seqlens_kv", ends[1], batch)
    queries, keys = (elementwise("subtract", x[1:], x[:-1], dtype=_INT32) for x in (first, second))
    if not packed:
        return Lengths(queries, keys)
    if most[0] is None:
        raise ArgumentError(message(_OP, "max_seqlen_q with packed arrays", None, "pass the largest length"))
    names = ("cu_seqlens_q_padded", "cu_seqlens_kv_padded")
    q_starts, k_starts = (
        (cumulative if x is None else _words(name, x, batch))[:-1]
        for name, x, cumulative in zip(names, padded, (first, second), strict=True)
    )
    longest = int(most[0]), int(most[0] if most[1] is None else most[1])
    return Lengths(queries, keys, q_starts, k_starts, longest)


def _words(name: str, x: Any, batch: int | None) -> Any:
    """Cumulative lengths as int32."""
    raw = array(_OP, x).raw
    if raw.ndim != 1 or not raw.shape[0] or (batch is not None and raw.shape[0] != batch + 1):
        wanted = f"{name} [{'B' if batch is None else batch} + 1]"
        raise ShapeError(message(_OP, wanted, raw.shape, "pass where each entry starts, and the end"))
    return raw if raw.dtype == _INT32 else cast(raw, _INT32)
