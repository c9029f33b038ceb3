"""The exact codec: real numbers to codes and back, for every element row, rounding once.

Plain NumPy, by formula only; every faster kernel of the library is compared with it bit for bit.

A float code is ``sign | exponent | mantissa``. With ``E = max(floor(log2|x|), 1 - bias)`` the neighbours
of x are multiples of ``q = 2**(E - mantissa_bits)``, so the magnitude code is

    n = round_half_even(|x| / q),        code = (E + bias - 1) * 2**mantissa_bits + n

which is right for subnormals (E stays at its least value) and for a carry into the next binade.
All of it is exact in float64: a division by a power of two, and one rounding to an integer.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from nvfp.dtypes.elements import Element
from nvfp.errors import ArgumentError, DTypeError, message

Overflow = Literal["saturate", "nonsat"]
Rounding = Literal["even", "stochastic", "toward_zero"]
Codes = npt.NDArray[np.unsignedinteger]


def encode(
    x: npt.ArrayLike,
    element: Element,
    *,
    overflow: Overflow = "saturate",
    rounding: Rounding = "even",
    symmetric: bool = False,
) -> Codes:
    """Return the codes of ``element`` nearest to ``x`` (ties to the even code), one code per item.

    Args:
        x: real numbers of any shape and dtype (bool, ints, floats up to float64, ml_dtypes floats).
        element: the row of the target format.
        overflow: ``"saturate"``: what rounds beyond the largest finite value, and +-inf, becomes the
            largest finite value. ``"nonsat"``: it becomes inf, or NaN where the format has no inf;
            formats with neither saturate.
        rounding: ``"even"``, or ``"toward_zero"``: the neighbour of smaller magnitude, ties and all (beyond the
            largest finite value that value, whatever ``overflow`` says; infinities follow ``overflow``).
        symmetric: integer codes stop at minus the largest one (-127 in int8).

    Returns:
        Codes of ``element.storage`` (4- and 6-bit codes unpacked), in the shape of ``x``, C-contiguous.

    Raises:
        ArgumentError: an unknown ``overflow`` or ``rounding`` (``"stochastic"`` needs numbers:
            `stochastic.encode_random`).
        DTypeError: complex or extended-precision input.

    Numerics: float64 input is rounded once. NaN becomes ``element.nan_code``, its sign dropped. -0 and the
        sign of what rounds to zero are kept. E8M0 takes the nearest power of two (its ties, 1.5 * 2**k, go up), 0
        and less than 2**-127 become code 0, negative numbers NaN. int8 is two's complement k / 64, cut to -128..127.

    Source: OCP OFP8 v1.0 5.2, OCP MX v1.0 5.3.

    Example:
        >>> from nvfp.dtypes import elements
        >>> encode([4.25, 464.0, 465.0, -0.0, float("nan")], elements.float8_e4m3fn).tolist()
        [72, 126, 126, 128, 127]
        >>> encode([465.0, -1e9], elements.float8_e4m3fn, overflow="nonsat").tolist()
        [127, 255]
    """
    _check_modes(overflow, rounding)
    value = as_float64(x)
    whole = np.rint if rounding == "even" else np.trunc
    if element.integer:
        codes = _encode_integer(value, element, whole, symmetric)
    elif not element.signed:
        codes = _encode_power_of_two(value, element, overflow, tie=0.75 if rounding == "even" else 1.0)
    else:
        codes = _encode_float(value, element, overflow, whole)
    return codes.astype(element.storage, order="C")


def decode(codes: npt.ArrayLike, element: Element) -> npt.NDArray[np.float64]:
    """Return the exact values of ``codes`` as float64 (NaN codes give NaN, infinities inf).

    Args:
        codes: unsigned integers below ``2**element.bits``, any shape.
        element: the row of their format.

    Returns:
        float64 values in the shape of ``codes``.

    Raises:
        DTypeError: codes that are not unsigned integers.
        ArgumentError: a code that has more bits than the format.

    Example:
        >>> import numpy as np
        >>> from nvfp.dtypes import elements
        >>> decode(np.uint8([0x7E, 0x01, 0x80]), elements.float8_e4m3fn).tolist()
        [448.0, 0.001953125, -0.0]
    """
    code = np.asarray(codes)
    if code.dtype.kind != "u":
        raise DTypeError(message("decode", f"unsigned codes of {element.name}", code.dtype, "view them as uint8"))
    if code.size and int(code.max()) >> element.bits:
        need = f"{element.bits}-bit codes of {element.name}"
        raise ArgumentError(message("decode", need, int(code.max()), "unpack the codes first"))
    code = code.astype(np.int64)
    if element.integer:
        sign = 1 << (element.bits - 1)
        return np.asarray(np.ldexp(((code ^ sign) - sign).astype(np.float64), -element.mantissa_bits))
    magnitude = code & ~element.sign_code
    value = _decode_magnitude(magnitude, element)
    if element.has_nan:
        value = np.where(magnitude > element.max_code, np.nan, value)
    if element.has_inf:
        value = np.where(magnitude == element.overflow_code, np.inf, value)
    return np.where(code & element.sign_code, -value, value).astype(np.float64, order="C")


def as_float64(x: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return ``x`` as float64, exactly; 64-bit integers above 2**53 are rounded to odd.

    Rounding to odd keeps a sticky bit, so that a following rounding to at most 42 bits is the only one.

    Raises:
        DTypeError: complex, extended-precision or non-numeric input.
    """
    array = np.asarray(x)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        return _int_to_float64(array)
    if array.dtype.kind in "cOSUmM" or array.dtype.itemsize > 8:
        raise DTypeError(message("encode", "real numbers up to float64", array.dtype, "convert with x.astype(float64)"))
    with np.errstate(invalid="ignore"):  # a signalling NaN of a 16-bit float
        return array.astype(np.float64)


def round_to_odd32(x: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return ``x`` as float32: exact, or cut toward zero with the last bit set.

    A rounding of the result to at most 22 bits then equals one rounding of ``x``; magnitudes above the largest
    float32 stay finite, and no nonzero number becomes zero.

    Example:
        >>> round_to_odd32(1 + 2.0**-40).tolist() == 1 + 2.0**-23
        True
    """
    array = np.asarray(x)
    if array.dtype == np.float32:
        return array.astype(np.float32)
    value = as_float64(array)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        near = value.astype(np.float32)
        # A float's bits, read as an integer, order by magnitude: one less is the next float toward zero.
        bits = near.view(np.uint32) - (np.abs(near.astype(np.float64)) > np.abs(value)).astype(np.uint32)
        cut = bits.view(np.float32)
        inexact = (cut.astype(np.float64) != value) & np.isfinite(value)
    return np.where(inexact, bits | np.uint32(1), bits).astype(np.uint32).view(np.float32).reshape(value.shape)


def _encode_float(
    value: npt.NDArray[np.float64], element: Element, overflow: Overflow, whole: np.ufunc
) -> npt.NDArray[np.int64]:
    magnitude = np.abs(np.where(np.isfinite(value), value, 0.0))
    least = 1 - element.bias
    exponent = np.where(magnitude > 0, np.maximum(np.frexp(magnitude)[1] - 1, least), least).astype(np.int64)
    steps = whole(np.ldexp(magnitude, element.mantissa_bits - exponent)).astype(np.int64)
    code = ((exponent + element.bias - 1) << element.mantissa_bits) + steps
    code = np.minimum(code, element.max_code) if whole is np.trunc else code
    over = np.isinf(value) | (code > element.max_code)
    code = np.where(over, element.max_code if overflow == "saturate" else element.overflow_code, code)
    code = np.where(np.signbit(value), code | element.sign_code, code)
    return np.where(np.isnan(value), element.nan_code, code)


def _encode_power_of_two(
    value: npt.NDArray[np.float64], element: Element, overflow: Overflow, *, tie: float
) -> npt.NDArray[np.int64]:
    mantissa, exponent = np.frexp(np.where(np.isfinite(value), value, 0.0))
    code = exponent.astype(np.int64) - 1 + (mantissa >= tie) + element.bias  # mantissa in [1/2, 1): 3/4 is the tie
    code = np.where(value == 0, 0, np.maximum(code, 0))
    code = np.minimum(code, element.max_code) if tie == 1 else code
    over = np.isposinf(value) | (code > element.max_code)
    code = np.where(over, element.max_code if overflow == "saturate" else element.overflow_code, code)
    return np.where(np.isnan(value) | (value < 0), element.nan_code, code)


def _encode_integer(
    value: npt.NDArray[np.float64], element: Element, whole: np.ufunc, symmetric: bool
) -> npt.NDArray[np.int64]:
    steps = whole(np.ldexp(np.where(np.isnan(value), 0.0, value), element.mantissa_bits))
    k = np.clip(steps, -element.max_code - (not symmetric), element.max_code).astype(np.int64)
    return np.where(np.isnan(value), element.nan_code, k & ((1 << element.bits) - 1))


def _decode_magnitude(magnitude: npt.NDArray[np.int64], element: Element) -> npt.NDArray[np.float64]:
    if not element.signed:
        return np.asarray(np.ldexp(1.0, magnitude - element.bias))
    exponent = magnitude >> element.mantissa_bits
    hidden = np.where(exponent > 0, 1 << element.mantissa_bits, 0)
    steps = (magnitude & ((1 << element.mantissa_bits) - 1)) | hidden
    least = np.maximum(exponent, 1) - element.bias - element.mantissa_bits
    return np.asarray(np.ldexp(steps.astype(np.float64), least))


def _int_to_float64(array: np.ndarray) -> npt.NDArray[np.float64]:
    negative = array < 0
    magnitude = np.where(negative, -array.astype(np.uint64), array.astype(np.uint64))
    low = np.uint64(0x7FF)
    sticky = np.where(magnitude & low, np.uint64(0x800), np.uint64(0))
    cut = np.where(magnitude >> np.uint64(53), (magnitude & ~low) | sticky, magnitude).astype(np.float64)
    return np.where(negative, -cut, cut).astype(np.float64)


def _check_modes(overflow: str, rounding: str) -> None:
    if overflow not in ("saturate", "nonsat"):
        raise ArgumentError(message("encode", "overflow 'saturate' or 'nonsat'", repr(overflow), "pass one of these"))
    if rounding not in ("even", "toward_zero"):
        do = "pass one of these; stochastic.encode_random takes random numbers"
        raise ArgumentError(message("encode", "rounding 'even' or 'toward_zero'", repr(rounding), do))
