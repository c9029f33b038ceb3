"""`gemm`: the one matrix product, of dense arrays and Operands in any mix."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from nvfp.capability import gemm_mode
from nvfp.device import Device
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, message
from nvfp.kernels._check import check_out, check_word
from nvfp.kernels._dispatch import backend, kind_of, watched
from nvfp.kernels._gemm import (
    Epilogue,
    Summed,
    Tail,
    check_rotation,
    check_sums,
    check_tail,
    column_sums,
    result_dtype,
    result_shape,
    rounded_bias,
)
from nvfp.kernels.cast import cast
from nvfp.kernels.cublaslt.typemap import FLOAT32, FLOAT64, Kind, bias_dtype
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.operand import Operand, ScaleLayout

# The CUDA twin's: runs a call of a kind that has been checked before, or returns None.
known_calls: list[Callable[..., Any]] = []


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
    tf32: bool = False,
    epilogue: Epilogue | None = None,
    aux: Any | None = None,
    aux_out: Any | None = None,
    bias_grad: Any | None = None,
    bias_grad_of: Summed | None = None,
    out_format: QuantDType | None = None,
    out_scale: Any | None = None,
    amax_out: Any | None = None,
) -> Any:
    """Return ``f(alpha * (a @ b) + bias)``, or add ``alpha * (a @ b) + bias`` to ``out``.

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
        tf32: let tensor cores round float32 factors to TF32 (11 significand bits). Without effect elsewhere.
        epilogue: f: None, ``"gelu"`` (tanh form), or ``"dgelu"``: the result is ``gelu'(aux) * alpha (a @ b)``.
        aux: [..., M, N], the pre-activation that ``"dgelu"`` reads; of the result's dtype.
        aux_out: where ``"gelu"`` writes the pre-activation, for the backward; likewise.
        bias_grad: where column sums go: of the result [N] (of ``"dgelu"``: the bias gradient of the layer before), or
            of an operand along the contraction, ``a`` [M] (wgrad ``gemm(dy.T, x)``: the bias gradient) or ``b`` [N].
        bias_grad_of: ``"result"`` (default with an epilogue), ``"a"`` (default without) or ``"b"``.
        out_format: FP8 row of one scale per tensor: the result is an Operand of it.
        out_scale: word that the result is multiplied by before it is cast; required with ``out_format``.
        amax_out: word that becomes ``max(old, amax of the result before that)``.

    Returns:
        [..., M, N] of ``dtype``, C-contiguous unless ``out`` is given; an Operand with ``out_format``. K = 0 gives
        zeros, or the bias.

    Raises:
        ShapeError: fewer than two axes, inner lengths, batch axes, bias, out or another array that does not fit.
        DTypeError: a dtype other than the four floats, or an alpha that is no float32 word; float64 with an epilogue.
        ArgumentError: ``accumulate`` without ``out``, arguments that need each other or exclude each other, or
            Operands that are not rotated alike along K.
        NotBuiltError: an ``out_format`` other than FP8 with one scale per tensor.
        DeviceError: arrays on different devices.

    Numerics:
        Products are summed in float32 (float64 if an operand or the result is float64), in an order of the
        library's choice, then alpha, out and bias are added and one rounding follows. The same call gives
        the same bits again. Factors that are one per tensor go into alpha, multiplied in that same dtype.
        Hopper's FP8 tensor cores keep about 14 bits of a sum (relative error 1.2e-4 of ``|a| @ |b|`` whatever
        K; with ``fast_accumulation`` it grows with K, 2e-3 at 8192); everything else errs by float32 sums.
        CUDA: two per-tensor FP8 operands (not both e5m2) run as they are from compute capability 8.9, FP8 matrices
        in float32-scaled blocks along K on 9.0 (1 x 128 with 1 x 128 or 128 x 128, never fast; one block over
        the whole of K, a scale per row, with its like), padded to what tensor cores need; others, and shapes that
        cuBLASLt has no FP8 algorithm for, are expanded first, exactly, to the narrowest of bfloat16, float16 and
        float32 that holds both (formats whose element and block scale have at most 8 significand bits fit bfloat16,
        inside its exponent range). A float32 block scale that is no power of two rounds once. CPU: everything is
        expanded to float32. MXFP8 and NVFP4 as they are on 10.0 and newer: built, not yet run on such a chip, used
        with ``NVFP_UNPROVEN_GEMM=1`` only.
        The bias is first rounded to the dtype of the result; beside two FP8 operands that some chip takes as they
        are, with a float32 result or ``out_format``, to bfloat16 (TE's rule, on every device; not with ``exact``).
        gelu, its gradient and amax are computed from the float32 sums, before any rounding, and the FP8 cast saturates.
        On CUDA they happen in cuBLASLt's kernel where it has an algorithm (its dgelu rounds 16-bit results twice, as
        does a kernel of ours that takes its place with FP8 operands), else in kernels of ours after a product of
        float32. Column sums are those of `bias_grad`, of the result as it is written.

    Source:
        TE numerics B0; cuBLASLt documentation, "cublasLtMatmul()".

    Example:
        >>> import numpy as np
        >>> gemm(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32), bias=np.ones(2, np.float32)).tolist()
        [[4.0, 4.0], [4.0, 4.0]]
        >>> dy, x, db = np.ones((5, 2), np.float32), np.ones((5, 3), np.float32), np.zeros(2, np.float32)
        >>> gemm(dy.T, x, bias_grad=db).shape, db.tolist()
        ((2, 3), [5.0, 5.0])
    """
    plain = (
        epilogue is None and out_format is None and bias_grad is None
        and aux is None and aux_out is None and out_scale is None and amax_out is None
    )  # fmt: skip
    if plain and alpha is None and known_calls and not watched():  # a profiler wants every call
        y = known_calls[0](a, b, bias, out, dtype, accumulate, fast_accumulation, exact, tf32)
        if y is not None:
            return y
    shape = result_shape(a, b)
    if out_format is not None and (out is not None or dtype is not None):
        raise ArgumentError(message("gemm", "no out and dtype with out_format", "one of them", "leave them out"))
    dtype = result_dtype(a, b, dtype if out_format is None else FLOAT32, out)
    if type(a) is Operand or type(b) is Operand:
        check_rotation(a, b)
    if out is not None:
        check_out("gemm", out, shape, dtype)
    elif accumulate:
        raise ArgumentError(message("gemm", "out with accumulate=True", None, "pass the array to add to"))
    if alpha is not None:
        check_word("gemm", "alpha", alpha)
    of: Summed = bias_grad_of or ("a" if epilogue is None else "result")
    tail = None
    if any(x is not None for x in (epilogue, aux, aux_out, out_format, out_scale, amax_out)):
        tail = Tail(epilogue, aux if aux_out is None else aux_out, out_format, out_scale, amax_out)
        check_tail(shape, dtype, a, b, tail, aux_out, bias=bias is not None, accumulate=accumulate)
    if bias_grad is not None:
        check_sums(shape, dtype, a, b, bias_grad, of, tail)
    if bias is not None:
        bias = rounded_bias(bias, shape[-1], bias_dtype(kind(a), kind(b), dtype, exact, a.shape[-1]))
    a, b = (_row_scaled(x) if type(x) is Operand and x.format.per_row_tensor_scale else x for x in (a, b))
    arrays = a, b, bias, out, alpha, bias_grad, *(() if tail is None else tail.arrays())
    # What the twins get: a result dtype, a bias of the dtype it is added in, no tensor scales that are one per row.
    y = backend("gemm", *arrays).gemm(
        a,
        b,
        bias=bias,
        out=out,
        dtype=dtype,
        alpha=alpha,
        accumulate=accumulate,
        fast_accumulation=fast_accumulation,
        exact=exact,
        tf32=tf32,
        tail=tail,
    )
    if bias_grad is not None:
        column_sums(bias_grad, of, a, b, y)
    return y


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
    if mode is None or compute is None or not (mode.used and mode.on(compute)):
        return "plain"
    return "k_major128" if fmt.scale.bits == 32 else "tiles128x4"


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
