"""Masks of `kernels.attention` that are made of others: pairs of padding, lengths, diagonals of single entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from nvfp.kernels._attention import Lengths, Settings
from nvfp.kernels._dispatch import place_like
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.reduce import reduce

_BOOL, _INT32 = np.dtype(np.bool_), np.dtype(np.int32)


def four_axes(x: Any) -> Any:
    """Return an array with axes of length 1 before its own, four in all."""
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def joined(pair: tuple[Any, Any]) -> Any:
    """Return one mask [B, 1, Lq, Lk] of padded queries and padded keys."""
    queries, keys = (four_axes(part) for part in pair)
    return elementwise("logical_or", queries.swapaxes(-1, -2), keys, dtype=_BOOL)


def padding(lengths: Lengths, full: tuple[int, int, int, int]) -> tuple[Any, Any]:
    """Return the padding [B, 1, 1, Lq] and [B, 1, 1, Lk] behind the end of each entry."""
    ends = lengths.queries, lengths.keys
    first, second = (
        elementwise("greater_equal", positions(n, end), end.reshape(-1, 1, 1, 1))
        for end, n in zip(ends, full[2:], strict=True)
    )
    return first, second


def ahead_of(pair: tuple[Any, Any] | None, lengths: Lengths | None) -> Any | None:
    """Return int32 [B], how far the bottom right diagonal of each entry lies to the right of the top left one.

    It is that of what is no padding: the keys that count less the queries that count. None where all entries are full.
    """
    if lengths is not None:
        return elementwise("subtract", lengths.keys, lengths.queries, dtype=_INT32)
    if pair is None:
        return None
    queries, keys = (
        reduce("sum", elementwise("logical_not", four_axes(part), dtype=_BOOL), axis=(1, 2, 3), dtype=_INT32)
        for part in pair
    )
    return elementwise("subtract", keys, queries, dtype=_INT32)


def distances(full: tuple[int, int, int, int], ahead: Any, like: Any) -> Any:
    """Return int32 [1 or B, 1, Lq, Lk], how far key j lies to the right of query i's place on the diagonal."""
    found = elementwise("subtract", positions(full[3], like), positions(full[2], like)[:, None], dtype=_INT32)
    found = found[None, None]
    if isinstance(ahead, int):
        return elementwise("subtract", found, ahead, out=found) if ahead else found
    return elementwise("subtract", found, ahead.reshape(-1, 1, 1, 1), dtype=_INT32)


def outside(far: Any, band: tuple[int, int], mask: Any | None) -> Any | None:
    """Return what a mask hides together with what lies outside of a band of `distances`."""
    left, right = band
    for bound, op, edge in ((left, "less", -left), (right, "greater", right)):
        if bound >= 0:
            hidden = elementwise(op, far, edge)
            mask = hidden if mask is None else elementwise("logical_or", mask, hidden, dtype=_BOOL)
    return mask


def arbitrary(settings: Settings) -> Settings:
    """Return the settings of a call whose diagonal is in its mask."""
    return replace(settings, mask_type="arbitrary", window=None)


_counted: dict[tuple[str, int], Any] = {}


def positions(n: int, like: Any) -> Any:
    """Return 0 .. n - 1 as int32 on the device of ``like``.

    Kept, by powers of two: a CUDA graph being captured cannot copy from the host, and one that was reads the address.
    """
    place = str(like.device), 1 << max(0, n - 1).bit_length()
    found = _counted.get(place)
    if found is None:
        found = _counted.setdefault(place, place_like(np.arange(place[1], dtype=np.int32), like))
    return found[:n]
