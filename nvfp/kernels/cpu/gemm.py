"""CPU twin of `gemm`: expand to float32 (float64), NumPy's BLAS, one rounding."""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import numpy as np

from nvfp.kernels._gemm import Tail, composed
from nvfp.kernels.cast import cast
from nvfp.kernels.cublaslt.typemap import FLOAT32
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.gemm import accumulation_dtype, tensor_factors
from nvfp.kernels.operand import Operand


def gemm(
    a: Any,
    b: Any,
    *,
    bias: Any | None,
    out: Any | None,
    dtype: np.dtype,
    alpha: Any | None,
    accumulate: bool,
    fast_accumulation: bool,
    exact: bool,
    tf32: bool,
    tail: Tail | None,
) -> Any:
    """See `nvfp.kernels.gemm.gemm`."""
    product = partial(_product, a, b, bias, alpha, accumulate)
    return product(dtype, out) if tail is None else composed(product, tail, dtype, out)


def _product(
    a: Any, b: Any, bias: Any | None, alpha: Any | None, accumulate: bool, dtype: np.dtype, out: Any | None
) -> Any:
    """The plain product, of a result dtype and into ``out``."""
    wide = accumulation_dtype(a, b, dtype)
    words = (*(() if alpha is None else (alpha,)), *tensor_factors(a), *tensor_factors(b))
    with np.errstate(all="ignore"):  # NaN and inf are values here
        y: np.ndarray = np.matmul(_expand(a, wide), _expand(b, wide))
        if words and a.shape[-1]:  # a sum of nothing is 0 whatever alpha is
            y *= reduce(np.multiply, (wide.type(word) for word in words))  # alpha first
        if accumulate:
            y += _dense(out, wide)
        if bias is not None:
            y += _dense(bias, wide)
    if out is None:
        return y if dtype == wide else cast(y, dtype)
    return cast(y, dtype, out=out)


def _expand(x: Any, dtype: np.dtype) -> np.ndarray:
    if type(x) is not Operand:
        return _dense(x, dtype)
    return _dense(dequantize(x, FLOAT32, tensor_factors=False), dtype)


def _dense(x: Any, dtype: np.dtype) -> np.ndarray:
    found: np.ndarray = x if x.dtype == dtype else cast(x, dtype)
    return found
