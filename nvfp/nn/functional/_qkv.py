"""Query, key and value out of one GEMM's result, as views; their gradients meet again in one buffer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.creation import empty_raw
from nvfp.arrays.storage import copy_into
from nvfp.autograd.tape import record
from nvfp.kernels._dense import contiguous
from nvfp.kernels.elementwise import elementwise


def split_qkv(mixed: Array, heads: int, groups: int, channels: int, *, interleaved: bool) -> tuple[Array, Array, Array]:
    """Return query [B, L, H, D], key [B, L, G, D] and value [B, L, G, D].

    Args:
        mixed: [B, L, (H + 2G) D].
        heads: H.
        groups: G; divides H.
        channels: D.
        interleaved: per group its H/G queries, its key, its value (TE's ``qkv_weight_interleaved``);
            otherwise all queries, all keys, all values.

    Returns:
        Views of ``mixed``; interleaved queries of H > G heads are a copy.
    """
    raws = _parts(mixed.raw, heads, groups, channels, interleaved)
    node = record("split_qkv", (mixed,), _vjp, saved=(mixed.shape, heads, groups, channels, interleaved), outputs=3)
    out = []
    for i, (raw, count) in enumerate(zip(raws, (heads, groups, groups), strict=True)):
        shape = (*mixed.shape[:2], count, channels)
        if raw.ndim == 4:
            out.append(wrap(raw, None, node, i, mixed.storage))
        elif raw.shape[3] == 1:  # one per group: the group is the head
            out.append(wrap(raw[:, :, :, 0], None, node, i, mixed.storage))
        else:
            out.append(wrap(contiguous(raw).reshape(shape), None, node, i))
    return out[0], out[1], out[2]


def _parts(raw: Any, heads: int, groups: int, channels: int, interleaved: bool) -> tuple[Any, Any, Any]:
    """The three parts of a row-major [B, L, W] buffer as views; interleaved ones as [B, L, G, n, D]."""
    lead = raw.shape[:2]
    if interleaved:
        each = heads // groups
        grouped = raw.reshape((*lead, groups, each + 2, channels))
        return grouped[:, :, :, :each], grouped[:, :, :, each : each + 1], grouped[:, :, :, each + 1 :]
    flat = raw.reshape((*lead, heads + 2 * groups, channels))
    return flat[:, :, :heads], flat[:, :, heads : heads + groups], flat[:, :, heads + groups :]


def _vjp(saved: tuple[Any, ...], dys: tuple[Array | None, ...], needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    shape, *layout = saved
    first = next(dy for dy in dys if dy is not None)
    whole = _whole([None if dy is None else dy.raw for dy in dys], shape, layout)
    if whole is not None:
        return (wrap(whole),)
    out = empty_raw(shape, first.dtype, first.device)
    for target, dy in zip(_parts(out, *layout), dys, strict=True):
        if dy is None:
            elementwise("copy", 0.0, dtype=target.dtype, out=target)
        else:
            copy_into(target, contiguous(dy.raw).reshape(target.shape) if target.ndim == 5 else dy.raw)
    return (wrap(out),)


def _whole(raws: list[Any], shape: tuple[int, ...], layout: list[Any]) -> Any | None:
    """The buffer that the three gradients already lie in, side by side (`cudnn.run`), or None."""
    base = getattr(raws[0], "base", None)
    # A buffer of more bytes than three gradients fill belongs to somebody else.
    if base is None or any(raw is None or raw.base is not base or raw.dtype != base.dtype for raw in raws):
        return None
    if base.size != math.prod(shape) or not base.flags.c_contiguous:
        return None
    whole = base.reshape(shape)
    places = [part[:, :, :, 0] if part.ndim == 5 and part.shape[3] == 1 else part for part in _parts(whole, *layout)]
    same = all(_place(raw) == _place(part) for raw, part in zip(raws, places, strict=True))
    return whole if same else None


def _place(raw: Any) -> tuple[Any, ...]:
    """Where a raw array lies: shape, strides, address (strides of axes of length 1 say nothing)."""
    at = raw.ctypes.data if isinstance(raw, np.ndarray) else raw.data.ptr
    return raw.shape, tuple(s for n, s in zip(raw.shape, raw.strides, strict=True) if n > 1), at
