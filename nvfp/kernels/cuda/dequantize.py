"""CUDA twin of `nvfp.kernels.dequantize`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.dtypes.formats import QuantDType, nvfp4
from nvfp.kernels.cuda._constants import element_define
from nvfp.kernels.cuda._launch import grid_for, launch
from nvfp.kernels.cuda._layout import Cube, blocked_cube, element_strides
from nvfp.kernels.cuda._loader import Defines, Instance, kernel
from nvfp.kernels.cuda._memory import aligned
from nvfp.kernels.cuda._quantize_plan import BFLOAT16
from nvfp.kernels.cuda._transpose import SMALL
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.cuda.cast import cast
from nvfp.kernels.operand import Operand

THREADS = 256
_TILE_ROWS = 64  # = dequantize.cu's TILE_ROWS


def dequantize(operand: Operand, dtype: np.dtype, *, tensor_factors: bool, out: Any | None) -> Any:
    """See `nvfp.kernels.dequantize.dequantize`."""
    if out is None:
        out = cp.empty(operand.shape, dtype)
    if out.size == 0:
        return out
    axis, fmt = _axis(operand), operand.format
    square = (fmt.block_shape or (1, 1))[0] > 1
    at = _seen(_stored(out, operand), axis, square)
    if at is None or (operand.transposed and at.row_stride == 1 and min(at.rows, at.columns) >= SMALL):
        if at is not None and _by_tiles(operand, out, at, axis, square, tensor_factors):
            return out
        # In stored order first: a strided copy, or a tile transpose, is faster than scattered values.
        values = dequantize(
            operand.T if operand.transposed else operand, dtype, tensor_factors=tensor_factors, out=None
        )
        return cast(_stored(values, operand), dtype, source=None, target=None, overflow="saturate", out=out)
    codes, code_at = _grouped(operand.codes, axis, square)
    scale, scale_at, tensor_scale = _scales(operand, axis, square, tensor_factors)
    _launch(codes, code_at, out, at, scale, scale_at, fmt, axis >= len(operand.shape) - 1, tensor_scale)
    return out


def _scales(operand: Operand, axis: int, square: bool, tensor_factors: bool) -> tuple[Any | None, Cube, Any | None]:
    """Return the scales, how they are seen, and the tensor scale; None stands for 1."""
    scale: Any | None = operand.scale
    scale_at = Cube(1, 1, 1, 0, 0, 0)
    if operand.format.block is not None:
        scale, scale_at = _grouped(scale, axis, square)
    elif not tensor_factors:
        scale = None
    return scale, scale_at, operand.tensor_scale if tensor_factors else None


def _by_tiles(operand: Operand, out: Any, at: Cube, axis: int, square: bool, tensor_factors: bool) -> bool:
    """Dequantize into a transposed output by tiles if they fit, and return whether they did."""
    fmt, last = operand.format, axis >= len(operand.shape) - 1
    if at.batch != 1 or at.row_stride != 1 or out.dtype.itemsize not in (2, 4) or (fmt.element.packed and not last):
        return False
    codes, code_at = _grouped(operand.codes, axis, square)
    macros = _defines(fmt, out.dtype, last)
    width, span = (256 if fmt.element.packed else 128), int(dict(macros)["BLOCK_COLUMNS"])
    tiles = -(-at.columns // width) * -(-at.rows // _TILE_ROWS)
    if not (
        (span == 0 or width % span == 0 or span % width == 0) and code_at.column_stride == 1 and tiles < 2**31
        and aligned(out) and at.column_stride * out.dtype.itemsize % 16 == 0
        and aligned(codes, 8) and code_at.row_stride % 8 == 0
    ):  # fmt: skip
        return False
    scale, scale_at, tensor_scale = _scales(operand, axis, square, tensor_factors)
    scales = (scale, scale_at.row_stride, scale_at.column_stride, tensor_scale)
    args = (codes, out, at.rows, at.columns, code_at.row_stride, at.column_stride, *scales)
    launch(kernel("dequantize.cu", "dequantize_columns", macros), (tiles,), (THREADS,), args)
    return True


def _axis(operand: Operand) -> int:
    """The block axis in stored order; the last one where it means nothing."""
    if operand.format.block is None and not operand.format.element.packed:
        return max(len(operand.shape) - 1, 0)
    return operand.stored_axis


def _stored(out: Any, operand: Operand) -> Any:
    return out.swapaxes(-1, -2) if operand.transposed else out


def _seen(x: Any, axis: int, square: bool) -> Cube | None:
    return blocked_cube(x.shape, element_strides(x), axis, square=square)


def _grouped(x: Any, axis: int, square: bool) -> tuple[Any, Cube]:
    """Return ``x``, copied if its axes have gaps, and how it is seen."""
    at = _seen(x, axis, square)
    if at is None:
        x = cast(x, x.dtype, source=None, target=None, overflow="saturate", out=None)
        at = _seen(x, axis, square)
        assert at is not None, "a contiguous array has no gaps"
    return x, at


def _launch(
    codes: Any, code_at: Cube, out: Any, at: Cube, scale: Any | None, scale_at: Cube, fmt: QuantDType, last: bool,
    tensor_scale: Any | None,
) -> None:  # fmt: skip
    pack = (1 if last else 2) if fmt.element.packed else 0
    macros = _defines(fmt, out.dtype, last)
    per = 16 // out.dtype.itemsize
    nbytes = per // 2 if pack else per
    rows_fit = (
        at.batch == 1 and pack < 2 and int(dict(macros)["BLOCK_COLUMNS"]) % per == 0 and per >= 4
        and (at.column_stride == 1 or at.columns == 1) and (code_at.column_stride == 1 or code_at.columns == 1)
        and aligned(out) and at.row_stride * out.dtype.itemsize % 16 == 0
        and aligned(codes, nbytes) and code_at.row_stride % nbytes == 0
    )  # fmt: skip
    args: tuple[Any, ...]
    tiles = -(-at.columns // (32 * per)) * -(-at.rows // 32)
    if rows_fit and tiles < 2**31:
        scales = (scale, scale_at.row_stride, scale_at.column_stride, tensor_scale)
        args = (codes, out, at.rows, at.columns, code_at.row_stride, at.row_stride, *scales)
        launch(kernel("dequantize.cu", "dequantize_rows", macros), (tiles,), (THREADS,), args)
        return
    grid = grid_for(at.batch * at.rows * at.columns, THREADS, per_thread=2, per_sm=32)
    args = (codes, out, *at[:3], *code_at[3:], *at[3:], scale, *scale_at[3:], tensor_scale)
    launch(kernel("dequantize.cu", "dequantize_strided", macros), grid, (THREADS,), args)


def _defines(fmt: QuantDType, dtype: np.dtype, last: bool) -> Defines:
    """Return the macros for codes whose block axis is the last one, or not."""
    across, along = fmt.block_shape or (0, 0)
    return (
        ("T_OUT", ctype(dtype)),
        *element_define("ELEMENT", fmt.element),
        *element_define("SCALE", fmt.scale),
        ("FLOAT_SCALE", int(fmt.scale_family == "float32")),
        ("PACK", (1 if last else 2) if fmt.element.packed else 0),
        ("BLOCK_ROWS", across if last else along),
        ("BLOCK_COLUMNS", along if last else across),
    )


def instances() -> list[Instance]:
    """The kernels that CI compiles."""
    found = [("dequantize_rows", True), ("dequantize_columns", True), ("dequantize_strided", False)]
    return [Instance("dequantize.cu", name, _defines(nvfp4, BFLOAT16, last)) for name, last in found]
