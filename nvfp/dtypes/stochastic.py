"""Casts that round by a random number, or toward zero; and the random numbers, exactly.

A magnitude a lies between two neighbours that are ``step`` apart. With r out of 0 .. 2**B - 1 it becomes

    s = fl32(a + r * 2**-B * step),        then s cut down to the grid (whose step may have doubled there)

so that it goes up with probability ``floor(2**B * f) / 2**B``, f its position between the neighbours. The sign is
put back, so the bias is toward zero, and below ``2**-B`` steps. B is 8 for 4-bit elements (Transformer Engine's rule
for E2M1) and 16 for wider ones. Toward zero is the case r = 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nvfp.dtypes.codec import Codes, Overflow
from nvfp.dtypes.elements import Element

Random = npt.NDArray[np.unsignedinteger]
ROW_LANE, COL_LANE = 0, 1  # of the four Philox streams of a call; dropout has the third


def random_bits(element: Element) -> int:
    """Return how many random bits an element takes.

    Example:
        >>> from nvfp.dtypes import elements as el
        >>> random_bits(el.float4_e2m1fn), random_bits(el.float8_e4m3fn)
        (8, 16)
    """
    return 8 if element.packed else 16


def random_numbers(shape: tuple[int, ...], element: Element, *, key: int, ordinal: int, lane: int, step: int) -> Random:
    """Return the numbers r of an array of ``shape``: uint8 or uint16, row-major.

    Element number e takes the bits ``B * i`` to ``B * i + B - 1`` of the 128 bits of the Philox4x32-10 group g (its
    four words, the first one lowest), ``g, i = divmod(e, 128 // B)``, at the counter ``(g low, g high, 4 * ordinal +
    lane, step low)`` under the halves of ``key``.

    Example:
        >>> from nvfp.dtypes import elements as el
        >>> random_numbers((3,), el.float4_e2m1fn, key=7, ordinal=0, lane=0, step=0).tolist()
        [45, 122, 96]
    """
    n, bits = int(np.prod(shape, dtype=np.int64)), random_bits(element)
    groups = np.arange(-(-n * bits // 128), dtype=np.uint64)
    words = _philox(groups, (4 * ordinal + lane) & 0xFFFFFFFF, step & 0xFFFFFFFF, key)
    return words.reshape(-1).view(f"<u{bits // 8}")[:n].reshape(shape)


def encode_random(
    x: npt.ArrayLike, element: Element, random: npt.ArrayLike, *, overflow: Overflow = "saturate"
) -> Codes:
    """Return the codes of ``x`` (float32) rounded up or down by ``random`` (0: toward zero).

    Args:
        x: float32 numbers.
        element: the row of the target format; signed.
        random: numbers r in 0 .. 2**random_bits(element) - 1, of the shape of ``x``.
        overflow: see `codec.encode`; what lies beyond the largest finite value saturates, or with ``"nonsat"``
            overflows if s reaches the next number of the grid.

    Returns:
        Codes of ``element.storage`` in the shape of ``x``. NaN becomes ``element.nan_code``.

    Source: Transformer Engine's software rule for E2M1.

    Example:
        >>> import numpy as np
        >>> from nvfp.dtypes import elements as el
        >>> codes = encode_random(np.full(256, 0.3125), el.float4_e2m1fn, np.arange(256))
        >>> np.bincount(codes).tolist()
        [96, 160]
    """
    value = np.asarray(x, np.float32)
    r = np.asarray(random).astype(np.float32) * np.float32(2.0 ** -random_bits(element))
    nan, negative = np.isnan(value), np.signbit(value)
    a = np.abs(np.where(nan, np.float32(0), value))
    finite = np.minimum(a, np.float32(2.0**100))
    with np.errstate(over="ignore"):
        if element.integer:
            steps = np.floor((finite * np.float32(2.0**element.mantissa_bits) + r).astype(np.float64))
            k = np.where(negative, -np.minimum(steps, element.max_code + 1), np.minimum(steps, element.max_code))
            codes = k.astype(np.int64) & ((1 << element.bits) - 1)
            return np.where(nan, element.nan_code, codes).astype(element.storage)
        step = np.ldexp(np.float32(1), _exponent(finite, element) - element.mantissa_bits).astype(np.float32)
        moved = finite + r * step
    exponent = _exponent(moved, element)
    n = np.floor(np.ldexp(moved.astype(np.float64), element.mantissa_bits - exponent)).astype(np.int64)
    code = ((exponent.astype(np.int64) + element.bias - 1) << element.mantissa_bits) + n
    over = code > element.max_code
    code = np.where(over, element.max_code if overflow == "saturate" else element.overflow_code, code)
    code = np.where(negative, code | element.sign_code, code)
    return np.where(nan, element.nan_code, code).astype(element.storage)


def _exponent(a: npt.NDArray[np.float32], element: Element) -> npt.NDArray[np.int32]:
    """The exponent of magnitudes, at least that of the smallest normal number."""
    least = 1 - element.bias
    return np.where(a > 0, np.maximum(np.frexp(a)[1] - 1, least), least).astype(np.int32)


def _philox(group: npt.NDArray[np.uint64], stream: int, step: int, key: int) -> npt.NDArray[np.uint32]:
    """The four words of each group, [groups, 4]."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1 = group & low, group >> half
    c2, c3 = np.full_like(group, stream), np.full_like(group, step)
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ np.uint64(k0), p1 & low, (p0 >> half) ^ c3 ^ np.uint64(k1), p0 & low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype("<u4")
