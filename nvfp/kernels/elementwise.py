"""`elementwise`: every op of `elementwise_table` over broadcast arrays and scalars."""

from __future__ import annotations

import difflib
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.kernels._check import DENSE, FLOAT32, FLOATS, check_out
from nvfp.kernels._dispatch import backend, kind_of
from nvfp.kernels.cast import cast
from nvfp.kernels.elementwise_table import OPS, Op

_BOOL, _INT64, _UINT64 = np.dtype(np.bool_), np.dtype(np.int64), np.dtype(np.uint64)
_FLOAT64, _COMPLEX64, _COMPLEX128 = np.dtype(np.float64), np.dtype(np.complex64), np.dtype(np.complex128)
_HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_SCALARS = (bool, int, float, complex)
Kind = np.dtype | type  # of an argument: the dtype of an array, the Python type of a scalar


def elementwise(op: str, *args: Any, dtype: np.dtype | None = None, out: Any | None = None) -> Any:
    """Return ``op(args[0], args[1], ...)`` element by element, broadcast as NumPy does.

    Args:
        op: a name of `elementwise_table.OPS`, e.g. ``"add"``, ``"exp"``, ``"where"``, ``"less"``.
        args: as many raw arrays (dense or complex dtype, any strides) or Python or NumPy scalars as the op has
            arguments. Scalars are weak: they take the compute dtype. The condition of ``"where"`` is bool.
        dtype: dtype of the result. Default: that of ``out``; bool for comparisons and tests; else that of the
            first array of the kind computed in (integers to float: float32; bools to integer: int64).
        out: array that receives the result, any strides; its shape takes part in the broadcast but may not
            be widened. It may be one of ``args``; otherwise overlapping memory is copied first.

    Returns:
        An array of the broadcast shape, C-contiguous unless it is ``out``.

    Raises:
        ArgumentError: an unknown op, a wrong number of arguments, no array among them, an integer scalar out of
            range.
        DTypeError: a dtype that the op does not compute in, a result dtype of a lower kind (float to integer),
            uint64 mixed with signed integers, or complex arrays on CUDA.
        ShapeError: shapes that do not broadcast, or an ``out`` that does not fit.

    Numerics:
        Floats of at most 32 bits compute in float32, float64 (an argument or the result) in float64, integers
        in int64 (uint64 if one of them is) modulo 2**64, bools as bools; one rounding to the result dtype.
        IEEE 754 without flush to zero and without contraction: ``multiply_add`` rounds its product. CPU and
        CUDA give the same bits for arithmetic, comparisons, choices and rounding (NaN: any NaN; a maximum of
        0 and -0 is either); exp, log, power, trigonometry and the ops built on them agree within a few ulp.
        Integer division by 0 gives 0; negative integer powers truncate; shifts by 64 or more give 0 (or the
        sign).

    Example:
        >>> import numpy as np
        >>> elementwise("multiply_add", np.arange(3.0, dtype=np.float32), 2.0, 1.0)
        array([1., 3., 5.], dtype=float32)
        >>> elementwise("less", np.array([1, 5]), np.array([[3], [9]])).tolist()
        [[True, False], [True, True]]
    """
    row = _row(op, len(args))
    arrays = [a for a in args if type(a) not in _SCALARS and not isinstance(a, np.generic)]
    plain = args if len(arrays) == len(args) else tuple(_scalar(op, a) for a in args)
    if out is not None:
        dtype = out.dtype if dtype is None else dtype
    elif not arrays:
        raise ArgumentError(message(op, "at least one array", f"scalars {args}", "pass an array or out="))
    compute, result = _resolve(row, tuple(type(a) if type(a) in _SCALARS else a.dtype for a in plain), dtype)
    shape = _shape(op, arrays, out)
    check_out(op, out, shape, result)
    module = backend("elementwise", *arrays, out)
    if compute.kind == "c" and kind_of(arrays[0] if arrays else out) == "cuda":
        raise DTypeError(
            message(op, "real dtypes on CUDA", compute, "compute on x.to_device('cpu'), or real and imaginary parts")
        )
    if compute == _FLOAT64 and result in _HALVES:  # 64 to 16 bits in one rounding is cast's business
        wide = module.elementwise(op, *_typed(row, plain, compute), dtype=_FLOAT64, compute=compute, shape=shape)
        return cast(wide, result, out=out)
    if row.name == "bitwise_invert" and compute == _BOOL:
        op = "logical_not"
    return module.elementwise(op, *_typed(row, plain, compute), dtype=result, compute=compute, shape=shape, out=out)


def _row(op: str, count: int) -> Op:
    row = OPS.get(op)
    if row is None:
        near = difflib.get_close_matches(op, OPS) or sorted(OPS)
        raise ArgumentError(
            message("elementwise", "an op of elementwise_table", repr(op), f"choose e.g. one of {near}")
        )
    if row.arity != count:
        raise ArgumentError(message(op, f"{row.arity} arguments", count, "pass arrays or scalars"))
    return row


def _scalar(op: str, value: Any) -> Any:
    """A NumPy scalar as the Python scalar of its kind; anything else as it is."""
    if isinstance(value, np.generic):
        plain = value.item()
        value = plain if type(plain) in _SCALARS else float(plain)  # ml_dtypes scalars have no item of their own
    return value


def _shape(op: str, arrays: list[Any], out: Any | None) -> tuple[int, ...]:
    shapes = [a.shape for a in arrays]
    first: tuple[int, ...] = out.shape if out is not None else shapes[0]
    if all(s == first for s in shapes):
        return first
    try:
        shape = np.broadcast_shapes(first, *shapes)
    except ValueError:
        got = ", ".join(map(str, shapes))
        raise ShapeError(message(op, "shapes that broadcast", got, "insert axes of length 1 or reshape")) from None
    return shape


def _typed(row: Op, args: tuple[Any, ...], compute: np.dtype) -> tuple[Any, ...]:
    """The arguments with each scalar as a NumPy scalar of the compute dtype (a condition: bool)."""
    return tuple(
        a if type(a) not in _SCALARS else np.bool_(a) if row.mask and i == 0 else _convert(row.name, a, compute)
        for i, a in enumerate(args)
    )


def _convert(op: str, value: Any, compute: np.dtype) -> np.generic:
    if compute.kind in "iu":
        least = 0 if compute == _UINT64 else -(2**63)
        if not least <= value < least + 2**64:
            raise ArgumentError(message(op, f"an integer of {compute}", value, "pass a float or a float array"))
        return compute.type(value)  # type: ignore[no-any-return]
    with np.errstate(over="ignore"):  # 1e300 is inf in float32
        return compute.type(value)  # type: ignore[no-any-return]


@lru_cache(maxsize=4096)
def _resolve(row: Op, kinds: tuple[Kind, ...], dtype: np.dtype | None) -> tuple[np.dtype, np.dtype]:
    """The compute dtype and the result dtype of one op over these kinds of arguments."""
    if row.mask and kinds[0] not in (_BOOL, bool):
        raise DTypeError(message(row.name, "a bool condition", kinds[0], "compare it with 0 first"))
    values = kinds[1:] if row.mask else kinds
    for kind in (*values, *(() if dtype is None else (dtype,))):
        if isinstance(kind, np.dtype) and kind not in DENSE and kind.kind != "c":
            raise DTypeError(message(row.name, "dense dtypes", kind, "dequantize or cast it first"))
    dtypes = tuple(k for k in values if isinstance(k, np.dtype))
    wanted = () if dtype is None or row.result == "bool" else (dtype,)
    compute = _compute(row, (*dtypes, *wanted), {k for k in values if not isinstance(k, np.dtype)})
    if _letter(compute) not in row.kinds:
        do = "cast to int64 or a float dtype first" if compute == _BOOL else "cast it first"
        raise DTypeError(message(row.name, f"kinds {_words(row.kinds)}", _words(_letter(compute)), do))
    if not row.narrow and any(d in _HALVES for d in (*dtypes, *wanted)):
        raise DTypeError(message(row.name, "float32 or float64", "a 16-bit float", "cast it to float32 first"))
    result = _default(row, compute, dtypes) if dtype is None else dtype
    least = "b" if row.result == "bool" else "f" if row.result == "real" and compute.kind == "c" else _letter(compute)
    if "bifc".index(_letter(result)) < "bifc".index(least):
        raise DTypeError(
            message(row.name, f"a result dtype of kind {_words(least)}", result, "cast the result afterwards")
        )
    return compute, result


def _compute(row: Op, dtypes: tuple[np.dtype, ...], scalars: set[type]) -> np.dtype:
    wide = any(d in (_FLOAT64, _COMPLEX128) for d in dtypes)
    if complex in scalars or any(d.kind == "c" for d in dtypes):
        return _COMPLEX128 if wide else _COMPLEX64
    if float in scalars or any(d in FLOATS for d in dtypes) or not ({"b", "i"} & set(row.kinds)):
        return _FLOAT64 if wide else FLOAT32
    if all(d == _BOOL for d in dtypes) and scalars <= {bool}:
        return _BOOL
    if _UINT64 in dtypes:
        if any(d.kind == "i" for d in dtypes):
            raise DTypeError(message(row.name, "uint64 alone", "uint64 and signed integers", "cast one of them"))
        return _UINT64
    return _INT64


def _default(row: Op, compute: np.dtype, dtypes: tuple[np.dtype, ...]) -> np.dtype:
    if row.result == "bool":
        return _BOOL
    if row.result == "real" and compute.kind == "c":
        return FLOAT32 if compute == _COMPLEX64 else _FLOAT64
    return next((d for d in dtypes if _letter(d) == _letter(compute)), compute)


def _letter(dtype: np.dtype) -> str:
    return "f" if dtype in FLOATS else {"b": "b", "c": "c"}.get(dtype.kind, "i")


def _words(letters: str) -> str:
    return ", ".join({"b": "bool", "i": "integer", "f": "float", "c": "complex"}[letter] for letter in letters)
