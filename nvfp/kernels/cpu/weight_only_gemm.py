"""CPU twin of `kernels.weight_only_gemm`: bits change places by tables; products expand some tiles at a time."""

from __future__ import annotations

from functools import cache, reduce
from typing import Any

import numpy as np

from nvfp.dtypes.elements import Element
from nvfp.dtypes.packing import pack as pack_codes, unpack as unpack_codes
from nvfp.kernels._weight_only import GROUP, ROWS, Tiling, bit_tables, places, tiling
from nvfp.kernels.cast import cast
from nvfp.kernels.cpu._njit import U, njit
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.cpu._tables import decode_table
from nvfp.kernels.gemm import tensor_factors
from nvfp.kernels.operand import Operand
from nvfp.kernels.weight_only_gemm import PackedWeight

_FLOAT32 = np.dtype(np.float32)
_PANEL, _GRAIN = 1 << 19, 1 << 15  # values that are expanded at a time, and by a thread at least


def prepack(operand: Operand) -> PackedWeight:
    """See `nvfp.kernels.weight_only_gemm.prepack`."""
    fmt, (n, k) = operand.format, operand.shape
    row = _tiling(operand)
    codes = operand.codes.swapaxes(0, 1) if operand.transposed else operand.codes
    if fmt.element.packed:
        codes = unpack_codes(codes, k, 1)
    tiles, units = row.sizes((n, k))
    whole = np.zeros((tiles * ROWS, units * row.unit), np.uint8)
    whole[:n, :k] = codes
    scale, bad = _packed_scale(operand, row)
    bad[:n] |= np.isnan(decode_table(fmt.element)[codes]).any(axis=1)
    return PackedWeight(
        codes=_packed(whole, row, fmt.element), scale=scale, factor=_factor(operand, bad, tiles * ROWS),
        tensor_scale=operand.tensor_scale, format=fmt, shape=operand.shape,
    )  # fmt: skip


def weight_only_gemm(
    x: Any, packed: PackedWeight, *, bias: Any | None = None, out: Any | None = None, dtype: np.dtype | None = None
) -> Any:
    """See `nvfp.kernels.weight_only_gemm.weight_only_gemm`."""
    n, k = packed.shape
    row, codes, factor = _tiling(packed), packed.codes, packed.factor
    assert codes is not None and factor is not None and dtype is not None, "the contract hands over packed weights"
    tiles, units = codes.shape[:2]
    wide = np.zeros((x.shape[0], units * row.unit), np.float32)
    cast(x, _FLOAT32, out=wide[:, :k])
    words, factors = codes.reshape(-1).view("<u4"), _factors(packed).reshape(tiles, -1)
    tables = _tables(packed.format.element, True), decode_table(packed.format.element)
    y = np.empty((x.shape[0], tiles * ROWS), np.float32)
    step = max(1, _PANEL // (wide.shape[1] * ROWS))
    values = np.empty((min(step, tiles) * ROWS, wide.shape[1]), np.float32)
    for top in range(0, tiles, step):
        count = min(step, tiles - top)

        def work(first: int, last: int, top: int = top) -> None:
            some = words[(top + first) * units * 128 : (top + last) * units * 128]
            scale = factors[top + first : top + last].reshape(-1)
            expand(some, *tables, scale, row.numbers, units, values[first * ROWS : last * ROWS])

        run_chunks(work, count, max(1, _GRAIN // (wide.shape[1] * ROWS)))
        with np.errstate(all="ignore"):  # NaN and inf are values here
            np.matmul(wide, values[: count * ROWS].T, out=y[:, top * ROWS : (top + count) * ROWS])
    y = y[:, :n]
    with np.errstate(all="ignore"):
        y *= factor[:n]
        if bias is not None:
            y += cast(bias, _FLOAT32)
    return np.ascontiguousarray(y) if out is None and dtype == _FLOAT32 else cast(y, dtype, out=out)


@njit
def expand(words: Any, tables: Any, values: Any, scale: Any, numbers: Any, units: int, out: Any) -> None:
    """Write the tiles of packed ``words`` as float32 [rows, columns]: codes times their block scales.

    Args:
        words: uint32, 128 a unit.
        tables: uint32 [4, 256] that bring the bits of a word into plain order.
        values: of the codes.
        scale: float32 in packed order, one without blocks.
        numbers: bits of a code, columns of a unit, units of a span (0: no blocks), blocks in 32 columns, sets of them.
        units: of a tile.
        out: rows of whole tiles.
    """
    bits, unit, span, subs, sets = numbers
    per, mask, two = 32 // bits, U((1 << bits) - 1), bits == 4
    spans = (units + span - 1) // max(span, 1)
    for u in range(len(words) // 128):
        tile, place = u // units, u % units
        for lane in range(32):
            g, t = lane // 4, lane % 4
            for j in range(4):
                w = words[(u * 32 + lane) * 4 + j]
                plain = tables[0, w & U(255)] | tables[1, (w >> U(8)) & U(255)]
                plain |= tables[2, (w >> U(16)) & U(255)] | tables[3, w >> U(24)]
                half, group = (j % 2, j // 2) if two else (j // 2, 0)
                f = scale[0]
                if span:
                    row = ((tile * spans + place // span) * 8 + g) * subs + t * subs // 4
                    f = scale[(row * sets + (group if sets == 2 else 0)) * 2 + half]
                left = place * unit + group * 32 + t * 8 + (0 if two else j % 2 * 4)
                line = out[tile * 16 + half * 8 + g, left : left + per]
                for i in range(per):
                    line[i] = values[(plain >> U(bits * i)) & mask] * f


def _factors(packed: PackedWeight) -> np.ndarray:
    """The packed block scales as float32; a one for each tile without blocks."""
    scale = packed.scale
    assert scale is not None and packed.factor is not None, "a packed weight"
    if packed.format.block is None:
        return np.ones(len(packed.factor) // ROWS, np.float32)
    values: np.ndarray = scale if scale.dtype == _FLOAT32 else decode_table(packed.format.scale)[scale]
    return values


def empty(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Allocate a result."""
    return np.empty(shape, dtype)


def _tiling(x: Operand | PackedWeight) -> Tiling:
    row = tiling(x.format)
    assert row is not None, "the contract hands over formats that are tiled"
    return row


@cache
def _tables(element: Element, back: bool) -> np.ndarray:
    to = places(element)
    return bit_tables(tuple(to.index(i) for i in range(32)) if back else to)


def _permuted(words: np.ndarray, tables: np.ndarray) -> np.ndarray:
    """The bits of uint32 words in another order."""
    parts = words.view(np.uint8).reshape(*words.shape, 4)
    return reduce(np.bitwise_or, (tables[i][parts[..., i]] for i in range(4)))


# A matrix by tile, row in tile (half, g), unit, set of 32 columns, lane t, word of the lane's 8 columns; and packed.
def _split(row: Tiling, tiles: int, units: int) -> tuple[int, ...]:
    return (tiles, 2, ROWS // 2, units, row.unit // GROUP, 4, 8 * row.bits // 32)


_TO_LANES = (0, 3, 2, 5, 4, 1, 6)  # tile, unit, g, t, set, half, word
_FROM_LANES = (0, 5, 2, 1, 4, 3, 6)


def _packed(whole: np.ndarray, row: Tiling, element: Element) -> np.ndarray:
    """Codes [16 tiles, units of columns], one per byte, as packed bytes."""
    tiles, units = whole.shape[0] // ROWS, whole.shape[1] // row.unit
    plain = np.ascontiguousarray(pack_codes(whole, axis=1) if element.packed else whole).view("<u4")
    words = plain.reshape(_split(row, tiles, units)).transpose(_TO_LANES)
    moved = _permuted(np.ascontiguousarray(words), _tables(element, False))
    return moved.astype("<u4", copy=False).view(np.uint8).reshape(tiles, units, -1)


def unpack(packed: PackedWeight) -> Operand:
    """See `nvfp.kernels.weight_only_gemm.unpack`."""
    row, fmt, (n, k), codes = _tiling(packed), packed.format, packed.shape, packed.codes
    assert codes is not None, "a packed weight"
    tiles, units = codes.shape[:2]
    split = _split(row, tiles, units)
    lanes = codes.reshape(-1).view("<u4").reshape([split[i] for i in _TO_LANES])
    plain = np.ascontiguousarray(_permuted(lanes, _tables(fmt.element, True)).transpose(_FROM_LANES))
    matrix = plain.astype("<u4", copy=False).view(np.uint8).reshape(tiles * ROWS, -1)
    width = -(-k // 2) if fmt.element.packed else k
    return Operand(
        codes=np.ascontiguousarray(matrix[:n, :width]), scale=_plain_scale(packed),
        tensor_scale=packed.tensor_scale, format=fmt, shape=(n, k), axis=1,
    )  # fmt: skip


def _packed_scale(operand: Operand, row: Tiling) -> tuple[np.ndarray, np.ndarray]:
    """The packed scales, and which rows have a NaN among them."""
    fmt, (n, k) = operand.format, operand.shape
    if fmt.block_shape is None:
        return operand.scale, np.zeros(n, np.bool_)
    scale = operand.scale.swapaxes(0, 1) if operand.transposed else operand.scale
    lines = np.repeat(scale, fmt.block_shape[0], axis=0)[:n]
    tiles, spans, _, subs, sets, _ = shape = row.scale_shape((n, k))
    whole = np.zeros((tiles * ROWS, spans * subs * sets), scale.dtype)
    whole[:n, : lines.shape[1]] = lines
    split = whole.reshape(tiles, 2, ROWS // 2, spans, sets, subs)
    found = np.ascontiguousarray(split.transpose(0, 3, 2, 5, 4, 1)).reshape(shape)
    values = lines if lines.dtype == _FLOAT32 else decode_table(fmt.scale)[lines]
    return found, np.isnan(values).any(axis=1)


def _plain_scale(packed: PackedWeight) -> np.ndarray:
    """The scales as [blocks of rows, blocks]."""
    scale, block = packed.scale, packed.format.block_shape
    assert scale is not None, "a packed weight"
    if block is None:
        whole: np.ndarray = scale
        return whole
    lines = scale.transpose(0, 5, 2, 1, 4, 3).reshape(scale.shape[0] * ROWS, -1)
    return np.ascontiguousarray(lines[: packed.shape[0], : -(-packed.shape[1] // block[1])][:: block[0]])


def _factor(operand: Operand, bad: np.ndarray, rows: int) -> np.ndarray:
    """What multiplies each row, filled up to ``rows`` of them."""
    per_row = operand.format.per_row_tensor_scale
    words = (operand.tensor_scale,) if per_row else tensor_factors(operand)
    factor = np.ones(rows, np.float32)
    with np.errstate(all="ignore"):
        factor[: bad.size] = reduce(np.multiply, words, np.ones(bad.size, np.float32))
    factor[: bad.size][bad] = np.nan
    return factor
