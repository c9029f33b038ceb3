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

from nvfp.errors import BlockIndexError, ShapeError, message
from nvfp.kernels.cast import cast
from nvfp.kernels.operand import Operand

_DENSE = "dequantize with q.astype(nf.float32) first"


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


def _rows(q: Operand, function: Callable[[Any], Any]) -> Any:
    """The tensor scale of the result of an operation: what ``function`` makes of one per row, or the word itself."""
    return function(q.tensor_scale) if q.format.per_row_tensor_scale else q.tensor_scale


def blocked_axes(q: Operand) -> dict[int, int]:
    """Return axis -> how many elements must stay together: block lengths, and pairs of packed codes."""
    packed = 2 if q.format.element.packed else 1
    shape = q.format.block_shape
    across, along = shape if shape is not None else (1, 1)
    found = {q.axis: math.lcm(along, packed)}
    if across > 1:
        n = len(q.shape)
        found[2 * n - 3 - q.axis] = across
    return {axis: unit for axis, unit in found.items() if unit > 1}


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
            message("permute_dims", f"{name} blocks of {block} on the last two axes", f"axes {axes}", _DENSE)
        )
    q = plain(q)
    scale = q.scale if q.format.block is None else q.scale.transpose(axes)
    shape = tuple(q.shape[a] for a in axes)
    axis = axes.index(q.axis) if axes else 0
    others = [a - (a > q.axis) for a in axes if a != q.axis]
    return dataclasses.replace(
        q, codes=q.codes.transpose(axes), scale=scale, tensor_scale=_rows(q, lambda t: t.transpose(others)),
        shape=shape, axis=axis, padded_rows=0,
    )  # fmt: skip


def reshape(q: Operand, shape: tuple[int, ...]) -> Operand:
    """Return the operand in another shape that keeps the blocked axes last and as long as they are."""
    n, units = len(q.shape), blocked_axes(q)
    keep = 2 if len(units) == 2 else len(units)
    if keep and (set(units) != set(range(n - keep, n)) or shape[-keep:] != q.shape[n - keep :]):
        expected = f"a shape of {q.format.name} that keeps its blocked axes {tuple(sorted(units))} of {q.shape} last"
        raise ShapeError(message("reshape", expected, shape, _DENSE))
    q = plain(q)
    lead = shape[: len(shape) - keep]
    codes = _reshaped(q.codes, (*lead, *q.codes.shape[n - keep :]))
    scale = q.scale if q.format.block is None else _reshaped(q.scale, (*lead, *q.scale.shape[n - keep :]))
    axis = len(shape) - n + q.axis if keep else max(len(shape) - 1, 0)
    rows = _rows(q, lambda t: _reshaped(t, lead))
    return dataclasses.replace(
        q, codes=codes, scale=scale, tensor_scale=rows, shape=shape, axis=axis, padded_rows=0
    )  # fmt: skip


def _reshaped(raw: Any, shape: tuple[int, ...]) -> Any:
    return (raw if raw.flags.c_contiguous else cast(raw, raw.dtype)).reshape(shape)


def _cut(q: Operand, op: str, what: str, axis: int, unit: int) -> BlockIndexError:
    return BlockIndexError(
        f"[{op}] {q.format.name} {what} cuts a block of {unit} on axis {axis}; slice at multiples of {unit} or {_DENSE}"
    )


def _span(q: Operand, op: str, entry: slice, axis: int, unit: int) -> tuple[int, int]:
    """First and last element of a slice that takes whole blocks; raises for any other."""
    n = q.shape[axis]
    start, stop, step = entry.indices(n)
    if stop <= start and step > 0:
        return 0, 0
    if step != 1 or start % unit or (stop % unit and stop != n):
        text = f"slice {start}:{stop}" + (f":{step}" if step != 1 else "")
        raise _cut(q, op, text, axis, unit)
    return start, stop


def getitem(q: Operand, entries: Sequence[Any], op: str = "getitem") -> Operand:
    """Return the part of the operand that ``entries`` name.

    Args:
        q: the operand.
        entries: a key with one entry per axis: int, slice, raw index or mask array, besides None for new axes.
        op: name for messages.

    Raises:
        BlockIndexError: an entry that would cut a block, an index out of range, or a mixture of index
            arrays whose result axes are not in order.
    """
    q = plain(q)
    units = blocked_axes(q)
    across, along = q.format.block_shape or (1, 1)
    lengths = {2 * len(q.shape) - 3 - q.axis: across, q.axis: along}
    arrays = [e for e in entries if not (e is None or isinstance(e, int | slice))]
    if len(arrays) > 1 or (arrays and any(e is None or isinstance(e, int) for e in entries)):
        expected = f"one index array beside slices only, for {q.format.name}"
        raise BlockIndexError(
            message(op, expected, f"{len(arrays)} arrays with others", f"index in steps, or {_DENSE}")
        )
    code_key: list[Any] = []
    scale_key: list[Any] = []
    row_key: list[Any] = []
    moved: dict[int, int] = {}  # axis -> its place in the result
    long: dict[int, int] = {}  # axis of the result -> unpacked length
    axis = place = 0
    for entry in entries:
        code_part = scale_part = entry
        along_row = isinstance(entry, slice) and axis == q.axis
        if entry is None:
            place += 1
        elif isinstance(entry, slice):
            if axis in units:
                start, stop = _span(q, op, entry, axis, units[axis])
                packed = 2 if q.format.element.packed and axis == q.axis else 1
                code_part = slice(start // packed, -(-stop // packed))
                scale_part = slice(start // lengths[axis], -(-stop // lengths[axis]))
                long[place] = stop - start
            moved[axis] = place
            axis, place = axis + 1, place + 1
        else:
            mask = not isinstance(entry, int) and entry.dtype == np.bool_
            width = entry.ndim if mask else 1
            for a in range(axis, axis + width):
                if a in units:
                    raise _cut(q, op, f"index {entry}" if isinstance(entry, int) else "index array", a, units[a])
            if isinstance(entry, int) and not -q.shape[axis] <= entry < q.shape[axis]:
                got = f"{entry} on axis {axis}"
                raise BlockIndexError(
                    message(op, f"an index of {q.shape[axis]} elements", got, "count from -n to n - 1")
                )
            axis += width
            place += 0 if isinstance(entry, int) else 1 if mask else entry.ndim
        code_key.append(code_part)
        scale_key.append(scale_part)
        row_key += [] if along_row else [entry]
    codes = q.codes[(*code_key, ...)]
    scale = q.scale if q.format.block is None else q.scale[(*scale_key, ...)]
    if len(units) == 2 and {moved[a] for a in units} != {place - 2, place - 1}:
        expected = f"{q.format.name} blocks of {q.format.block} on the last two axes"
        raise BlockIndexError(message(op, expected, "new axes behind them", _DENSE))
    shape = tuple(long.get(i, n) for i, n in enumerate(codes.shape))
    new_axis = moved.get(q.axis, max(len(shape) - 1, 0))
    rows = _rows(q, lambda t: t[(*row_key, ...)])
    return dataclasses.replace(
        q, codes=codes, scale=scale, tensor_scale=rows, shape=shape, axis=new_axis, padded_rows=0
    )  # fmt: skip
