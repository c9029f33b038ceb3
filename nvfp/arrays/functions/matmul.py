"""Products of matrices and vectors, dense and quantized in any mix."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nvfp.arrays.array import KIND_RANKS, Array, fresh, wrap
from nvfp.arrays.blocks import blocked_axes
from nvfp.arrays.functions._common import any_array, axis_tuple, conjugate, dense, fit, is_storage, like
from nvfp.arrays.functions._quiet import quiet
from nvfp.arrays.quantized import QuantizedArray
from nvfp.arrays.registry import nf, public
from nvfp.dtypes.dense import as_dtype, float32, float64
from nvfp.dtypes.promotion import result_type
from nvfp.errors import BlockIndexError, DeviceError, DTypeError, ShapeError, message
from nvfp.kernels.gemm import gemm


def _vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    a, b, targets = saved
    da = fit(_product(g, _adjoint(b), _wider(g, targets[0][1])), targets[0]) if needs[0] else None
    db = fit(_product(_adjoint(a), g, _wider(g, targets[1][1])), targets[1]) if needs[1] else None
    return da, db


def _adjoint(x: Array) -> Array:
    return nf.matrix_transpose(conjugate(x))


def _wider(g: Array, dtype: np.dtype) -> np.dtype:
    """The dtype of a gradient before `fit`: a complex one counts with both parts."""
    return g.dtype if g.dtype.kind == "c" else dtype


def _product(a: Array, b: Array, dtype: np.dtype) -> Array:
    """Multiply [..., M, K] by [..., K, N]: the recorded product."""
    if dtype.kind == "c":  # quantized and narrow arrays count with their values
        a, b = (nf.astype(x, float32) if is_storage(x.dtype) else x for x in (a, b))
    if dtype.kind in "iub":
        a, b = (nf.astype(x, dtype, copy=False) for x in (a, b))
    if dtype.kind in "iubc":
        y = np.matmul(a.raw, b.raw) if isinstance(a.raw, np.ndarray) else a.raw @ b.raw
    else:
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
        dtype: dense dtype of the result; by default ``nf.result_type(x1, x2)``.

    Returns:
        [..., M, N] (without M or N where a vector stood). A quantized operand is a constant: the gradient
        goes to the other one, as ``g @ dequantize(q).T``.

    Raises:
        ShapeError: scalars, inner lengths that differ, or batch axes that do not broadcast.
        DeviceError: operands on different devices.
        DTypeError: a result dtype that is not dense, or an integer one for floating operands.

    Numerics:
        Sums in float32, one rounding to ``dtype``; see `nvfp.kernels.gemm`. Quantized operands are used as
        they are, or expanded exactly where the device has no such product; never quantized again.

    Example:
        >>> import nvfp as nf
        >>> x = nf.asarray([[1.0, 2.0]], device="cpu")
        >>> nf.matmul(x, x.astype(nf.nvfp4).T)
        nf.array([[5.]])
    """
    if dtype is None and type(x1) is Array and type(x2) is Array:
        found = _small(x1, x2)
        if found is not None:
            return fresh(found)
    a, b = any_array("matmul", x1), any_array("matmul", x2)
    _check(a, b)
    target = _target(a, b, dtype)
    row, column = a.ndim == 1, b.ndim == 1
    a = nf.expand_dims(a, 0) if row else a
    b = nf.expand_dims(b, 1) if column else b
    lead = a.shape[:-1]
    blocked = blocked_axes(a.operand) if isinstance(a, QuantizedArray) else {}
    flat = a.ndim > 2 and b.ndim == 2 and set(blocked) <= {a.ndim - 1}
    if flat:  # one large product instead of a batch: also in the gradients
        a = nf.reshape(a, (math.prod(lead), a.shape[-1]))
    y = _product(a, b, target)
    if flat:
        y = nf.reshape(y, (*lead, y.shape[-1]))
    gone = (*((-2,) if row else ()), *((-1,) if column else ()))
    return nf.squeeze(y, gone) if gone else y


def _small(x1: Array, x2: Array) -> Any:
    """The product of small untracked float matrices (or vectors) on the CPU, the bits of `_product`; else None."""
    a, b = x1.raw, x2.raw
    if x1._node is not None or x2._node is not None or type(a) is not np.ndarray or type(b) is not np.ndarray:
        return None
    if (x1.dtype is not float32 and x1.dtype is not float64) or x2.dtype is not x1.dtype or max(a.size, b.size) > 4096:
        return None
    try:
        if a.ndim == b.ndim == 2:
            return quiet.run(np.matmul, a, b)
        if a.ndim == b.ndim == 1:
            return quiet.run(np.matmul, a[None], b[:, None])[0, 0]
    except (ValueError, RuntimeError):  # shapes that do not fit, told by `_check`; a context in use
        pass
    return None


def _target(a: Array, b: Array, dtype: Any) -> np.dtype:
    """The dtype of the result: of the operands' kind (bool, integer, real, complex) or a later one."""
    own = result_type(a.dtype, b.dtype)
    if dtype is None:
        return own
    target = as_dtype(dtype)
    if not isinstance(target, np.dtype) or is_storage(target):
        raise DTypeError(message("matmul", "a dense dtype", target, "quantize the result instead"))
    if KIND_RANKS[target.kind] < KIND_RANKS[own.kind]:
        raise DTypeError(message("matmul", f"a dtype that {own} casts to", target, "cast the result with .astype"))
    return target


def unless_broken(x: Array, move: Callable[[Array], Array]) -> Array:
    """Return ``move(x)``; of a quantized array whose blocks that would break, ``move`` of its values."""
    if isinstance(x, QuantizedArray):
        try:
            return move(x)
        except (ShapeError, BlockIndexError):
            x = nf.dequantize(x)
    return move(x)


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
    rows, columns = math.prod(a.shape[i] for i in free_a), math.prod(b.shape[i] for i in free_b)
    matrix_a = unless_broken(a, lambda x: nf.reshape(nf.permute_dims(x, (*free_a, *left)), (rows, inner)))
    matrix_b = unless_broken(b, lambda x: nf.reshape(nf.permute_dims(x, (*right, *free_b)), (inner, columns)))
    shape = (*(a.shape[i] for i in free_a), *(b.shape[i] for i in free_b))
    return nf.reshape(matmul(matrix_a, matrix_b, dtype=result_type(a.dtype, b.dtype)), shape)


@public
def vecdot(x1: Any, x2: Any, /, axis: int = -1) -> Array:
    """Return the sum of products along one axis; the other axes broadcast.

    Args:
        x1: Array [..., N]; of complex numbers the conjugates are taken.
        x2: Array [..., N].
        axis: the axis of length N, in both.

    Raises:
        ShapeError: lengths that differ along ``axis``.

    Example:
        >>> import nvfp as nf
        >>> nf.vecdot(nf.asarray([1.0, 2.0], device="cpu"), nf.asarray([3.0, 4.0], device="cpu"))
        nf.array(11.)
    """
    a, b = any_array("vecdot", x1), any_array("vecdot", x2)
    dtype = result_type(a.dtype, b.dtype)
    if not is_storage(a.dtype) and a.dtype.kind == "c":
        a = nf.conj(a)
    a = unless_broken(a, lambda x: nf.expand_dims(nf.moveaxis(x, axis, -1), -2))
    b = unless_broken(b, lambda x: nf.expand_dims(nf.moveaxis(x, axis, -1), -1))
    return nf.squeeze(matmul(a, b, dtype=dtype), (-2, -1))


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
