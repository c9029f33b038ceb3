"""Which dtype a mixed operation computes to: `result_type`.

NumPy's rules, with four additions: Python floats are float32 by default; an integer never widens a float;
bfloat16 takes part; narrow and quantized dtypes are storage and behave like a Python float. The result is always
dense, nothing is requantized silently.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np

from nvfp.dtypes.dense import DType, as_dtype, bfloat16, complex64, float32, is_narrow
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, message

_WEAK: dict[type, int | float | complex] = {bool: True, int: 1, float: 1.0, complex: 1j}
_Key: TypeAlias = DType | type


def result_type(*operands: object) -> np.dtype:
    """Return the dtype that an operation on ``operands`` computes to.

    1. Equal dense dtypes: that dtype.
    2. NumPy's rule, but integers and bools with a float (or complex) give that float: int64 with float16
       is float16. Integers alone follow NumPy (uint64 with int64 is float64).
    3. bfloat16 with float16 is float32; with a wider float the wider one; with integers bfloat16.
    4. Python scalars are weak: they choose the kind, not the width, and a kind that no array has comes in
       the default width: int64 with 0.5 is float32. NumPy scalars count as their dtype.
    5. Narrow and quantized dtypes count as a Python float; without a dense float the result is float32.

    Args:
        operands: dtypes (or their names and types), arrays (anything with ``.dtype``), Python and NumPy scalars.

    Returns:
        A dense NumPy dtype; the order of the operands does not matter.

    Raises:
        ArgumentError: no operand.
        DTypeError: an operand that is no dtype of nvfp.

    Example:
        >>> result_type("int32", "float32"), result_type("bfloat16", "float16"), result_type("nvfp4", 2.0)
        (dtype('float32'), dtype('float32'), dtype('float32'))
        >>> result_type("bfloat16", 1.5), result_type("bfloat16", "nvfp4")
        (dtype(bfloat16), dtype(bfloat16))
    """
    if not operands:
        raise ArgumentError(message("result_type", "at least one operand", "none", "pass dtypes, arrays or scalars"))
    return _promote(tuple(_key(operand) for operand in operands))


def _key(operand: object) -> _Key:
    """What counts of an operand: its dtype, or the type of a Python scalar."""
    if type(operand) in _WEAK:
        return type(operand)
    if isinstance(operand, (np.dtype, QuantDType)):
        return as_dtype(operand)
    # A scalar type such as numpy.float32 has a `dtype` too, a descriptor of its instances.
    dtype = None if isinstance(operand, type) else getattr(operand, "dtype", None)
    return as_dtype(operand if dtype is None else dtype)


@lru_cache(maxsize=4096)
def _promote(keys: tuple[_Key, ...]) -> np.dtype:
    weak = [_WEAK[k] for k in keys if isinstance(k, type)]
    dense = [k for k in keys if isinstance(k, np.dtype) and not is_narrow(k)]
    storage = any(isinstance(k, QuantDType) or is_narrow(k) for k in keys if not isinstance(k, type))
    inexact = [d for d in dense if d.kind in "fc" or d == bfloat16]
    is_complex = any(isinstance(w, complex) for w in weak)
    if inexact:
        if not is_complex and all(d == bfloat16 for d in inexact):
            return bfloat16
        wide = [float32 if d == bfloat16 else d for d in inexact]  # right with float16 and with every wider one
        return np.dtype(np.result_type(*wide, *([1j] if is_complex else [])))
    if storage or is_complex or any(isinstance(w, float) for w in weak):
        return complex64 if is_complex else float32
    return np.dtype(np.result_type(*dense, *weak))
