"""Products of matrices and vectors, dense and quantized in any mix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import any_array, axis_tuple, dense, fit, is_storage, like
from nvfp.arrays.quantized import QuantizedArray
from nvfp.arrays.registry import nf, public
from nvfp.dtypes.dense import as_dtype, float32
from nvfp.dtypes.promotion import result_type
from nvfp.errors import DeviceError, DTypeError, ShapeError, message
from nvfp.kernels.gemm import gemm


def _vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    a, b, targets = saved
    da = fit(_product(g, nf.matrix_transpose(b), targets[0][1]), targets[0]) if needs[0] else None
    db = fit(_product(nf.matrix_transpose(a), g, targets[1][1]), targets[1]) if needs[1] else None
    return da, db


def _product(a: Array, b: Array, dtype: np.dtype) -> Array:
    """Multiply [..., M, K] by [..., K, N]: the recorded product."""
    if dtype.kind == "c":  # quantized and narrow arrays count with their values
        a, b = (nf.astype(x, float32) if is_storage(x.dtype) else x for x in (a, b))
    if dtype.kind in "iubc":
        return wrap(np.matmul(a.raw, b.raw) if isinstance(a.raw, np.ndarray) else a.raw @ b.raw)
    y = gemm(_floating(a, dtype).raw, _floating(b, dtype).raw, dtype=dtype)
    saved = (a if b._node is not None else None, b if a._node is not None else None, (like(a), like(b)))
    return wrap(y, node=dense("matmul", (a, b), _vjp, saved))


def _floating(x: Array, dtype: np.dtype) -> Array:
    """Integers in the dtype of the product, narrow floats in float32; floats and quantized arrays as they are."""
    if isinstance(x, QuantizedArray):
        return x
    if is_storage(x.dtype):
        return nf.astype(x, float32)
    return nf.astype(x, dtype) if x.dtype.kind in "iub" else x


@public
def matmul(x1: Any, x2: Any, /, *, dtype: Any = None) -> Array:
    """Return the matrix product, with NumPy's rules for vectors and batches.

    Args:
        x1: [..., M, K] or [K].
        x2: [..., K, N] or [K]; batch axes broadcast. Either may be quantized, with any block axis.
        dtype: dense floating dtype of the result; by default ``nf.result_type(x1, x2)``.

    Returns:
        [..., M, N] (without M or N where a vector stood). A quantized operand is a constant: the gradient
        goes to the other one, as ``g @ dequantize(q).T``.

    Raises:
        ShapeError: scalars, inner lengths that differ, or batch axes that do not broadcast.
        DeviceError: operands on different devices.
        DTypeError: a result dtype that is not floating.

    Numerics:
        Sums in float32, one rounding to ``dtype``; see `nvfp.kernels.gemm`. Quantized operands are used as
        they are, or expanded exactly where the device has no such product; never quantized again.

    Example:
        >>> import nvfp as nf
        >>> x = nf.asarray([[1.0, 2.0]], device="cpu")
        >>> nf.matmul(x, x.astype(nf.nvfp4).T)
        nf.array([[5.]])
    """
    a, b = any_array("matmul", x1), any_array("matmul", x2)
    _check(a, b)
    target = result_type(a.dtype, b.dtype) if dtype is None else as_dtype(dtype)
    if not isinstance(target, np.dtype) or (is_storage(target)):
        raise DTypeError(message("matmul", "a dense dtype", target, "quantize the result instead"))
    row, column = a.ndim == 1, b.ndim == 1
    a = nf.expand_dims(a, 0) if row else a
    b = nf.expand_dims(b, 1) if column else b
    lead = a.shape[:-1]
    flat = a.ndim > 2 and b.ndim == 2 and not (isinstance(a, QuantizedArray) and a.axis != a.ndim - 1)
    if flat:  # one large product instead of a batch: also in the gradients
        a = nf.reshape(a, (math.prod(lead), a.shape[-1]))
    y = _product(a, b, target)
    if flat:
        y = nf.reshape(y, (*lead, y.shape[-1]))
    gone = (*((-2,) if row else ()), *((-1,) if column else ()))
    return nf.squeeze(y, gone) if gone else y


def _check(a: Array, b: Array) -> None:
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(message("matmul", "arrays with axes", f"{a.shape} @ {b.shape}", "use x * y for scalars"))
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise ShapeError(message("matmul", "equal inner lengths", f"{a.shape} @ {b.shape}", "transpose one operand"))
    if a.ndim > 2 and b.ndim > 2:
        nf.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if a.device is not b.device:
        raise DeviceError(
            message("matmul", "operands on one device", f"{a.device} and {b.device}", "move one with x.to_device(...)")
        )


@public
def tensordot(x1: Any, x2: Any, /, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """Return the sum of products over pairs of axes.

    Args:
        x1: Array.
        x2: Array.
        axes: how many last axes of ``x1`` meet the first of ``x2``, or the two lists of axes.

    Raises:
        ShapeError: axes that are out of range or of different lengths.

    Example:
        >>> import nvfp as nf
        >>> x = nf.ones((2, 3, 4), device="cpu")
        >>> nf.tensordot(x, nf.ones((4, 5), device="cpu"), axes=1).shape
        (2, 3, 5)
    """
    a, b = any_array("tensordot", x1), any_array("tensordot", x2)
    pairs = (range(a.ndim - axes, a.ndim), range(axes)) if isinstance(axes, int) else axes
    left, right = axis_tuple("tensordot", tuple(pairs[0]), a.ndim), axis_tuple("tensordot", tuple(pairs[1]), b.ndim)
    if [a.shape[i] for i in left] != [b.shape[i] for i in right]:
        got = f"{a.shape} over {left} and {b.shape} over {right}"
        raise ShapeError(message("tensordot", "equal lengths of the axes that meet", got, "choose other axes"))
    free_a = [i for i in range(a.ndim) if i not in left]
    free_b = [i for i in range(b.ndim) if i not in right]
    inner = math.prod(a.shape[i] for i in left)
    matrix_a = nf.reshape(nf.permute_dims(a, (*free_a, *left)), (math.prod(a.shape[i] for i in free_a), inner))
    matrix_b = nf.reshape(nf.permute_dims(b, (*right, *free_b)), (inner, math.prod(b.shape[i] for i in free_b)))
    shape = (*(a.shape[i] for i in free_a), *(b.shape[i] for i in free_b))
    return nf.reshape(matmul(matrix_a, matrix_b), shape)


@public
def vecdot(x1: Any, x2: Any, /, axis: int = -1) -> Array:
    """Return the sum of products along one axis; the other axes broadcast.

    Args:
        x1: Array [..., N].
        x2: Array [..., N].
        axis: the axis of length N, in both.

    Raises:
        ShapeError: lengths that differ along ``axis``.

    Example:
        >>> import nvfp as nf
        >>> nf.vecdot(nf.asarray([1.0, 2.0], device="cpu"), nf.asarray([3.0, 4.0], device="cpu"))
        nf.array(11.)
    """
    a = nf.moveaxis(any_array("vecdot", x1), axis, -1)
    b = nf.moveaxis(any_array("vecdot", x2), axis, -1)
    return nf.squeeze(matmul(nf.expand_dims(a, -2), nf.expand_dims(b, -1)), (-2, -1))


@public
def outer(x1: Any, x2: Any, /) -> Array:
    """Return the outer product [M, N] of two vectors [M] and [N].

    Args:
        x1: Array [M].
        x2: Array [N].

    Raises:
        ShapeError: an operand that is no vector.

    Example:
        >>> import nvfp as nf
        >>> nf.outer(nf.asarray([1.0, 2.0], device="cpu"), nf.asarray([3.0, 4.0], device="cpu"))
        nf.array([[3., 4.],
                  [6., 8.]])
    """
    a, b = any_array("outer", x1), any_array("outer", x2)
    if a.ndim != 1 or b.ndim != 1:
        raise ShapeError(message("outer", "two vectors", f"{a.shape} and {b.shape}", "flatten them first"))
    return nf.multiply(nf.expand_dims(a, 1), nf.expand_dims(b, 0))
