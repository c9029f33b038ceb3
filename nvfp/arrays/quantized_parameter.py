"""Parameters that are kept quantized: codes at fixed addresses, a gradient in a dense dtype."""

from __future__ import annotations

from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.quantized import QuantizedArray, quantized
from nvfp.arrays.storage import QuantizedStorage, Storage
from nvfp.autograd.tape import Leaf
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import DTypeError, message
from nvfp.kernels.operand import Operand
from nvfp.kernels.quantize import quantize


def quantized_parameter(
    x: Array, dtype: QuantDType, *, amax_epsilon: float = 0.0, keep_initial: bool = False, requires_grad: bool = True
) -> QuantizedArray:
    """Return a parameter that holds the values of a matrix quantized along its last axis.

    Args:
        x: dense floating array.
        dtype: quantized dtype.
        amax_epsilon: least amax, for float32 scales.
        keep_initial: keep ``x`` on the CPU for `get_high_precision_init_val`.
        requires_grad: whether gradients are wanted; they have the dtype of ``x``.

    Raises:
        DTypeError: ``x`` is not dense and floating.

    Example:
        >>> import nvfp as nf
        >>> w = quantized_parameter(nf.ones((2, 32), device="cpu"), nf.mxfp8)
        >>> (w.sum() * 2).requires_grad, w.is_parameter, w.nbytes
        (True, True, 66)
    """
    if not isinstance(x, Array) or not x._differentiable:
        raise DTypeError(message("quantized_parameter", "a dense floating Array", x, "cast it with x.astype"))
    row = quantize(x.raw, dtype, amax_epsilon=amax_epsilon).row
    assert row is not None, "the row side was asked for"
    initial = x.detach().to_device("cpu").copy() if keep_initial else None
    return _held(row, QuantizedStorage(row, x.dtype, amax_epsilon, initial), requires_grad)


def moved(p: QuantizedArray, operand: Operand, dtype: Any = None) -> None:
    """Give a quantized parameter other memory, on another device perhaps; its gradient is forgotten."""
    old: Any = p.storage
    kept = isinstance(old, QuantizedStorage)
    dtype = dtype or getattr(old, "dtype", None)
    storage = QuantizedStorage(operand, dtype, old.amax_epsilon, old.initial) if kept else Storage(operand)
    p._rebind(operand, p.dtype, storage)


def _held(row: Operand, storage: QuantizedStorage, requires_grad: bool) -> QuantizedArray:
    made = quantized(row, Leaf(row.shape) if requires_grad else None, storage)
    made.is_parameter = True
    return made
