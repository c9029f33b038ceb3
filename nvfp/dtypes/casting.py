"""Whether values of one dtype fit into another: `can_cast`."""

from __future__ import annotations

import numpy as np

from nvfp.dtypes.dense import as_dtype, bfloat16, is_narrow
from nvfp.dtypes.finfo import asked, finfo
from nvfp.dtypes.formats import QuantDType


def can_cast(from_: object, to: object, /) -> bool:
    """Return whether every value of one dtype is a value of another, by the rules of the array API.

    Args:
        from_: a dtype, or an array (its dtype counts).
        to: a dtype.

    Returns:
        NumPy's answer for its own dtypes. Between bfloat16, narrow and other floats: whether every value is kept. A
        quantized dtype takes nothing (casting to it rounds) and goes into float32 and wider.

    Raises:
        DTypeError: no dtype of nvfp.

    Example:
        >>> can_cast("bfloat16", "float32"), can_cast("float16", "bfloat16"), can_cast("float8_e4m3fn", "float16")
        (True, False, True)
    """
    source, target = asked(from_), as_dtype(to)
    if source == target:
        return True
    if isinstance(target, QuantDType):
        return False
    if isinstance(source, QuantDType):
        return target.kind == "c" or (target.kind == "f" and target.itemsize >= 4)
    if any(d == bfloat16 or is_narrow(d) for d in (source, target)):
        return _floats(source, target)
    return bool(np.can_cast(source, target))


def _floats(source: np.dtype, target: np.dtype) -> bool:
    """`can_cast` where bfloat16 or a narrow float is on one side."""
    if source.kind in "biu":
        return source.kind == "b" or (source.itemsize == 1 and target == bfloat16)
    if source.kind == "c" or target.kind in "biu":
        return False
    if target.kind == "c":
        return True
    a, b = finfo(source), finfo(target)
    return a.eps >= b.eps and a.max <= b.max and a.min >= b.min and a.smallest_subnormal >= b.smallest_subnormal
