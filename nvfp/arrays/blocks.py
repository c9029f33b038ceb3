"""Operations that move whole blocks of an `Operand`: on codes and scales alike, without touching a value.

Each either gives exactly the blocks of the result or raises and names the remedy. Codes and scales
stay in logical axis order, so the same NumPy operation applies to both; only the block axis is
shorter (packed codes by two, scales by the block).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nvfp.arrays.storage import copy_into
from nvfp.errors import ShapeError, message
from nvfp.kernels.cast import cast
from nvfp.kernels.operand import Operand
from nvfp.optional import need

DENSE = "dequantize with q.astype(nf.float32) first"


def plain(q: Operand) -> Operand:
    """Return the same operand with its arrays in logical order."""
    if not q.transposed:
        return q
    scale = q.scale if q.format.block is None else q.scale.swapaxes(-1, -2)
    rows = q.tensor_scale
    if q.format.per_row_tensor_scale and rows is not None and q.axis < len(q.shape) - 2:
        rows = rows.swapaxes(-1, -2)
    return dataclasses.replace(
        q, codes=q.codes.swapaxes(-1, -2), scale=scale, tensor_scale=rows, transposed=False, padded_rows=0
    )


Move = Callable[[Any], Any]


def each(q: Operand, moves: tuple[Move, Move, Move], shape: tuple[int, ...], axis: int) -> Operand:
    """Return the operand of ``shape`` with moved codes, block scales and tensor scales (where there are any).

    Args:
        q: in logical order.
        moves: for codes, block scales, and one tensor scale per row, which has length 1 along the block axis: each
            makes a view or a copy of an array with one axis per logical axis.
        shape: of the result, in elements.
        axis: its block axis.
    """
    word = q.tensor_scale
    if q.format.per_row_tensor_scale and word is not None:
        word = moves[2](word[(slice(None),) * q.axis + (None,)])
        word = word.reshape((*word.shape[:axis], *word.shape[axis + 1 :]))
    scale = q.scale if q.format.block is None else moves[1](q.scale)
    return dataclasses.replace(
        q, codes=moves[0](q.codes), scale=scale, tensor_scale=word, shape=shape, axis=axis, padded_rows=0
    )


def blocked_axes(q: Operand) -> dict[int, int]:
    """Return axis -> how many elements must stay together: block lengths, and pairs of packed codes.

    A unit may be 1; its axis must stay all the same.
    """
    packed = q.format.element.packed
    if q.format.block is None and not packed:
        return {}
    across, along = q.format.block_shape or (1, 1)
    found = {q.axis: math.lcm(along, 2) if packed else along}
    if across > 1:
        found[2 * len(q.shape) - 3 - q.axis] = across
    return found


def permute(q: Operand, axes: Sequence[int]) -> Operand:
    """Return the operand with its axes in the order ``axes`` (non-negative)."""
    n = len(q.shape)
    axes = tuple(axes)
    if n >= 2 and axes == (*range(n - 2), n - 1, n - 2):
        return q.T  # a flag only: GEMM wants to know
    units = blocked_axes(q)
    if len(units) == 2 and {axes.index(axis) for axis in units} != {n - 2, n - 1}:
        name, block = q.format.name, q.format.block
        raise ShapeError(
            message("permute_dims", f"{name} blocks of {block} on the last two axes", f"axes {axes}", DENSE)
        )

    def move(raw: Any) -> Any:
        return raw.transpose(axes)

    shape = tuple(q.shape[a] for a in axes)
    return each(plain(q), (move, move, move), shape, axes.index(q.axis) if axes else 0)


def reshape(q: Operand, shape: tuple[int, ...]) -> Operand:
    """Return the operand in another shape that keeps the blocked axes, as long as they are.

    The elements before a blocked axis, and those behind it, stay on their side; blocks over two axes stay on the
    last two.
    """
    if shape == q.shape:
        return q
    units = blocked_axes(q)
    first = min(units, default=0)
    keep = len(units)
    place = _kept(q.shape, first, keep, shape)
    if place is None or (keep == 2 and place != len(shape) - 2):
        expected = f"a shape of {q.format.name} that keeps its blocked axes {tuple(sorted(units))} of {q.shape}"
        raise ShapeError(message("reshape", expected, shape, DENSE))

    def move(raw: Any) -> Any:
        whole = (*shape[:place], *raw.shape[first : first + keep], *shape[place + keep :])
        return (raw if raw.flags.c_contiguous else cast(raw, raw.dtype)).reshape(whole)

    axis = place + q.axis - first if keep else max(len(shape) - 1, 0)
    return each(plain(q), (move, move, move), shape, axis)


def _kept(old: tuple[int, ...], first: int, keep: int, new: tuple[int, ...]) -> int | None:
    """Where ``keep`` axes of ``old`` from ``first`` on stand in ``new``, with as many elements before and behind."""
    last = first + keep
    sides = math.prod(old[:first]), math.prod(old[last:])
    for place in reversed(range(len(new) - keep + 1)):
        behind = place + keep
        if new[place:behind] == old[first:last] and (math.prod(new[:place]), math.prod(new[behind:])) == sides:
            return place
    return None


def broadcast(q: Operand, shape: tuple[int, ...]) -> Operand:
    """Return the operand broadcast to ``shape`` along axes without blocks; memory is shared."""
    added, units = len(shape) - len(q.shape), blocked_axes(q)
    fits = added >= 0 and all(n in (1, shape[added + i]) for i, n in enumerate(q.shape))
    if not fits or min(shape, default=0) < 0:
        raise ShapeError(message("broadcast_to", f"a shape that {q.shape} broadcasts to", shape, "reshape it first"))
    for axis, unit in units.items():
        if q.shape[axis] != shape[added + axis]:
            text = f"{q.format.name} length 1 stretched to {shape[added + axis]}"
            raise ShapeError(f"[broadcast_to] {text} breaks a block of {unit} on axis {axis}; {DENSE}")

    def move(raw: Any) -> Any:
        own = [raw.shape[axis] if axis in units else shape[added + axis] for axis in range(raw.ndim)]
        strides = [0 if n != raw.shape[axis] else raw.strides[axis] for axis, n in enumerate(own)]
        return as_strided(raw, (*shape[:added], *own), (*(0,) * added, *strides))

    return each(plain(q), (move, move, move), shape, added + q.axis if q.shape else max(len(shape) - 1, 0))


def join(op: str, operands: Sequence[Operand], axis: int, empty: Callable[..., Any]) -> Operand:
    """Return operands of one format and block axis one behind the other along ``axis``, in new memory.

    Args:
        op: name for messages.
        operands: equal in every length but that of ``axis``.
        axis: where they join.
        empty: ``empty(shape, dtype)`` makes raw memory.

    Raises:
        ShapeError: an operand before the last that ends inside a block, or scales of whole tensors that differ.
    """
    parts = [plain(q) for q in operands]
    first = parts[0]
    unit = blocked_axes(first).get(axis, 1)
    for q in parts[:-1]:
        if q.shape[axis] % unit:
            text = f"{q.format.name} length {q.shape[axis]} cuts a block of {unit} on axis {axis}"
            raise ShapeError(f"[{op}] {text}; join lengths that are multiples of {unit}, or {DENSE}")
    rows = first.format.per_row_tensor_scale and axis != first.axis
    words = [_words(q, rows) for q in parts]
    if not all(all(map(_same, words[0], found)) for found in words[1:]):
        expected, do = f"{first.format.name} arrays with equal tensor scales", f"quantize them together, or {DENSE}"
        raise ShapeError(message(op, expected, "scales that differ", do))

    def joined(arrays: list[Any], at: int) -> Any:
        length = sum(a.shape[at] for a in arrays)
        out = empty((*arrays[0].shape[:at], length, *arrays[0].shape[at + 1 :]), arrays[0].dtype)
        start = 0
        for a in arrays:
            copy_into(out[(slice(None),) * at + (slice(start, start + a.shape[at]),)], a)
            start += a.shape[at]
        return out

    word = first.tensor_scale
    if rows:
        word = joined([q.tensor_scale for q in parts], axis - (axis > first.axis))
    scale = first.scale if first.format.block is None else joined([q.scale for q in parts], axis)
    length = sum(q.shape[axis] for q in parts)
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    codes = joined([q.codes for q in parts], axis)
    return dataclasses.replace(first, codes=codes, scale=scale, tensor_scale=word, shape=shape, padded_rows=0)


def _words(q: Operand, rows: bool) -> list[Any]:
    """The scales that are not joined: those of the whole tensor, and one per row unless the rows are joined."""
    word = [] if q.tensor_scale is None or rows else [q.tensor_scale]
    return [q.scale, *word] if q.format.block is None else word


def _same(a: Any, b: Any) -> bool:
    """Whether two scales are equal: the same memory, or the same bits (which waits for the GPU)."""
    if a is b:
        return True
    if isinstance(a, np.ndarray):
        return bool(a.shape == b.shape and a.tobytes() == b.tobytes())
    return bool(a.shape == b.shape and (a.data.ptr == b.data.ptr or a.get().tobytes() == b.get().tobytes()))


def as_strided(raw: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Return a view of raw memory with other strides; read-only on the CPU."""
    if isinstance(raw, np.ndarray):
        return np.lib.stride_tricks.as_strided(raw, shape, strides, writeable=False)
    return need("cupy", extra="cuda13").lib.stride_tricks.as_strided(raw, shape, strides)
