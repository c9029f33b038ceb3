"""`gemm`: the one matrix product, of dense arrays and Operands in any mix."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from nvfp.capability import gemm_mode
from nvfp.device import Device
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.kernels._check import FLOATS, check_out, check_word
from nvfp.kernels._dispatch import backend, kind_of
from nvfp.kernels.cast import cast
from nvfp.kernels.cublaslt.typemap import FLOAT32, FLOAT64, Kind, bias_dtype
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.operand import Operand, ScaleLayout

_FLOATS = frozenset(FLOATS)


def gemm(
    a: Any,
    b: Any,
    *,
    bias: Any | None = None,
    out: Any | None = None,
    dtype: np.dtype | None = None,
    alpha: Any | None = None,
    accumulate: bool = False,
    fast_accumulation: bool = False,
    exact: bool = False,
) -> Any:
    """Return ``alpha * (a @ b) + bias``, or add it to ``out``.

    The Linear products, with pairs of row and column copies: fprop ``gemm(x.row, w.row.T)``, dgrad
    ``gemm(dy.row, w.col)``, wgrad ``gemm(dy.col.T, x.col)``.

    Args:
        a: [..., M, K]: a raw array (float32, bfloat16, float16, float64; any strides) or an Operand of any
            format, block axis and storage order.
        b: [..., K, N], likewise. Batch axes broadcast as in `numpy.matmul`.
        bias: [N], added to every row; float32, bfloat16, float16 or float64.
        out: where to write, of the result's shape; not overlapping ``a`` or ``b``. Its dtype is the result's.
        dtype: of the result. Default: that of ``out``, else of the dense operand (of two, the one that holds
            both), else float32.
        alpha: None (1) or a float32 word, kept on the device.
        accumulate: add to what ``out`` holds.
        fast_accumulation: let FP8 tensor cores of Ada and Hopper keep partial sums (faster, fewer bits).
            Without effect elsewhere.
        exact: expand Operands to float32 even where cuBLASLt would take them as they are or bfloat16 would do.

    Returns:
        [..., M, N] of ``dtype``, C-contiguous unless ``out`` is given. K = 0 gives zeros, or the bias.

    Raises:
        ShapeError: fewer than two axes, inner lengths, batch axes, bias or out that do not fit.
        DTypeError: a dtype other than the four floats, or an alpha that is no float32 word.
        ArgumentError: ``accumulate`` without ``out``, or Operands that are not rotated alike along K.
        DeviceError: arrays on different devices.

    Numerics:
        Products are summed in float32 (float64 if an operand or the result is float64), in an order of the
        library's choice, then alpha, out and bias are added and one rounding follows. The same call gives
        the same bits again. Factors that are one per tensor go into alpha, multiplied in that same dtype.
        Hopper's FP8 tensor cores keep about 14 bits of a sum (relative error 1.2e-4 of ``|a| @ |b|`` whatever
        K; with ``fast_accumulation`` it grows with K, 2e-3 at 8192); everything else errs by float32 sums.
        CUDA: two per-tensor FP8 operands (not both e5m2) run as they are from compute capability 8.9, FP8 matrices
        in float32-scaled blocks of 128 along K (1 x 128 with 1 x 128 or 128 x 128, never fast) on 9.0, padded to
        what tensor cores need; others, and shapes that cuBLASLt has no FP8 algorithm for, are expanded first,
        exactly, to the narrowest of bfloat16, float16 and float32 that holds both (formats whose element and
        block scale have at most 8 significand bits fit bfloat16, inside its exponent range). A float32 block
        scale that is no power of two rounds once. CPU: everything is expanded to float32.
        The bias is first rounded to the dtype of the result; beside two FP8 operands that some chip takes as they
        are, with a float32 result, to bfloat16 (TE's rule, on every device; not with ``exact``).

    Source:
        TE numerics B0; cuBLASLt documentation, "cublasLtMatmul()".

    Example:
        >>> import numpy as np
        >>> gemm(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32), bias=np.ones(2, np.float32)).tolist()
        [[4.0, 4.0], [4.0, 4.0]]
    """
    shape = _shape(a, b)
    quantized_a, quantized_b = type(a) is Operand, type(b) is Operand
    dtype = _dtype(a, b, quantized_a, quantized_b, dtype, out)
    if quantized_a or quantized_b:
        _check_rotation(a, b)
    if out is not None:
        check_out("gemm", out, shape, dtype)
    elif accumulate:
        raise ArgumentError(message("gemm", "out with accumulate=True", None, "pass the array to add to"))
    if alpha is not None:
        check_word("gemm", "alpha", alpha)
    if bias is not None:
        bias = _bias(bias, shape[-1], bias_dtype(kind(a), kind(b), dtype, exact))
    a, b = (_row_scaled(x) if type(x) is Operand and x.format.per_row_tensor_scale else x for x in (a, b))
    # What the twins get: a result dtype, a bias of the dtype it is added in, no tensor scales that are one per row.
    return backend("gemm", a, b, bias, out, alpha).gemm(
        a,
        b,
        bias=bias,
        out=out,
        dtype=dtype,
        alpha=alpha,
        accumulate=accumulate,
        fast_accumulation=fast_accumulation,
        exact=exact,
    )


def kind(x: Any) -> Kind:
    """Return what an operand is apart from its shape: the format of an Operand, the dtype of an array."""
    found: Kind = x.format if type(x) is Operand else x.dtype
    return found


def native_scale_layout(raw: Any, fmt: QuantDType) -> ScaleLayout:
    """Return the layout in which GEMMs on the device of ``raw`` read the block scales of ``fmt`` without a copy.

    Example:
        >>> import numpy as np
        >>> from nvfp.dtypes.formats import fp8_e4m3_b128
        >>> native_scale_layout(np.ones((2, 2), np.float32), fp8_e4m3_b128)
        'plain'
    """
    if fmt.block is None or kind_of(raw) == "cpu":
        return "plain"
    return _layout_on(fmt, raw.data.device_id)


@lru_cache(maxsize=256)
def _layout_on(fmt: QuantDType, ordinal: int) -> ScaleLayout:
    mode, compute = gemm_mode(fmt), Device(f"cuda:{ordinal}").compute_capability
    native = mode is not None and mode.run and compute is not None and mode.on(compute)
    return "k_major128" if native and fmt.scale.bits == 32 else "plain"


def accumulation_dtype(a: Any, b: Any, dtype: np.dtype) -> np.dtype:
    """Return the dtype that sums of products are kept in: float64 if an operand or the result is, else float32."""
    wide = dtype == FLOAT64 or any(type(x) is not Operand and x.dtype == FLOAT64 for x in (a, b))
    return FLOAT64 if wide else FLOAT32


def tensor_factors(operand: Any) -> tuple[Any, ...]:
    """Return the decode factors of an Operand that are one per tensor, as float32 words (a dense array has none)."""
    if type(operand) is not Operand:
        return ()
    fmt, scale = operand.format, operand.scale
    last = () if operand.tensor_scale is None else (operand.tensor_scale,)
    if fmt.block is not None:
        return last
    if fmt.scale.bits <= 8:
        scale = cast(scale, FLOAT32, source=fmt.scale.dtype)
    elif fmt.scale.bits == 16:
        scale = cast(scale.view(fmt.scale.dtype), FLOAT32)
    return (scale, *last)


def _row_scaled(x: Operand) -> Any:
    """Operands with one tensor scale per row are expanded to float32: no tensor core takes such factors."""
    return dequantize(x, FLOAT32)


def _shape(a: Any, b: Any) -> tuple[int, ...]:
    left, right = a.shape, b.shape
    if len(left) < 2 or len(right) < 2:
        raise ShapeError(message("gemm", "operands of at least two axes", f"{left} @ {right}", "add an axis"))
    if left[-1] != right[-2]:
        raise ShapeError(message("gemm", "equal inner lengths", f"{left} @ {right}", "transpose one operand"))
    if len(left) == len(right) == 2:
        return (left[0], right[1])
    try:
        batch = np.broadcast_shapes(left[:-2], right[:-2])
    except ValueError:
        raise ShapeError(
            message("gemm", "batch axes that broadcast", f"{left} @ {right}", "make them equal or 1")
        ) from None
    return (*batch, left[-2], right[-1])


def _dtype(a: Any, b: Any, quantized_a: bool, quantized_b: bool, dtype: np.dtype | None, out: Any | None) -> np.dtype:
    """Check the dense dtypes and return the result's."""
    dense = () if quantized_a else (a.dtype,)
    if not quantized_b:
        dense = (*dense, b.dtype)
    if dtype is None:
        dtype = out.dtype if out is not None else _common(dense)
    if dtype in _FLOATS and _FLOATS.issuperset(dense):
        return dtype
    wrong = next(found for found in (*dense, dtype) if found not in _FLOATS)
    raise DTypeError(
        message("gemm", "float32, bfloat16, float16 or float64", wrong, "cast it with x.astype, or quantize it")
    )


def _common(dense: tuple[np.dtype, ...]) -> np.dtype:
    if not dense:
        return FLOAT32
    if dense[0] == dense[-1]:
        return dense[0]
    return FLOAT64 if FLOAT64 in dense else FLOAT32


def _check_rotation(a: Any, b: Any) -> None:
    """A rotation cancels only if both operands went through it along the contraction axis."""
    left = a.rotation if type(a) is Operand else "none"
    right = b.rotation if type(b) is Operand else "none"
    if left == "none" == right:
        return
    if left != right or a.axis != len(a.shape) - 1 or b.axis != len(b.shape) - 2:
        raise ArgumentError(
            message("gemm", "both operands rotated along K, or neither", f"{left} @ {right}", "quantize both alike")
        )


def _bias(bias: Any, n: int, dtype: np.dtype) -> Any:
    if bias.shape != (n,):
        raise ShapeError(message("gemm", f"a bias of shape ({n},)", bias.shape, "give one value per column of b"))
    if bias.dtype not in _FLOATS:
        raise DTypeError(message("gemm", "a float bias", bias.dtype, "cast it with x.astype"))
    return bias if bias.dtype == dtype else cast(bias, dtype)
