"""`Feed`: how an operand becomes a matrix that cuBLASLt can address; decided once, from shapes and strides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import or_
from typing import Any

import numpy as np

from nvfp.kernels.cast import cast
from nvfp.kernels.cublaslt.layout import (
    Ints,
    Order,
    alignment,
    batch_strides,
    contiguous_strides,
    element_strides,
    matrix_order,
    round_up,
)
from nvfp.kernels.cublaslt.problem import Matrix
from nvfp.kernels.cuda._memory import address
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.dequantize import dequantize, plain_scales
from nvfp.kernels.operand import Operand
from nvfp.kernels.scale_layout import scale_layout
from nvfp.kernels.transpose import transpose

UINT8, FLOAT32 = np.dtype(np.uint8), np.dtype(np.float32)
TILED = ("VEC32_UE8M0", "VEC16_UE4M3")  # modes whose scales lie in tiles of 128 x 4
UNIT = 16  # bytes to which FP8 addresses, leading dimensions and inner lengths must be aligned


@dataclass(frozen=True, slots=True)
class Feed:
    """How one operand reaches cuBLASLt.

    Attributes:
        make: operand -> the CuPy array whose memory is the matrix, kept by the caller until the launch; None
            where the operand's own memory is.
        dtype: name, a key of `typemap.DATA_TYPE`.
        order: of every matrix.
        batch: lengths of its own batch axes.
        strides: of these, in elements.
        align: bytes to which all its matrices are aligned.
    """

    make: Callable[[Any], Any] | None
    dtype: str
    order: Order
    batch: Ints
    strides: Ints
    align: int

    def over(self, batch: Ints) -> Ints:
        """Return the strides over the broadcast batch axes."""
        return batch_strides(self.batch, self.strides, batch)

    def matrix(self, stride: int, scale: str | None) -> Matrix:
        """Return its part of the problem record."""
        return Matrix(self.dtype, self.order.ld, self.order.transposed, stride, self.align, scale)


def dense_feed(x: Any, dtype: np.dtype) -> Feed:
    """Feed a dense array [..., R, C] as ``dtype``: where it lies if cuBLASLt can address it there, else by a copy."""
    strides = element_strides(x.strides, x.dtype.itemsize)
    order = None if strides is None or x.dtype != dtype else matrix_order(*x.shape[-2:], *strides[-2:])
    if strides is not None and order is not None:
        align = alignment(reduce(or_, x.strides[:-2], address(x)))
        return Feed(None, dtype.name, order, x.shape[:-2], strides[:-2], align)
    swap = abs(x.strides[-2]) < abs(x.strides[-1])
    *batch, r, c = x.shape
    return _fresh(partial(_copy, dtype=dtype, swap=swap), dtype, (*batch, c, r) if swap else (*batch, r, c), swap)


def expanded_feed(x: Operand, dtype: np.dtype) -> Feed:
    """Feed an Operand as its values without per-tensor factors, in the order in which it is stored."""
    return _fresh(partial(_expand, dtype=dtype), dtype, x.stored_shape, x.transposed)


def codes_feed(x: Operand, left: bool, rows: int, unit: int = UNIT) -> Feed:
    """Feed codes with K contiguous, K padded to ``unit`` by zeros and at least ``rows`` rows (of memory we may read).

    Args:
        x: of 8-bit codes, logical [..., M, K] on the left, [..., K, N] on the right; of 4-bit codes a matrix, packed
            along K and with K stored last (`blocks_fit`).
        left: which side it is.
        rows: M on the left; on the right N, padded so that a row of the result is a multiple of 16 bytes. What
            the rows beyond the logical ones hold reaches only columns of the result that are dropped.
        unit: elements; 16 bytes and whole blocks.
    """
    *batch, r, c = x.shape
    n, k = (r, c) if left else (c, r)
    per = 2 if x.format.element.packed else 1
    kp = round_up(k, unit)
    name = x.format.element.name
    k_stored_last = x.transposed != left
    codes_strides: Ints = x.codes.strides
    row_stride, k_stride = codes_strides[-2:] if k_stored_last else codes_strides[-2:][::-1]
    ld = row_stride * per if rows > 1 else kp
    # Zeros behind K, and rows behind the last one, are there only where quantize says that it made them.
    padded = x.padded_rows if k_stored_last else 0
    if (
        (k_stride == 1 or k <= per)
        and ld >= kp
        and ld // per % UNIT == 0
        and min(codes_strides) >= 0
        and (k == kp or (padded > 0 and unit == UNIT))
        and (rows == n or (not batch and padded >= rows))
        and (align := alignment(reduce(or_, codes_strides[:-2], address(x.codes)))) >= UNIT
    ):
        return Feed(None, name, Order(not left, ld), tuple(batch), codes_strides[:-2], align)
    across = row_stride == 1 and k_stride != 1
    make = partial(_pack, k_stored_last=k_stored_last, across=across, rows=rows, k=kp // per)
    fed = _fresh(make, UINT8, (*batch, rows, kp // per), not left, name)
    return replace(fed, order=Order(not left, kp))


def blocks_fit(x: Any, left: bool) -> bool:
    """Whether tensor cores can read the scales of an Operand: one per tensor, or of a matrix blocked along K.

    Scales in tiles, and packed codes, must also be stored with K last.
    """
    if type(x) is not Operand or x.format.block is None:
        return True
    if len(x.shape) != 2 or not (x.format.square or x.axis == (1 if left else 0)):
        return False
    return x.format.scale.bits == 32 or (x.transposed != left and x.axis == (1 if left else 0))


def block_scales(x: Operand, *, left: bool, rows: int, mode: str) -> Any:
    """Return the scales of a matrix as cuBLASLt reads them: the operand's own, or a copy. What lies beyond is 0.

    Args:
        x: blocks along K, or square ones.
        left: whether it is the left operand.
        rows: of the product: rows of x, columns of w, padding included.
        mode: cuBLASLt's name of the scale mode.

    Returns:
        ``VEC128_32F``: [ceil(K / 128), rows]. ``BLK128x128_32F``: [ceil(rows / 128), ceil(K / 128) rounded up to 4].
        ``OUTER_VEC_32F``: [rows]. ``VEC32_UE8M0``, ``VEC16_UE4M3``: tiles of 128 x 4.
    """
    if mode == "OUTER_VEC_32F":
        return _row_scales(x, rows, x.transposed != left)
    if mode in TILED:
        return _tiles(x)
    square = mode == "BLK128x128_32F"
    scale, k_stored_last = x.scale, x.transposed != left
    ready = x.scale_layout == "k_major128" and k_stored_last and (square or scale.shape[1] == rows)
    if ready and not address(scale) % UNIT:
        return scale
    matrix = plain_scales(x).scale
    matrix = matrix if k_stored_last != square else matrix.T
    if square or round_up(matrix.shape[0], 4) == rows:
        return scale_layout(matrix, "k_major128")
    filled = cp.zeros((matrix.shape[1], rows), FLOAT32)
    cast(matrix.T, FLOAT32, out=filled[:, : matrix.shape[0]])
    return filled


def _row_scales(x: Operand, rows: int, k_stored_last: bool) -> Any:
    """One scale for each row of the product."""
    scale = plain_scales(x).scale
    line = scale[:, 0] if k_stored_last else scale[0]
    if line.size == rows and (rows == 1 or line.strides[0] == 4) and not address(line) % UNIT:
        return line
    filled = cp.zeros(rows, FLOAT32)
    cast(line, FLOAT32, out=filled[: line.size])
    return filled


def _tiles(x: Operand) -> Any:
    """Block scales in tiles of 128 x 4; those of square blocks once for each row."""
    if x.scale_layout == "tiles128x4" and not address(x.scale) % UNIT:
        return x.scale
    matrix = plain_scales(x).scale
    across = (x.format.block_shape or (1, 1))[0]
    if across > 1:
        r, c = matrix.shape
        rows = cast(cp.broadcast_to(matrix[:, None], (r, across, c)), UINT8)
        matrix = rows.reshape(r * across, c)[: x.stored_shape[0]]
    return scale_layout(matrix, "tiles128x4")


def _fresh(
    make: Callable[[Any], Any], dtype: np.dtype, stored: Ints, transposed: bool, name: str | None = None
) -> Feed:
    """A feed that makes a new contiguous array of shape ``stored``."""
    strides = contiguous_strides(stored)[:-2]
    align = alignment(reduce(or_, (s * dtype.itemsize for s in strides), 0))
    return Feed(make, name or dtype.name, Order(transposed, stored[-1]), stored[:-2], strides, align)


def _copy(x: Any, *, dtype: np.dtype, swap: bool) -> Any:
    return cast(x.swapaxes(-1, -2) if swap else x, dtype)


def _expand(x: Operand, *, dtype: np.dtype) -> Any:
    return dequantize(x.T if x.transposed else x, dtype, tensor_factors=False)


def _pack(x: Operand, *, k_stored_last: bool, across: bool, rows: int, k: int) -> Any:
    """Codes as [..., rows, k] with K contiguous; what is beyond the logical lengths is 0."""
    codes = x.codes
    view = codes if k_stored_last else codes.swapaxes(-1, -2)
    n, inner = view.shape[-2:]
    if (n, inner) == (rows, k):
        return transpose(view.swapaxes(-1, -2)) if across else cast(view, UINT8)
    packed = cp.zeros((*view.shape[:-2], rows, k), UINT8)
    cast(transpose(view.swapaxes(-1, -2)) if across else view, UINT8, out=packed[..., :n, :inner])
    return packed


def operand_key(x: Any) -> tuple[tuple[Any, ...], int]:
    """Return what a Feed and the checks of the contract depend on, cheaply, and the address of the array or codes.

    A format is known by its identity: whoever keeps the key keeps the format alive. Every microsecond here is one of
    every GEMM, thrice.
    """
    if type(x) is Operand:
        codes = x.codes
        at = pointer(codes)
        rest = x.axis, x.transposed, x.padded_rows, x.tensor_scale is None, x.rotation
        return (_CLASS[at & 255], x.shape, codes.strides, id(x.format), rest), at
    at = pointer(x)
    return (_CLASS[at & 255], x.shape, x.strides, x.dtype.num), at


def pointer(array: Any) -> int:
    """Return the address of an array (`address` without its conversion)."""
    at: int = array.data.ptr
    return at


_CLASS = tuple(alignment(at) for at in range(256))  # of every address, by its last byte
