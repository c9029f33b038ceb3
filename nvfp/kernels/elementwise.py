"""`elementwise`: every op of `elementwise_table` over broadcast arrays and scalars."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import ml_dtypes
import numpy as np

from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.kernels._check import DENSE, FLOAT32, FLOATS, check_out
from nvfp.kernels._dispatch import backend, kind_of, module
from nvfp.kernels._prepared import prepared
from nvfp.kernels.cast import cast
from nvfp.kernels.elementwise_table import OPS, Op
from nvfp.optional import need

_BOOL, _INT64, _UINT64 = np.dtype(np.bool_), np.dtype(np.int64), np.dtype(np.uint64)
_FLOAT64, _COMPLEX64, _COMPLEX128 = np.dtype(np.float64), np.dtype(np.complex64), np.dtype(np.complex128)
_HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_SCALARS = (bool, int, float, complex)
Kind = np.dtype | type  # of an argument: the dtype of an array, the Python type of a scalar


@dataclass(frozen=True)
class Choice:
    """What to run: the op, the dtype it computes in, and the result's.

    With ``then_cast`` the kernel gives ``compute`` and `cast` rounds it: from 64 to 16 bits in one rounding.
    """

    op: str
    compute: np.dtype
    result: np.dtype
    then_cast: bool

    @property
    def interim(self) -> np.dtype:
        """The dtype that the kernel writes."""
        return self.compute if self.then_cast else self.result

    @property
    def is_complex(self) -> bool:
        """Whether complex arithmetic is needed."""
        return self.compute.kind == "c"


@partial(prepared, copies=True)
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
            or uint64 mixed with signed integers.
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
    arrays: list[Any] = []
    kinds: list[Any] = []
    for a in args:
        scalar = type(a) in _SCALARS or isinstance(a, np.generic)
        kinds.append(_scalar_type(a) if scalar else getattr(a, "dtype", None) or kind_of(a))  # kind_of: refuses
        if not scalar:
            arrays.append(a)
    if out is not None:
        dtype = out.dtype if dtype is None else dtype
    elif not arrays:
        raise ArgumentError(message(op, "at least one array", f"scalars {args}", "pass an array or out="))
    choice = _resolve(op, tuple(kinds), dtype)
    shape = _shape(op, arrays, out)
    check_out(op, out, shape, choice.result)
    twin = backend("elementwise", *arrays, out)
    if choice.is_complex and kind_of(arrays[0] if arrays else out) == "cuda":
        return _complex_on_cuda(choice, _typed(choice, args, kinds), shape, out, arrays[0] if arrays else out)
    values = args if len(arrays) == len(args) else _typed(choice, args, kinds)
    y = twin.elementwise(
        choice.op,
        *values,
        dtype=choice.interim,
        compute=choice.compute,
        shape=shape,
        out=None if choice.then_cast else out,
    )
    return cast(y, choice.result, out=out) if choice.then_cast else y


def _complex_on_cuda(choice: Choice, args: tuple[Any, ...], shape: tuple[int, ...], out: Any | None, like: Any) -> Any:
    """Complex numbers on CUDA: the row's NumPy function on CuPy arrays, which answer to NumPy's protocols."""
    module("_recorder", "cuda").spoil()  # CuPy's own kernels
    cp = need("cupy", extra="cuda13")
    row = OPS[choice.op]
    half = np.dtype(f"f{choice.compute.itemsize // 2}")
    gives = np.dtype(bool) if row.result == "bool" else half if row.result == "real" else choice.compute
    with like.device:
        takes = [np.dtype(bool) if row.mask and i == 0 else choice.compute for i in range(row.arity)]
        ready = [a if isinstance(a, np.generic) else _complex_like(a, t) for a, t in zip(args, takes, strict=True)]
        if choice.op.startswith("logical_"):  # CuPy has these for real numbers
            ready = [a != 0 for a in ready]
        y = cp.empty(shape, gives)
        row.numpy(*ready, out=y)
        if out is None:
            return y.astype(choice.result, copy=False)
        out[...] = y
        return out


def _complex_like(a: Any, dtype: np.dtype) -> Any:
    """A CuPy array in ``dtype``; CuPy does not know how to cast ml_dtypes' floats to complex ones."""
    return (a if a.dtype.isbuiltin == 1 else cast(a, np.dtype(np.float32))).astype(dtype, copy=False)


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


def _scalar_type(value: Any) -> type:
    """The Python type that a Python or NumPy scalar stands for (ml_dtypes' have no item() of their own)."""
    plain = value.item() if isinstance(value, np.generic) else value
    return type(plain) if type(plain) in _SCALARS else float


def _shape(op: str, arrays: list[Any], out: Any | None) -> tuple[int, ...]:
    first: tuple[int, ...] = out.shape if out is not None else arrays[0].shape
    for a in arrays:
        if a.shape != first:
            return _broadcast(op, *(() if out is None else (first,)), *(a.shape for a in arrays))
    return first


@lru_cache(maxsize=1024)
def _broadcast(op: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        got = ", ".join(map(str, shapes))
        raise ShapeError(message(op, "shapes that broadcast", got, "insert axes of length 1 or reshape")) from None


def _typed(choice: Choice, args: tuple[Any, ...], kinds: list[Kind]) -> tuple[Any, ...]:
    """The arguments with each scalar as a NumPy scalar of the compute dtype (a condition: bool)."""
    masks = OPS[choice.op].mask
    return tuple(
        a if isinstance(k, np.dtype) else np.bool_(a) if masks and i == 0 else _convert(choice, k(a))
        for i, (a, k) in enumerate(zip(args, kinds))
    )


def _convert(choice: Choice, value: Any) -> np.generic:
    compute = choice.compute
    if compute.kind in "iu":
        least = 0 if compute == _UINT64 else -(2**63)
        if not least <= value < least + 2**64:
            do = "pass a float or a float array"
            raise ArgumentError(message(choice.op, f"an integer of {compute}", value, do))
        return compute.type(value)  # type: ignore[no-any-return]
    with np.errstate(over="ignore"):  # 1e300 is inf in float32
        return compute.type(value)  # type: ignore[no-any-return]


@lru_cache(maxsize=4096)
def _resolve(op: str, kinds: tuple[Kind, ...], dtype: np.dtype | None) -> Choice:
    """Choose the dtypes of one op over these kinds of arguments."""
    row = _row(op, len(kinds))
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
        expected = f"a result dtype of kind {_words(least)}"
        raise DTypeError(message(row.name, expected, result, "cast the result afterwards"))
    same = "logical_not" if op == "bitwise_invert" and compute == _BOOL else op
    return Choice(same, compute, result, then_cast=compute == _FLOAT64 and result in _HALVES)


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
