"""`reduce`: sums, means, products, extrema and their positions, and logic over any axes."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, Literal

import ml_dtypes
import numpy as np

from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.kernels._check import DENSE, FLOAT32, FLOATS, axis_index, check_choice, check_out
from nvfp.kernels._dispatch import backend, kind_of, module
from nvfp.kernels._prepared import prepared
from nvfp.kernels.cast import cast

Reduction = Literal["sum", "mean", "prod", "sumsq", "max", "min", "argmax", "argmin", "all", "any"]
Axis = int | tuple[int, ...] | None

_ARITHMETIC = ("sum", "mean", "prod", "sumsq")
_EXTREMA = ("max", "min")
_POSITIONS = ("argmax", "argmin")
_LOGIC = ("all", "any")
_OPS = (*_ARITHMETIC, *_EXTREMA, *_POSITIONS, *_LOGIC)
_BOOL, _INT64, _UINT64, _FLOAT64 = (np.dtype(t) for t in (np.bool_, np.int64, np.uint64, np.float64))
_COMPLEX64, _COMPLEX128 = np.dtype(np.complex64), np.dtype(np.complex128)
_HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


@prepared
def reduce(
    op: Reduction,
    x: Any,
    *,
    axis: Axis = None,
    keepdims: bool = False,
    dtype: np.dtype | None = None,
    out: Any | None = None,
) -> Any:
    """Return ``op`` over the axes ``axis`` of ``x``.

    Args:
        op: ``"sum"``, ``"mean"``, ``"prod"``, ``"sumsq"`` (sum of squares), ``"max"``, ``"min"``, ``"argmax"``,
            ``"argmin"`` (positions in row-major order of the reduced axes), ``"all"`` or ``"any"``.
        x: raw array of a dense dtype, or of a complex one for sum, mean, prod, all, any; any strides.
        axis: one axis, several, or None for all; positions take one axis or None.
        keepdims: keep the reduced axes with length 1.
        dtype: dtype of the result. Default: floats and extrema keep the dtype of ``x``; integers and bools
            sum to int64 (unsigned ones to uint64), their mean is float32; positions int64; logic bool.
        out: array that receives the result; not overlapping ``x``.

    Returns:
        An array of the remaining shape; C-contiguous unless it is ``out``.

    Raises:
        ArgumentError: an unknown op, an axis named twice, or several axes for a position.
        DTypeError: a dtype that the op does not take, a result dtype of a lower kind.
        ShapeError: an axis out of range, an ``out`` that does not fit, or an extremum of nothing.

    Numerics:
        Floats of at most 32 bits accumulate in float32, float64 in float64, integers modulo 2**64; one rounding
        to the result dtype. Float sums and products are balanced binary trees over the reduced elements in
        row-major order: neighbours first, an odd one passes on. So the error of a sum grows with log2(n), and
        its bits do not depend on layout, threads or device: CPU and CUDA give the same. A mean is the sum
        divided by the float32 (integers: float64) count. NaN wins in extrema; positions name its first
        occurrence. Over nothing: sum and sumsq 0, prod 1, mean NaN, all True, any False.

    Example:
        >>> import ml_dtypes, numpy as np
        >>> tenths = np.full(4096, 0.1, ml_dtypes.bfloat16)
        >>> float(reduce("sum", tenths)), float(reduce("mean", tenths))
        (410.0, 0.10009765625)
        >>> reduce("argmax", np.array([[1.0, np.nan], [3.0, 2.0]], np.float32), axis=1).tolist()
        [1, 0]
    """
    check_choice("reduce", "op", op, _OPS)
    axes = _axes(op, axis, x.ndim)
    if x.dtype.kind == "c" and op in _LOGIC and kind_of(x) == "cuda":  # the kernels take real numbers
        with x.device:
            x = x != 0
    compute, result, interim = _resolve(op, x.dtype, dtype if dtype is not None or out is None else out.dtype)
    if 0 in x.shape and op not in (*_ARITHMETIC, *_LOGIC) and any(x.shape[a] == 0 for a in axes):
        raise ShapeError(message(op, "at least one element", f"shape {x.shape} over axes {axes}", "skip empty arrays"))
    shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes)
    check_out(op, out, shape, result)
    if compute.kind == "c" and kind_of(x) == "cuda":  # CuPy reduces complex numbers
        with x.device:
            found = getattr(x, op)(axis=axes, keepdims=keepdims).astype(result, copy=False)
        if out is None:
            return found
        out[...] = found
        return out
    twin = backend("reduce", x, out)
    if interim != result:  # 64 to 16 bits in one rounding is cast's business
        return cast(twin.reduce(op, x, axes=axes, shape=shape, dtype=interim, compute=compute), result, out=out)
    return twin.reduce(op, x, axes=axes, shape=shape, dtype=result, compute=compute, out=out)


def small(op: Literal["sum", "max", "min"], x: Any) -> Any:
    """Return ``reduce(op, x)`` over all axes of a small CPU array, the same bits with fewer steps, or None.

    Args:
        op: the reduction.
        x: raw array. None comes back unless it is C-contiguous float32 or float64 with 1 to 4096 elements.

    Example:
        >>> import numpy as np
        >>> float(small("sum", np.arange(5.0))), small("sum", np.arange(5))
        (10.0, None)
    """
    if type(x) is not np.ndarray or (x.dtype is not FLOAT32 and x.dtype is not _FLOAT64):
        return None
    if not 0 < x.size <= 4096 or not x.flags.c_contiguous:
        return None
    if op == "sum":
        return module("reduce", "cpu").sum_flat(x)
    return (np.maximum if op == "max" else np.minimum).reduce(x, axis=None)


def reduced_count(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    """Return how many elements go into one result.

    Args:
        shape: shape of the reduced array.
        axes: its reduced axes, non-negative.

    Example:
        >>> reduced_count((2, 3, 4), (0, 2))
        8
    """
    return prod(shape[a] for a in axes)


def _axes(op: str, axis: Axis, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(sorted(axis_index(op, a, ndim) for a in given))
    if len(set(axes)) != len(axes):
        raise ArgumentError(message(op, "different axes", axis, "name each axis once"))
    if op in _POSITIONS and len(axes) != 1:
        raise ArgumentError(message(op, "one axis or None", axis, "reshape the axes into one"))
    return axes


@lru_cache(maxsize=1024)
def _resolve(op: str, source: np.dtype, dtype: np.dtype | None) -> tuple[np.dtype, np.dtype, np.dtype]:
    """The dtype that accumulates, the result's, and the one that the kernel writes before a last cast."""
    is_complex = source.kind == "c" and op in ("sum", "mean", "prod", *_LOGIC)
    if source not in DENSE and not is_complex:
        do = "take real and imaginary parts" if source.kind == "c" else "dequantize or cast it first"
        raise DTypeError(message(op, "a dense dtype", source, do))
    if dtype is not None and dtype not in DENSE and not (is_complex and dtype.kind == "c"):
        raise DTypeError(message(op, "a dense result dtype", dtype, "cast the result afterwards"))
    if op in _LOGIC:
        return _BOOL, _BOOL if dtype is None else dtype, _BOOL if dtype is None else dtype
    known = (source,) if dtype is None else (source, dtype)  # None would equal float64
    wide = _FLOAT64 in known or _COMPLEX128 in known
    compute: np.dtype
    if source.kind == "c":
        compute = _COMPLEX128 if wide else _COMPLEX64
    elif source in FLOATS:
        compute = _FLOAT64 if wide else FLOAT32
    elif source == _BOOL and op in (*_EXTREMA, *_POSITIONS):
        compute = _BOOL
    else:
        compute = _UINT64 if source.kind == "u" else _INT64
    result = dtype if dtype is not None else _default(op, source, compute)
    _check_kind(op, source, result)
    return compute, result, _interim(op, compute, result)


def _default(op: str, source: np.dtype, compute: np.dtype) -> np.dtype:
    if op in _POSITIONS:
        return _INT64
    if op in _EXTREMA or source in FLOATS or source.kind == "c":
        return source
    return FLOAT32 if op == "mean" else compute


def _check_kind(op: str, source: np.dtype, result: np.dtype) -> None:
    def rank(dtype: np.dtype) -> int:
        return 2 if dtype in FLOATS else {"b": 0, "c": 3}.get(dtype.kind, 1)

    least = 1 if op in _POSITIONS else max(rank(source), {"mean": 2, "max": 0, "min": 0}.get(op, 1))
    if rank(result) < least or (op in _POSITIONS and rank(result) != 1):
        kind = ("bool", "integer", "float", "complex")[least]
        raise DTypeError(message(op, f"a result dtype of kind {kind}", result, "cast the result afterwards"))


def _interim(op: str, compute: np.dtype, result: np.dtype) -> np.dtype:
    if result not in _HALVES or compute in (FLOAT32, _BOOL):
        return result
    return _FLOAT64 if op == "mean" else compute
