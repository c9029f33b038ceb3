"""Comparisons, tests, logic and bits (no gradients), and `where`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.arrays.array import Array, fresh, wrap
from nvfp.arrays.functions._common import array, dense, fit, like, promoted, raw_of
from nvfp.arrays.functions._factory import binary, unary
from nvfp.arrays.registry import nf, public
from nvfp.dtypes.dense import bool as bool_, float32, float64
from nvfp.dtypes.promotion import result_type
from nvfp.errors import DeviceError, DTypeError, message
from nvfp.kernels.elementwise import elementwise

_LARGEST = float(np.finfo(np.float32).max)

equal = binary("equal", "x == y")
not_equal = binary("not_equal", "x != y")
less = binary("less", "x < y")
less_equal = binary("less_equal", "x <= y")
greater = binary("greater", "x > y")
greater_equal = binary("greater_equal", "x >= y")

isnan = unary("isnan", "whether x is NaN")
isinf = unary("isinf", "whether x is infinite")
isfinite = unary("isfinite", "whether x is finite")
signbit = unary("signbit", "whether x is negative or -0")

logical_and = binary("logical_and", "x != 0 and y != 0")
logical_or = binary("logical_or", "x != 0 or y != 0")
logical_xor = binary("logical_xor", "(x != 0) != (y != 0)")
logical_not = unary("logical_not", "x == 0")

bitwise_and = binary("bitwise_and", "x & y")
bitwise_or = binary("bitwise_or", "x | y")
bitwise_xor = binary("bitwise_xor", "x ^ y")
bitwise_invert = unary("bitwise_invert", "~x")
bitwise_left_shift = binary("bitwise_left_shift", "x << y")
bitwise_right_shift = binary("bitwise_right_shift", "x >> y")


def _where_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    condition, x, y = saved
    dx = fit(nf.where(condition, g, 0.0), x) if needs[1] else None
    dy = fit(nf.where(condition, 0.0, g), y) if needs[2] else None
    return None, dx, dy


def _small(condition: Any, x: Any, y: Any) -> Any:
    """The choice among small untracked CPU arrays of one float dtype (or such a one and a float), else None."""
    dtype = x.dtype if type(x) is Array else y.dtype if type(y) is Array else None
    if (dtype is not float32 and dtype is not float64) or type(condition) is not np.ndarray or condition.size > 4096:
        return None
    raws: list[Any] = []
    for value in (x, y):
        if type(value) is Array:
            raw = value.raw
            if value.dtype is not dtype or value._node is not None or type(raw) is not np.ndarray or raw.size > 4096:
                return None
            raws.append(raw)
        elif type(value) is float and -_LARGEST <= value <= _LARGEST:
            raws.append(value)
        else:
            return None
    try:
        return np.where(condition, *raws)
    except ValueError:  # shapes that do not broadcast: told by the contract
        return None


@public
def where(condition: Any, x: Any, y: Any, /) -> Array:
    """Return ``x`` where ``condition`` holds, else ``y``.

    Args:
        condition: bool Array.
        x: Array or scalar.
        y: Array or scalar.

    Returns:
        An Array of the broadcast shape and of ``nf.result_type(x, y)``.

    Raises:
        DTypeError: a condition that is not bool.
        DeviceError: arrays on different devices.

    Example:
        >>> import nvfp as nf
        >>> x = nf.asarray([-1.0, 2.0], device="cpu")
        >>> nf.where(x > 0, x, 0.0)
        nf.array([0., 2.])
    """
    if type(condition) is Array and condition.dtype is bool_:
        found = _small(condition.raw, x, y)
        if found is not None:
            return fresh(found)
    condition = array("where", condition)
    if condition.dtype.kind != "b":
        raise DTypeError(message("where", "a bool condition", condition.dtype, "compare it first, e.g. x != 0"))
    if not (hasattr(x, "shape") or hasattr(y, "shape")):
        x = nf.full((), x, dtype=result_type(x, y), device=condition.device)
    (x, y), dtype = promoted("where", x, y)
    for value in (x, y):
        if isinstance(value, Array) and value.device is not condition.device:
            got = f"{condition.device} and {value.device}"
            raise DeviceError(message("where", "operands on one device", got, "move one with x.to_device(...)"))
    raw = elementwise("where", condition.raw, raw_of(x), raw_of(y), dtype=dtype)
    return wrap(raw, node=dense("where", (condition, x, y), _where_vjp, (condition, like(x), like(y))))
