"""`quant_error`: how far the values of a quantized dtype are from what they stand for."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.convert import asarray, asnumpy
from nvfp.arrays.functions.quantization import dequantize, quantize
from nvfp.arrays.quantized import QuantizedArray, quantized
from nvfp.dtypes.codec import Overflow, Rounding
from nvfp.dtypes.dense import as_dtype, float32
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.inspect._figures import Figures, figures
from nvfp.kernels._check import axis_index


@dataclass(frozen=True)
class ErrorReport:
    """The figures of one tensor in one quantized dtype; `quant_error` says by which formulas.

    Attributes:
        dtype: the quantized dtype.
        shape: of the tensor.
        axis: where blocks lie.
        sqnr_db: signal to quantization noise in dB; inf where no value has changed, NaN where no value is finite.
        max_abs_error: largest absolute error; NaN where no value is finite, as ``mean_error``.
        max_rel_error: largest relative error of normal numbers; None where there is none.
        mean_error: mean of the signed errors, the bias.
        saturated: share of elements that were clipped.
        flushed: share of elements that became zero and were not.
        nonfinite: number of values that are NaN or inf.
        nonfinite_input: number of inputs that are NaN or inf.
        bytes_per_value: bytes of codes and scales by the number of elements.
        bits: width of a code.

    Example:
        >>> import nvfp as nf
        >>> report = nf.quant_error(nf.asarray([[1.0, 2.0, 2.9, 6.0]], device="cpu"), nf.mxfp4)
        >>> report.max_abs_error, report.as_dict()["saturated"]
        (0.09999990463256836, 0.0)
    """

    dtype: QuantDType
    shape: tuple[int, ...]
    axis: int
    sqnr_db: float
    max_abs_error: float
    max_rel_error: float | None
    mean_error: float
    saturated: float
    flushed: float
    nonfinite: int
    nonfinite_input: int
    bytes_per_value: float
    bits: int

    @property
    def bits_per_value(self) -> float:
        """``8 * bytes_per_value``: measured, so padding of odd lengths and ragged blocks is in it."""
        return 8 * self.bytes_per_value

    def as_dict(self) -> dict[str, Any]:
        """Return the figures under their names, the dtype by its name and the shape as a list."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {**fields, "dtype": str(self.dtype), "shape": list(self.shape)}

    def __repr__(self) -> str:
        relative = "none" if self.max_rel_error is None else f"{self.max_rel_error:.3g}"
        parts = (
            f"SQNR {self.sqnr_db:.2f} dB",
            f"largest error {self.max_abs_error:.3g}, relative {relative}",
            f"mean {self.mean_error:.2g}",
            f"saturated {self.saturated:.3%}",
            f"flushed {self.flushed:.3%}",
            f"not finite {self.nonfinite} of {math.prod(self.shape)}",
            f"{self.bits_per_value:.3g} bits per value",
        )
        return f"ErrorReport({self.dtype}: {'; '.join(parts)})"


def quant_error(
    x: Any,
    dtype: Any,
    *,
    axis: int | None = None,
    scale: Any = None,
    tensor_scale: Any = None,
    rounding: Rounding = "even",
    overflow: Overflow = "saturate",
    convention: str | None = None,
    rng: Any = None,
) -> ErrorReport:
    """Quantize ``x`` and report how far the values are from it.

    With x the inputs, y the dequantized values (float32), n their number, F the places where both are finite, and
    ``top = max * s * tensor_scale`` the value of the largest code of the element format at a place:

    - ``sqnr_db = 10 log10(sum_F x^2 / sum_F (y - x)^2)``, inf where the denominator is 0;
    - ``max_abs_error = max_F |y - x|``; ``mean_error = sum_F (y - x) / |F|``;
    - these three are NaN where F is empty and n > 0 (a format that made every value NaN); without elements inf, 0, 0;
    - ``max_rel_error = max |y - x| / |x|`` over places of F in the normal range of the element (``|x| >=
      smallest_normal * s * tensor_scale``) that were not clipped, None where there is none: the finest statement about
      the grid, for floats rounded to nearest at most ``u / (1 + u)`` with ``u = 2**-(mantissa bits + 1)``;
    - ``saturated = #{|x| > top + half a step, y finite, top > 0} / n``: scaled by its block's factor the number is
      farther beyond the largest code than rounding explains (e2m1: beyond 7, the largest code is 6); inf
      that became a finite number counts. For integers the least code is one step below ``-max``;
    - ``flushed = #{x finite, x != 0, y = 0} / n``;
    - ``nonfinite = #{y not finite}``, ``nonfinite_input = #{x not finite}``. Every element of a NaN block counts as
      not finite and in no other figure;
    - ``bytes_per_value = q.nbytes / n`` (without elements: the format's own), scales included; ``bits`` is the
      width of a code.

    Args:
        x: floating array [..., N]: Array of any float dtype on any device, or what `nf.asarray` takes.
        dtype: a quantized dtype or its name; or a QuantizedArray of the shape of ``x`` that stands for it,
            e.g. from a checkpoint (then ``axis`` and the options below are its own).
        axis: where blocks lie; the last axis unless given.
        scale: as in `nf.quantize`.
        tensor_scale: as in `nf.quantize`.
        rounding: as in `nf.quantize`.
        overflow: as in `nf.quantize`.
        convention: as in `nf.quantize`.
        rng: as in `nf.quantize`.

    Returns:
        An `ErrorReport`.

    Raises:
        DTypeError: ``dtype`` is not quantized, or ``x`` is not floating.
        ShapeError: a QuantizedArray of another shape.
        ArgumentError: options beside a QuantizedArray, or that the format does not use.

    Numerics:
        Errors and sums in float64 on the host, so CPU and CUDA give the same figures; on CUDA it copies and waits.

    Example:
        >>> import nvfp as nf
        >>> x = nf.asarray([[0.01, -1.0, 2.9, 6.0]], device="cpu")
        >>> nf.quant_error(x, nf.mxfp4)
        ErrorReport(mxfp4: SQNR 36.53 dB; largest error 0.1, relative 0.0345; mean 0.022; saturated 0.000%; flushed \
25.000%; not finite 0 of 4; 6 bits per value)
    """
    given = {
        "axis": axis is not None, "scale": scale is not None, "tensor_scale": tensor_scale is not None,
        "rounding": rounding != "even", "overflow": overflow != "saturate", "convention": convention is not None,
        "rng": rng is not None,
    }  # fmt: skip
    source = as_source("quant_error", x)
    if isinstance(dtype, QuantizedArray):
        return report_of(dtype, figures_of(host(source), _standing_for(source, dtype, axis, given)))
    q = quantize(
        source, as_quantized("quant_error", dtype), axis=-1 if axis is None else axis, scale=scale,
        tensor_scale=tensor_scale, rounding=rounding, overflow=overflow, convention=convention, rng=rng,
    )  # fmt: skip
    return report_of(q, figures_of(host(source), q))


def as_source(op: str, x: Any) -> Array:
    """The input as a constant Array; refuses what has no floats."""
    source = asarray(x).detach()
    if not isinstance(source.dtype, np.dtype) or source.dtype.kind not in "biuc":
        return source
    raise DTypeError(message(op, "a floating array", source.dtype, "cast it to float32 first"))


def as_quantized(op: str, dtype: Any) -> QuantDType:
    """The quantized dtype that is meant."""
    target = as_dtype(dtype)
    if not isinstance(target, QuantDType):
        raise DTypeError(message(op, "a quantized dtype or array", target, "see nf.finfo for dense dtypes"))
    return target


def _standing_for(x: Array, q: QuantizedArray, axis: int | None, given: dict[str, bool]) -> QuantizedArray:
    """The quantized array that was given, if nothing contradicts it."""
    if q.shape != x.shape:
        raise ShapeError(message("quant_error", f"a quantized array of shape {x.shape}", q.shape, "pass its source"))
    if axis is not None and axis_index("quant_error", axis, max(q.ndim, 1)) == q.axis:
        given = {**given, "axis": False}
    names = [name for name, there in given.items() if there]
    if names:
        do = "leave them out: they are those that it was made with"
        raise ArgumentError(message("quant_error", "no options beside a quantized array", ", ".join(names), do))
    return q


def figures_of(x: np.ndarray, q: QuantizedArray) -> Figures:
    """Sum the errors of ``q`` against the inputs ``x`` on the host."""
    q = quantized(q.operand)
    return figures(x, host(q), host(_largest(q)), q.dtype.element)


def _largest(q: QuantizedArray) -> QuantizedArray:
    """The same scales under codes that are all the largest one."""
    code = q.dtype.element.max_code * (0x11 if q.dtype.element.packed else 1)
    codes: Any = q.operand.codes.copy()
    codes.fill(code)
    return quantized(dataclasses.replace(q.operand, codes=codes, padded_rows=0))


def host(x: Array) -> np.ndarray:
    """Return the values as a contiguous NumPy array, quantized ones as float32."""
    values: Any = asnumpy(dequantize(x, float32) if isinstance(x, QuantizedArray) else x)
    return np.ascontiguousarray(values)


def report_of(q: QuantizedArray, found: Figures) -> ErrorReport:
    """Return the report of ``q``, whose errors have been summed."""
    n = math.prod(q.shape)
    return ErrorReport(
        dtype=q.dtype, shape=q.shape, axis=q.axis, sqnr_db=found.sqnr_db, max_abs_error=found.max_abs_error,
        max_rel_error=found.relative, mean_error=found.mean_error,
        saturated=found.saturated / n if n else 0.0, flushed=found.flushed / n if n else 0.0,
        nonfinite=found.nonfinite, nonfinite_input=found.nonfinite_input,
        bytes_per_value=q.nbytes / n if n else q.dtype.bits_per_value / 8, bits=q.dtype.element.bits,
    )  # fmt: skip
