"""`dequantize`: from an `Operand` back to values."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from nvfp.dtypes import elements as el
from nvfp.dtypes.conventions import apply_convention
from nvfp.dtypes.formats import QuantDType
from nvfp.dtypes.scale_layout import from_k_major128
from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.kernels._check import FLOAT32, FLOATS, check_choice, check_format, check_out, check_word
from nvfp.kernels._dispatch import backend
from nvfp.kernels._prepared import prepared
from nvfp.kernels.cast import cast
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.operand import Operand, codes_shape, scale_shape
from nvfp.kernels.scale_layout import scale_layout


@prepared
def dequantize(
    operand: Operand,
    dtype: np.dtype,
    *,
    tensor_factors: bool = True,
    out: Any | None = None,
    convention: str | None = None,
    amax: Any | None = None,
) -> Any:
    """Return the values of ``operand`` in logical order: ``fl(fl(code * scale) * tensor_scale)``.

    Args:
        operand: any Operand, any scale layout and storage order. Of a rotated one the result is the rotated values;
            `kernels.hadamard` with ``inverse=True`` turns them back.
        dtype: float32, bfloat16, float16 or float64.
        tensor_factors: False leaves out every factor that is one per tensor (the tensor scale unless it is one per
            row, and the scale of per-tensor formats), which a GEMM folds into its alpha.
        out: array of the operand's shape and of ``dtype``, any strides.
        convention: ``"te"``: Transformer Engine's order for a two-level format, ``fl(code * fl(fl(s * A) *
            fl(1 / (max * scale_max))))``. The other formats that it covers have no second order.
        amax: A as a word, for that order; without it ``fl(tensor_scale * (max * scale_max))``, from which A may differ
            in the last bit.

    Returns:
        A contiguous array of ``operand.shape`` (or ``out``).

    Raises:
        DTypeError: another dtype.
        ShapeError: an ``out`` that does not fit, or codes and scales of other shapes than the operand says.
        ArgumentError: a convention without an order of its own, or not for this format.

    Numerics:
        Products in float32: exact for code times E8M0 or another scale of 8 or 16 bits inside float32's range
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
    check_out("dequantize", out, operand.shape, dtype)
    plain = plain_scales(operand)
    check_shapes("dequantize", plain)
    if convention is not None or amax is not None:
        plain = _in_te_order(plain, convention, amax, tensor_factors)
    if plain.format.per_row_tensor_scale:
        return _row_scaled(plain, dtype, out)
    # What the twins get: an operand whose scales are plain, of the shapes of `codes_shape` and `scale_shape`.
    return backend("dequantize", operand, out).dequantize(plain, dtype, tensor_factors=tensor_factors, out=out)


def _in_te_order(q: Operand, convention: str | None, amax: Any | None, tensor_factors: bool) -> Operand:
    """The operand with float32 scales that hold both levels, multiplied in Transformer Engine's order."""
    fmt = q.format
    check_choice("dequantize", "convention", convention, ("te",))
    apply_convention(fmt, convention)
    if not fmt.tensor_scale and amax is None:
        return q
    if not fmt.tensor_scale or fmt.per_row_tensor_scale or fmt.four_over_six is not None or not tensor_factors:
        expected = "a format with one tensor scale and without four_over_six, and tensor_factors, for this order"
        raise ArgumentError(message("dequantize", expected, fmt.name, "leave convention= and amax= out"))
    largest = np.float32(fmt.element.max * fmt.scale.max)
    if amax is not None:
        check_word("dequantize", "amax", amax)
    whole = elementwise("multiply", q.tensor_scale, float(largest)) if amax is None else amax
    scale = elementwise("multiply", cast(q.scale, FLOAT32, source=fmt.scale.dtype), whole)
    scale = elementwise("multiply", scale, float(np.float32(1) / largest))
    row = QuantDType(element=fmt.element, block=fmt.block, scale=el.float32, nonfinite="saturate")
    return dataclasses.replace(q, scale=scale, tensor_scale=None, format=row)


def _row_scaled(operand: Operand, dtype: np.dtype, out: Any | None) -> Any:
    """Values with one tensor scale per row: the factors of a row are no part of the decoding kernels."""
    values = backend("dequantize", operand).dequantize(operand, FLOAT32, tensor_factors=False, out=None)
    factors, axis = operand.tensor_scale, operand.stored_axis
    assert factors is not None, "the format has a tensor scale"
    factors = factors[(*[slice(None)] * axis, None)]
    factors = factors.swapaxes(-1, -2) if operand.transposed else factors
    if dtype.itemsize > 4:  # the product is a float32, whatever it is read as
        return cast(elementwise("multiply", values, factors), dtype, out=out)
    into = values if out is None and dtype == FLOAT32 else out
    return elementwise("multiply", values, factors, dtype=dtype, out=into)


def check_shapes(op: str, operand: Operand) -> None:
    """Raise unless codes and plain scales have the shapes that the format and the logical shape give."""
    fmt, shape, axis = operand.format, operand.stored_shape, operand.stored_axis
    expected = codes_shape(fmt, shape, axis), scale_shape(fmt, shape, axis)
    got = operand.codes.shape, operand.scale.shape
    if got != expected:
        raise ShapeError(message(op, f"codes and scale of shapes {expected}", got, "rebuild the operand"))


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
