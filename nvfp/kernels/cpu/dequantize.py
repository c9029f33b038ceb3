"""CPU twin of `kernels.dequantize`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvfp.kernels.cpu._blocks import decode_blocks, unpack
from nvfp.kernels.cpu._strided import PANEL, Panel, Rows, fold, for_panels, large_panels, panels, rows_of
from nvfp.kernels.cpu._tables import decode_table
from nvfp.kernels.operand import Operand

_FLOAT32, _UINT8 = np.dtype(np.float32), np.dtype(np.uint8)
_ONE = np.ones((1, 1, 1), np.float32)


def dequantize(operand: Operand, dtype: np.dtype, *, tensor_factors: bool, out: Any | None) -> Any:
    """See `nvfp.kernels.dequantize.dequantize`."""
    if out is None:
        out = np.empty(operand.shape, dtype)
    if out.size == 0:
        return out
    axis = operand.stored_axis
    across = (operand.format.block_shape or (1, 1))[0]
    stored = np.swapaxes(out, -1, -2) if operand.transposed else out
    target = fold(np.moveaxis(stored, axis, -1) if out.ndim else out, matrices=across > 1)
    if target is None:
        # In stored order first: contiguous values always have such a view, transposed ones of four axes need not.
        straight = operand.T if operand.transposed else operand
        whole = dequantize(straight, dtype, tensor_factors=tensor_factors, out=None)
        np.copyto(out, whole.swapaxes(-1, -2) if operand.transposed else whole)
        return out
    source = rows_of(operand.codes, axis, matrices=across > 1)
    tensor = operand.tensor_scale if tensor_factors and operand.tensor_scale is not None else 1.0
    _decode(source, Rows(target), operand, _factors(operand, axis, across, tensor_factors), np.float32(tensor))
    return out


def _factors(operand: Operand, axis: int, across: int, tensor_factors: bool) -> np.ndarray:
    """Block scales as float32 [matrices, block rows, blocks], in the order of the rows."""
    if operand.format.block is None and not tensor_factors:
        return _ONE
    scale = operand.scale
    values = scale if scale.dtype == _FLOAT32 else decode_table(operand.format.scale)[scale]
    if operand.format.block is None:
        return np.asarray(values, np.float32).reshape(1, 1, 1)
    moved = np.moveaxis(values, axis, -1)
    lead = moved.shape[:-1]
    matrices = math.prod(lead[:-1]) if across > 1 else 1
    return np.array(moved, np.float32, order="C").reshape(matrices, -1, moved.shape[-1])


def _decode(source: Rows, target: Rows, operand: Operand, factors: np.ndarray, tensor: np.float32) -> None:
    fmt, n = operand.format, target.n
    packed, table = fmt.element.packed, decode_table(fmt.element)
    across, along = fmt.block_shape or (1, 1)
    matrices, rows = (target.d1, target.d2) if across > 1 else (1, target.d1 * target.d2)

    def work(panel: Panel, raw: np.ndarray, values: np.ndarray, single: np.ndarray) -> None:
        row, height, column, length = panel
        if packed:
            unpack(*source.load(Panel(row, height, column // 2, -(-length // 2)), raw), height, length, single)
        codes, at, pitch = (single, 0, length) if packed else source.load(panel, raw)
        block, factor = (height, length), factors.reshape(-1)
        if fmt.block is not None:
            m, r, c = row // rows, row % rows // across, column // along
            part = factors[m, r : r + -(-height // across), c : c + -(-length // along)]
            block, factor = (across, along), np.ascontiguousarray(part).reshape(-1)
        place = target.place(panel) if target.dtype == _FLOAT32 else None
        to = place or (values, 0, length)
        decode_blocks(codes, at, pitch, height, length, block[0], block[1], table, factor, tensor, *to)
        if place is None:
            target.store(panel, values)

    unit = math.lcm(along, 2) if packed else along
    stripes = source.pitch is None or target.pitch is None
    size = PANEL if stripes else large_panels(matrices * rows * n)
    todo = panels(matrices, rows, n, across=across, along=unit, stripes=stripes, size=size)
    for_panels(work, todo, _UINT8, _FLOAT32, _UINT8)
