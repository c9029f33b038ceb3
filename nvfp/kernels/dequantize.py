"""`dequantize`: from an `Operand` back to values."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from nvfp.dtypes.scale_layout import from_k_major128
from nvfp.errors import DTypeError, ShapeError, message
from nvfp.kernels._check import FLOATS, check_format, check_out, not_built
from nvfp.kernels._dispatch import backend
from nvfp.kernels.operand import Operand, codes_shape, scale_shape
from nvfp.kernels.scale_layout import scale_layout


def dequantize(operand: Operand, dtype: np.dtype, *, tensor_factors: bool = True, out: Any | None = None) -> Any:
    """Return the values of ``operand`` in logical order: ``fl(fl(code * scale) * tensor_scale)``.

    Args:
        operand: any unrotated Operand, any scale layout and storage order.
        dtype: float32, bfloat16, float16 or float64.
        tensor_factors: False leaves out every factor that is one per tensor (the tensor scale, and the
            scale of per-tensor formats), which a GEMM folds into its alpha.
        out: array of the operand's shape and of ``dtype``, any strides.

    Returns:
        A contiguous array of ``operand.shape`` (or ``out``).

    Raises:
        DTypeError: another dtype.
        ShapeError: an ``out`` that does not fit, or codes and scales of other shapes than the operand says.
        NotBuiltError: a rotated operand.

    Numerics:
        Products in float32: exact for code times E8M0 or an 8-bit float scale inside float32's range
        (subnormals kept), one rounding for a float32 scale and one for the tensor scale; then one cast to
        ``dtype``. CPU, CUDA and `dtypes.block.dequantize_exact` give the same bits (NaN: any NaN).

    Source:
        TE numerics B1, B4; OCP MX v1.0. Tensor scales as in DESIGN: the stored factor is multiplied last.

    Example:
        >>> import numpy as np
        >>> from nvfp.dtypes.formats import mxfp8
        >>> from nvfp.kernels.quantize import quantize
        >>> dequantize(quantize(np.array([3.75, 0.3, -1.0], np.float32), mxfp8).row, np.dtype(np.float32)).tolist()
        [3.75, 0.3125, -1.0]
    """
    if dtype not in FLOATS:
        raise DTypeError(message("dequantize", "float32, bfloat16, float16 or float64", dtype, "choose one of these"))
    check_format("dequantize", operand.format)
    not_built("dequantize", "rotation", operand.rotation, "none")
    check_out("dequantize", out, operand.shape, dtype)
    plain = plain_scales(operand)
    _check_shapes(plain)
    # What the twins get: an operand whose scales are plain, of the shapes of `codes_shape` and `scale_shape`.
    return backend("dequantize", operand, out).dequantize(plain, dtype, tensor_factors=tensor_factors, out=out)


def _check_shapes(operand: Operand) -> None:
    fmt, shape, axis = operand.format, operand.stored_shape, operand.stored_axis
    expected = codes_shape(fmt, shape, axis), scale_shape(fmt, shape, axis)
    got = operand.codes.shape, operand.scale.shape
    if got != expected:
        raise ShapeError(message("dequantize", f"codes and scale of shapes {expected}", got, "rebuild the operand"))


def plain_scales(operand: Operand) -> Operand:
    """Return ``operand`` with its block scales as a plain matrix (itself if they are; a view of ``k_major128``).

    Example:
        >>> import numpy as np
        >>> from nvfp.dtypes.formats import mxfp8
        >>> from nvfp.kernels.quantize import quantize
        >>> tiled = quantize(np.ones((8, 64), np.float32), mxfp8, scale_layout="tiles128x4").row
        >>> tiled.scale.shape, plain_scales(tiled).scale.shape
        ((512,), (8, 2))
    """
    if operand.scale_layout == "plain":
        return operand
    across, along = operand.format.block_shape or (1, 1)
    rows, length = operand.stored_shape
    if operand.scale_layout == "k_major128":
        scale, blocks = operand.scale, -(-length // along)
        matrix = scale[:, :blocks] if across > 1 else from_k_major128(scale, rows)
        return dataclasses.replace(operand, scale=matrix, scale_layout="plain")
    matrix = scale_layout(operand.scale, "plain", inverse_shape=(rows, -(-length // along)))
    return dataclasses.replace(operand, scale=matrix[::across], scale_layout="plain")
