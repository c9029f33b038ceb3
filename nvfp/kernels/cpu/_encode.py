"""Bit-level conversions that kernels call: float32 to small formats, 16-bit floats and float64 to float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.cpu._njit import U, bits_float, float_bits, inline, shifted_left, shifted_right

_BIAS_STEP = np.float32(2.0**112)  # between the exponent biases of float16 and float32
_ROUNDER = np.float32(1.5 * 2**23)  # adding it rounds to an integer in the low bits


@inline
def encode_code(
    x: Any, shift: Any, half: Any, offset: Any, normal: Any, magic: Any, most: Any, top: Any, nan: Any, sign: Any
) -> Any:
    """The code of a float32 in a small float format, nearest even (`_tables.encoder` gives the numbers).

    Normal numbers: round the float32 bits at the format's last place, then move the exponent. Below the
    smallest normal: add ``magic``, whose last place is the format's smallest subnormal.
    """
    u = float_bits(x)
    a = U(u & U(0x7FFFFFFF))
    code = U(shifted_right(U(U(a + half) + U(shifted_right(a, shift) & U(1))), shift) - offset)
    code = U(float_bits(bits_float(a) + bits_float(magic)) - magic) if a < normal else code
    code = top if code > most else code
    code = U(code | shifted_left(U(u >> U(31)), sign))
    return nan if a > U(0x7F800000) else code


@inline
def encode_element(
    x: Any, nan: Any, shift: Any, normal: Any, ceiling: Any, lift: Any, base: Any, drop: Any, sign: Any
) -> Any:
    """`encode_code` for elements of at most 8 bits (`_tables.element_encoder` gives the numbers), in fewer steps.

    The magnitude, cut to ``ceiling``, plus a power of two whose last place is the step of the format there: that adds
    the number of steps, the hidden bit included, to the power's low bits, which are 0. Only the low byte counts.
    """
    u = float_bits(x)
    a = U(u & U(0x7FFFFFFF))
    a = a if a < ceiling else ceiling
    e = U((a if a > normal else normal) & U(0x7F800000))
    steps = float_bits(bits_float(a) + bits_float(U(e + lift)))
    code = U(steps + U(shifted_right(e, shift) - base))
    code = U(code | U(shifted_right(u, drop) & sign))
    return code if x == x else nan


@inline
def round_element(x: Any, normal: Any, ceiling: Any, lift: Any) -> Any:
    """The value of that code; of NaN the largest element."""
    u = float_bits(x)
    a = U(u & U(0x7FFFFFFF))
    a = a if a < ceiling else ceiling
    e = U((a if a > normal else normal) & U(0x7F800000))
    power = bits_float(U(e + lift))
    value = float_bits(bits_float(a) + power - power)
    return bits_float(U(value | U(u & U(0x80000000))) if x == x else ceiling)


@inline
def encode_integer(x: Any, one: Any, least: Any, most: Any, nan: Any, mask: Any) -> Any:
    """The two's complement code of ``x * one``, nearest even, cut to least..most."""
    y = x * one
    y = least if y < least else y
    y = most if y > most else y
    code = U(float_bits(y + _ROUNDER) & mask)
    return code if x == x else nan


@inline
def encode_power(x: Any, top: Any, half: Any, tie: Any) -> Any:
    """The E8M0 code of a float32: 0 for less than 2**-127, 255 for negatives and NaN.

    Nearest (ties up) with half = 0x400000 and tie = 0x600000; toward zero with 0 and 0x800000.
    """
    u = float_bits(x)
    exponent = U(U(u + half) >> U(23))  # a mantissa of 1/2 or more carries
    # Subnormals: 2**-127 is mantissa 0x400000, and from 0x600000 on 2**-126 is nearer.
    exponent = (U(1) if u >= tie else U(0)) if u < U(0x800000) else exponent
    exponent = top if exponent > U(254) else exponent
    negative_or_nan = u > U(0x7F800000) and u != U(0x80000000)
    return U(255) if negative_or_nan else (U(0) if u == U(0x80000000) else exponent)


@inline
def half_float(h: Any) -> Any:
    """The float32 of float16 bits."""
    u = U(h)
    magnitude = U(U(u & U(0x7FFF)) << U(13))
    special = U(0x7F800000) if U(u & U(0x7C00)) == U(0x7C00) else U(0)
    scaled = float_bits(bits_float(magnitude) * _BIAS_STEP)
    return bits_float(U(U(scaled | special) | U(U(u & U(0x8000)) << U(16))))


@inline
def bfloat_float(h: Any) -> Any:
    """The float32 of bfloat16 bits."""
    return bits_float(U(U(h) << U(16)))


@inline
def float_half(x: Any) -> Any:
    """The float16 bits of a float32, nearest even (IEEE overflow to inf)."""
    return encode_code(
        x, U(13), U(0xFFF), U(112 << 10), U(113 << 23), U(126 << 23), U(0x7BFF), U(0x7C00), U(0x7E00), U(15)
    )


@inline
def float_bfloat(x: Any) -> Any:
    """The bfloat16 bits of a float32, nearest even (IEEE overflow to inf)."""
    return encode_code(x, U(16), U(0x7FFF), U(0), U(1 << 23), U(17 << 23), U(0x7F7F), U(0x7F80), U(0x7FC0), U(15))


@inline
def double_float(x: Any) -> Any:
    """Float64 to float32, rounded to odd: cut toward zero, the last bit set if anything was cut."""
    near = np.float32(x)
    bits = float_bits(near)
    # A float's bits order by magnitude: one less is the next float toward zero (from inf, the largest).
    bits = U(bits - U(1)) if abs(np.float64(near)) > abs(x) else bits
    inexact = np.float64(bits_float(bits)) != x and x == x
    return bits_float(U(bits | U(1)) if inexact else bits)
