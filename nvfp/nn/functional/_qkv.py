"""Query, key and value out of one GEMM's result, as views; their gradients meet again in one buffer."""

from __future__ import annotations

from typing import Any

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
    out = empty_raw(shape, first.dtype, first.device)
    for target, dy in zip(_parts(out, *layout), dys, strict=True):
        if dy is None:
            elementwise("copy", 0.0, dtype=target.dtype, out=target)
        else:
            copy_into(target, contiguous(dy.raw).reshape(target.shape) if target.ndim == 5 else dy.raw)
    return (wrap(out),)
