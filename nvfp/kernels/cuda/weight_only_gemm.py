"""CUDA twin of `kernels.weight_only_gemm`."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from nvfp.dtypes.formats import QuantDType, nvfp4
from nvfp.kernels._weight_only import ROWS, Tiling, tiling
from nvfp.kernels.cast import cast
from nvfp.kernels.cuda._constants import element_define
from nvfp.kernels.cuda._launch import launch, multiprocessors
from nvfp.kernels.cuda._loader import Defines, Instance, Kernel, kernel
from nvfp.kernels.cuda._memory import aligned
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.gemm import tensor_factors
from nvfp.kernels.operand import Operand, codes_shape, scale_shape
from nvfp.kernels.weight_only_gemm import HALVES, PASS, PackedWeight

_SOURCE, _PACK = "weight_only_gemm.cu", "weight_only_gemm_pack.cu"
_THREADS = 256  # = weight_only_gemm_pack.cu's THREADS
_FLOAT32, _UINT8 = np.dtype(np.float32), np.dtype(np.uint8)


class Shape(NamedTuple):
    """How a product is cut: macros of weight_only_gemm.cu, and blocks along K."""

    rows: int  # tiles of 16 rows of w that a block takes
    warps: int
    unroll: int  # units of each warp on their way
    blocks: int  # that a multiprocessor must hold
    x_ahead: int  # whether x is loaded with the units, or when it is multiplied
    splits: int = 1


def prepack(operand: Operand) -> PackedWeight:
    """See `nvfp.kernels.weight_only_gemm.prepack`."""
    fmt, (n, k) = operand.format, operand.shape
    row = _tiling(fmt)
    macros, tiles = _layout(fmt), row.sizes((n, k))[0]
    scale, (first, second) = operand.scale, _factors(operand)
    factor = cp.empty((tiles * ROWS,), _FLOAT32)
    codes = cp.empty(row.codes_shape((n, k)), _UINT8)
    kept, entries = scale, 0
    row_step = column_step = 0
    if row.along:
        kept = cp.empty(row.scale_shape((n, k)), scale.dtype)
        entries = kept.size // tiles
        row_step, column_step = _steps(scale, operand.transposed)
    across = (fmt.block_shape or (1, 1))[0]
    step = second.strides[0] // 4 if second is not None and second.ndim else 0
    launch(
        kernel(_PACK, "weight_only_gemm_scales", macros), (tiles,), (_THREADS,),
        (scale, row_step, column_step, kept, factor, first, second, step, n, k, np.int32(across), np.int32(entries)),
    )  # fmt: skip
    pieces = codes.size // 16
    launch(
        kernel(_PACK, "weight_only_gemm_pack", macros), (-(-pieces // _THREADS),), (_THREADS,),
        (operand.codes, *_steps(operand.codes, operand.transposed), codes, factor, n, k, codes.shape[1], pieces),
    )  # fmt: skip
    return PackedWeight(codes, kept, factor, operand.tensor_scale, fmt, operand.shape)


def unpack(packed: PackedWeight) -> Operand:
    """See `nvfp.kernels.weight_only_gemm.unpack`."""
    fmt, (n, k), scale = packed.format, packed.shape, packed.scale
    macros = _layout(fmt)
    assert packed.codes is not None and scale is not None, "a packed weight"
    codes = cp.empty(codes_shape(fmt, (n, k), 1), _UINT8)
    launch(
        kernel(_PACK, "weight_only_gemm_unpack", macros), (-(-codes.size // _THREADS),), (_THREADS,),
        (packed.codes, codes, k, packed.codes.shape[1], codes.shape[1], codes.size),
    )  # fmt: skip
    if fmt.block_shape is not None:
        plain = cp.empty(scale_shape(fmt, (n, k), 1), scale.dtype)
        entries = np.int32(scale.size // scale.shape[0])
        launch(
            kernel(_PACK, "weight_only_gemm_unpack_scales", macros), (-(-plain.size // _THREADS),), (_THREADS,),
            (scale, plain, plain.shape[1], np.int32(fmt.block_shape[0]), entries, plain.size),
        )  # fmt: skip
        scale = plain
    return Operand(codes, scale, packed.tensor_scale, fmt, (n, k), 1)


def weight_only_gemm(
    x: Any, packed: PackedWeight, *, bias: Any | None = None, out: Any | None = None, dtype: np.dtype | None = None
) -> Any:
    """See `nvfp.kernels.weight_only_gemm.weight_only_gemm`; x [M <= 16, K]."""
    m, n = x.shape[0], packed.shape[0]
    assert packed.codes is not None and dtype is not None, "the contract hands over packed weights and a dtype"
    tiles, units = packed.codes.shape[:2]
    y = out
    if out is None or out.strides[1] != out.itemsize:
        y = cp.empty((m, n), dtype)
    if bias is not None and bias.strides[0] != bias.itemsize:
        bias = cast(bias, bias.dtype)
    x = _readable(x, units * _tiling(packed.format).unit)
    product(x, packed, y, bias, shape_for(packed.format, x.dtype, m, tiles, units, multiprocessors()))
    if out is not None and y is not out:
        cast(y, dtype, out=out)
        return out
    return y


def product(x: Any, packed: PackedWeight, y: Any, bias: Any | None, cut: Shape) -> None:
    """Launch the product of readable x into y, cut in a given way."""
    (m, n), codes = y.shape, packed.codes
    assert codes is not None, "a packed weight"
    tiles, units = codes.shape[:2]
    whole, add = _kernels(packed.format, x.dtype, y.dtype, m > PASS // 2, cut)
    partial = cp.empty((cut.splits, m, n), _FLOAT32) if cut.splits > 1 else None
    pitch, sizes = y.strides[0] // y.itemsize, (np.int32(m), np.int32(n))
    args = (codes, packed.scale, packed.factor, x, x.strides[0] // x.itemsize, y, pitch, bias, partial, *sizes)
    grid = (-(-tiles // cut.rows), cut.splits)
    launch(whole, grid, (cut.warps * 32,), (*args, np.int32(tiles), np.int32(units)))
    if partial is not None:
        added = (partial, packed.factor, y, pitch, bias, np.int32(cut.splits), *sizes)
        launch(add, (-(-m * n // 256),), (256,), added)


@cache
def _kernels(fmt: QuantDType, x: np.dtype, y: np.dtype, wide: bool, cut: Shape) -> tuple[Kernel, Kernel]:
    macros = defines(fmt, x, y, PASS if wide else PASS // 2, cut)
    return kernel(_SOURCE, "weight_only_gemm", macros), kernel(_SOURCE, "weight_only_gemm_sum", macros)


def empty(shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Allocate a result."""
    return cp.empty(shape, dtype)


@cache
def shape_for(fmt: QuantDType, x: np.dtype, m: int, tiles: int, units: int, sms: int) -> Shape:
    """Choose how a product is cut, by dtypes, shape and device only.

    The fastest of 13 cuts on an H200; formats that need more registers have fewer units on their way: none may spill.
    """
    row = _tiling(fmt)
    few, packed = tiles <= 4 * sms, fmt.element.packed
    heavy = row.along > 0 and not row.values and (packed or row.span > row.unit)
    if m > PASS // 2 and packed:
        cut = Shape(1, 8, 3, 2, 0) if heavy else Shape(2, 8, 2, 2, 1)
    elif m > PASS // 2:
        cut = Shape(1, 8, 4, 2, 1) if few or heavy else Shape(1, 8, 2, 4, 1)
    elif few:
        cut = Shape(1, 16, 2, 2, 0)
    elif not row.along:
        cut = Shape(1, 4, 4, 4, 1)
    else:
        cut = Shape(2, 4, (2 if x == HALVES[1] else 3) if heavy else 4, 4, 0)
    # Adding the parts of K is one more launch: it pays where few blocks would read 128 KiB each.
    splits = min(sms // tiles, units // 128) if 2 * tiles <= sms and units >= 256 else 1
    return cut._replace(splits=splits)


def _readable(x: Any, columns: int) -> Any:
    """Return x with rows of 16-byte pieces up to ``columns``; itself if it has them, else a copy with zeros behind."""
    fits = x.shape[1] == columns and x.strides[1] == x.itemsize and x.strides[0] % 16 == 0 and aligned(x)
    if fits and (x.strides[0] > 0 or x.shape[0] == 1):
        return x
    whole = cp.zeros((x.shape[0], columns), x.dtype)
    cast(x, x.dtype, out=whole[:, : x.shape[1]])
    return whole


def _tiling(fmt: QuantDType) -> Tiling:
    row = tiling(fmt)
    assert row is not None, "the contract hands over formats that are tiled"
    return row


def _steps(x: Any, transposed: bool) -> tuple[int, int]:
    """Distances of two rows and two columns of w, in items."""
    first, second = (s // x.itemsize for s in x.strides)
    return (second, first) if transposed else (first, second)


def _factors(operand: Operand) -> tuple[Any | None, Any | None]:
    """The factors of all rows: a word, and a word or one for each row."""
    if operand.format.per_row_tensor_scale:
        return None, operand.tensor_scale
    first, second = (*tensor_factors(operand), None, None)[:2]
    return first, second


@cache
def _layout(fmt: QuantDType) -> Defines:
    row = _tiling(fmt)
    return (
        *element_define("ELEMENT", fmt.element),
        *element_define("SCALE", fmt.scale),
        ("HOME", ",".join(map(str, row.places.home))),
        ("TURNS", ",".join(map(str, row.places.turns))),
        ("ALONG", row.along),
    )


@cache
def defines(fmt: QuantDType, x: np.dtype, y: np.dtype, m: int, cut: Shape) -> Defines:
    """Return the macros of a product of m rows."""
    row = _tiling(fmt)
    return (
        *_layout(fmt),
        ("VALUES", int(row.values)),
        ("SHRINK", row.places.shift or 0),
        ("T_X", ctype(x)),
        ("T_OUT", ctype(y)),
        ("TILES", 1 if m <= PASS // 2 else 2),
        ("ROWS", cut.rows),
        ("WARPS", cut.warps),
        ("UNROLL", cut.unroll),
        ("BLOCKS", cut.blocks),
        ("X_AHEAD", cut.x_ahead),
    )


def instances() -> list[Instance]:
    """The kernels that CI compiles."""
    half = HALVES[0]
    product = defines(nvfp4, half, half, 8, shape_for(nvfp4, half, 8, 896, 64, 132))
    return [
        Instance(_SOURCE, "weight_only_gemm", product),
        Instance(_PACK, "weight_only_gemm_pack", _layout(nvfp4)),
    ]
