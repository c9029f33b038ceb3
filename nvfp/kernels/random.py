"""`random`: bits, uniform, normal and integer draws of Philox, a pure function of seed and position."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from nvfp.device import Device, check_usable
from nvfp.errors import ArgumentError, DeviceError, DTypeError, message
from nvfp.kernels._check import FLOATS, check_choice
from nvfp.kernels._dispatch import kind_of, module

Draw = Literal["bits", "uniform", "normal", "integers"]

_KINDS = ("bits", "uniform", "normal", "integers")
_UINT32 = np.dtype(np.uint32)


def random(
    kind: Draw,
    shape: tuple[int, ...],
    *,
    dtype: np.dtype,
    key: int,
    ordinal: int,
    lane: int = 0,
    step: Any = 0,
    low: float = 0.0,
    high: float = 1.0,
    device: Device | str = "cpu",
) -> Any:
    """Return an array of random draws; equal arguments give equal draws on every device.

    Element number ``e`` (row-major) takes word ``e % 4`` of Philox4x32-10 at the counter
    ``(e // 4 low, e // 4 high, 4 * ordinal + lane, step)`` and the key ``(key low, key high)``, halves of 32 bits:

    - ``"bits"``: the word w itself.
    - ``"uniform"``: low + u * (high - low) with u = (w >> 8) * 2**-24; float64: u = (w + 0.5) * 2**-32.
    - ``"normal"`` (mean ``low``, deviation ``high``): low + high * z with Box-Muller over two neighbouring words:
      r = sqrt(-2 log((w0 + 0.5) * 2**-32)), x = (w1 >> 8, signed) * 2**-23 (float64: all of w1, * 2**-31),
      z = r cos(pi x), then r sin(pi x). So abs(z) is at most 6.77.
    - ``"integers"`` in [low, high): low + (w * (high - low) >> 32). Above 2**32 values an element takes two words
      (element ``e`` words ``2 * (e % 2)`` and the next of group ``e // 2``, low half first) and shifts by 64.

    Args:
        kind: which draws.
        shape: shape of the result.
        dtype: uint32 for bits, a float dtype for uniform and normal, an integer dtype for integers.
        key: the seed, 0 to 2**64 - 1.
        ordinal: number of the call, 0 to 2**30 - 1.
        lane: which of four independent streams of a call.
        step: step of the training loop: an int of 32 bits, or an integer word (0-d array) on the device.
        low: lower bound, or mean.
        high: upper bound (exclusive), or standard deviation.
        device: where the array lives.

    Returns:
        A C-contiguous array.

    Raises:
        ArgumentError: an unknown kind, or numbers out of range.
        DTypeError: a dtype that the kind does not draw.
        DeviceError: a device that cannot be used.

    Numerics:
        Computed in float32 (float64: in float64) and rounded once to ``dtype``. A uniform value that rounding
        would carry up to ``high`` becomes the largest value of the dtype below it. The chances of two integers
        differ by at most the fraction (high - low) / 2**32 (or 2**64). Bits, uniforms and integers are identical
        on CPU and CUDA; normals agree within 4e-6 before they are rounded (log, root, sin and cos differ).

    Source:
        Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (2011).

    Example:
        >>> import numpy as np
        >>> random("bits", (4,), dtype=np.dtype(np.uint32), key=0, ordinal=0).tolist()
        [1713891541, 3781805453, 3159862348, 2600524760]
        >>> random("integers", (5,), dtype=np.dtype(np.int64), key=7, ordinal=1, low=0, high=10).tolist()
        [6, 6, 2, 9, 3]
    """
    check_choice("random", "kind", kind, _KINDS)
    _check_dtype(kind, dtype)
    for name, value, bits in (("key", key, 64), ("ordinal", ordinal, 30), ("lane", lane, 2)):
        _check_range(name, value, bits)
    if not hasattr(step, "dtype"):
        _check_range("step", step, 32)
    elif step.ndim or step.dtype.kind not in "iu" or step.dtype.itemsize != 4:
        got = f"{step.dtype} {step.shape}"
        raise DTypeError(message("random", "step as an int32 or uint32 array of shape ()", got, "keep it 0-d"))
    if any(n < 0 for n in shape):
        raise ArgumentError(message("random", "lengths of at least 0", shape, "give a shape"))
    offset, span, limit = _bounds(kind, low, high, dtype)
    where = check_usable(device, "random")
    if hasattr(step, "dtype") and kind_of(step) != where.type:
        raise DeviceError(message("random", f"step on {where}", kind_of(step), "move it with to_device"))
    return module("random", where.type).random(
        kind, shape, dtype=dtype, key=key, stream=4 * ordinal + lane, step=step, low=offset, high=span, limit=limit,
        device=where,
    )  # fmt: skip


def _check_dtype(kind: str, dtype: np.dtype) -> None:
    if kind == "bits":
        good, expected = dtype == _UINT32, "uint32"
    elif kind == "integers":
        good, expected = dtype.kind in "iu" and dtype.isbuiltin == 1, "an integer dtype"
    else:
        good, expected = dtype in FLOATS, "float32, bfloat16, float16 or float64"
    if not good:
        raise DTypeError(message("random", f"{expected} for {kind}", dtype, "draw that and cast"))


def _check_range(name: str, value: int, bits: int) -> None:
    if not 0 <= value < 2**bits:
        raise ArgumentError(message("random", f"0 <= {name} < 2**{bits}", value, "choose it in that range"))


def _bounds(kind: str, low: float, high: float, dtype: np.dtype) -> tuple[Any, Any, Any]:
    """Offset and factor of a draw (kernels call them low and high) and the largest uniform value."""
    if kind == "bits":
        return 0, 0, 0
    if kind == "integers":
        limits = np.iinfo(dtype)
        if low != int(low) or high != int(high) or not limits.min <= low < high <= int(limits.max) + 1:
            raise ArgumentError(message("random", f"low < high within {dtype}", (low, high), "pass integers in order"))
        return int(low), int(high) - int(low), 0
    if not (math.isfinite(low) and math.isfinite(high) and math.isfinite(high - low)):
        raise ArgumentError(message("random", "finite bounds", (low, high), "pass numbers"))
    if kind == "normal":
        if high < 0:
            raise ArgumentError(message("random", "a deviation of at least 0", high, "pass high >= 0"))
        return low, high, 0.0
    if low > high:
        raise ArgumentError(message("random", "low <= high", (low, high), "swap them"))
    return low, high - low, _below(high, dtype) if low < high else low


def _below(high: float, dtype: np.dtype) -> float:
    """The largest value of ``dtype`` below ``high``."""
    with np.errstate(over="ignore"):
        value = np.asarray(high, np.float64).astype(dtype)
    if float(value) >= high:
        value = np.nextafter(value, np.asarray(-np.inf, dtype))
    return float(value)
