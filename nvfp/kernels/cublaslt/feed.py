"""`Feed`: how an operand becomes a matrix that cuBLASLt can address; decided once, from shapes and strides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


def codes_feed(x: Operand, left: bool, rows: int) -> Feed:
    """Feed FP8 codes with K contiguous, K padded to 16 by zeros and at least ``rows`` rows (of memory we may read).

    Args:
        x: per-tensor FP8, logical [..., M, K] on the left, [..., K, N] on the right.
        left: which side it is.
        rows: M on the left; on the right N, padded so that a row of the result is a multiple of 16 bytes. What
            the rows beyond the logical ones hold reaches only columns of the result that are dropped.
    """
    *batch, r, c = x.shape
    n, k = (r, c) if left else (c, r)
    kp = round_up(k, UNIT)
    name = x.format.element.name
    k_stored_last = x.transposed != left
    codes_strides: Ints = x.codes.strides  # bytes are elements
    row_stride, k_stride = codes_strides[-2:] if k_stored_last else codes_strides[-2:][::-1]
    ld = row_stride if rows > 1 else kp
    # Zeros behind K, and rows behind the last one, are there only where quantize says that it made them.
    padded = x.padded_rows if k_stored_last else 0
    if (
        (k_stride == 1 or k == 1)
        and ld >= kp
        and ld % UNIT == 0
        and min(codes_strides) >= 0
        and (k == kp or padded > 0)
        and (rows == n or (not batch and padded >= rows))
        and (align := alignment(reduce(or_, codes_strides[:-2], address(x.codes)))) >= UNIT
    ):
        return Feed(None, name, Order(not left, ld), tuple(batch), codes_strides[:-2], align)
    make = partial(_pack, k_stored_last=k_stored_last, across=row_stride == 1 and k_stride != 1, rows=rows, k=kp)
    return _fresh(make, UINT8, (*batch, rows, kp), not left, name)


def blocks_fit(x: Any, left: bool) -> bool:
    """Whether tensor cores can read the scales of an Operand: one per tensor, or of a matrix blocked along K."""
    if type(x) is not Operand or x.format.block is None:
        return True
    return len(x.shape) == 2 and (x.format.square or x.axis == (1 if left else 0))


def block_scales(x: Operand, *, left: bool, rows: int, square: bool) -> Any:
    """Return the float32 scales of a matrix in 128-value blocks as cuBLASLt reads them: the operand's own, or a copy.

    Args:
        x: blocks along K (1 x 128) or 128 x 128.
        left: whether it is the left operand.
        rows: of the product: rows of x, columns of w, padding included.
        square: whether its blocks are 128 x 128.

    Returns:
        1 x 128: [ceil(K / 128), rows]. 128 x 128: [ceil(rows / 128), ceil(K / 128) rounded up to 4]. What lies beyond
        the operand is 0.
    """
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
    """Return what a Feed depends on, cheaply, and the address of the array or codes.

    A format is known by its identity: whoever keeps the key keeps the format alive.
    """
    if type(x) is Operand:
        codes = x.codes
        at = address(codes)
        return (
            x.shape,
            codes.strides,
            id(x.format),
            x.axis,
            x.transposed,
            x.padded_rows,
            alignment(at),
            x.tensor_scale is None,
        ), at
    at = address(x)
    return (x.shape, x.strides, x.dtype, alignment(at)), at
