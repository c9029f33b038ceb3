"""Element formats as rows: everything a codec needs to know about one code, and nothing else.

A row states the bit layout and the special codes; every other number (largest value, smallest
subnormal, ...) is derived from it. Codes are sign-magnitude (``sign | exponent | mantissa``), except
the integer elements, which are two's complement with a fixed point, and E8M0, which has no sign.

Source: OCP OFP8 v1.0 and OCP MX v1.0; names as in ml_dtypes.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Element:
    """One narrow number format.

    Attributes:
        name: the ml_dtypes (or NumPy) name.
        bits: width of a code.
        exponent_bits: width of the exponent field (0 for integers).
        mantissa_bits: stored mantissa bits; for integers the number of fraction bits.
        bias: exponent bias.
        max_code: magnitude code of the largest finite value.
        nan_code: the code a NaN is written as (no real NaN when ``has_nan`` is False).
        overflow_code: magnitude code of an overflow under ``overflow="nonsat"``; equals
            ``max_code`` where the format has neither inf nor NaN.
        has_nan: whether ``nan_code`` decodes to NaN.
        has_inf: whether the format has infinities (``overflow_code`` is then +inf).
        signed: False for E8M0 only.
        integer: two's complement fixed point, value = code / 2**mantissa_bits (int8: k / 64; int4: k).
    """

    name: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    max_code: int
    nan_code: int
    overflow_code: int
    has_nan: bool
    has_inf: bool = False
    signed: bool = True
    integer: bool = False

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def dtype(self) -> np.dtype:
        """The NumPy dtype (ml_dtypes for the narrow ones) of one code."""
        return np.dtype(getattr(ml_dtypes, self.name, None) or self.name)

    @property
    def storage(self) -> np.dtype:
        """The unsigned integer dtype that stores one code (4-bit codes are packed two per byte)."""
        return np.dtype(f"uint{max(8, self.bits)}")

    @property
    def packed(self) -> bool:
        """Whether two codes share a byte (low nibble first)."""
        return self.bits == 4

    @property
    def sign_code(self) -> int:
        """The sign bit as a code (0 for unsigned formats)."""
        return 1 << (self.bits - 1) if self.signed else 0

    @property
    def significand_bits(self) -> int:
        """Significand bits with the hidden one (integers: all magnitude bits; E8M0: 0)."""
        if self.integer:
            return self.bits - 1
        return self.mantissa_bits + 1 if self.mantissa_bits else 0

    @property
    def max(self) -> float:
        """Largest finite value."""
        if self.integer:
            return float(self.max_code) / 2.0**self.mantissa_bits
        exponent = self.max_code >> self.mantissa_bits
        mantissa = self.max_code & ((1 << self.mantissa_bits) - 1)
        if exponent == 0 and self.signed:
            return float(mantissa * 2.0 ** (1 - self.bias - self.mantissa_bits))
        return float((1 + mantissa / 2.0**self.mantissa_bits) * 2.0 ** (exponent - self.bias))

    @property
    def emax(self) -> int:
        """Exponent of the largest finite value (OCP's emax; 0 for int8, 2 for int4)."""
        if self.integer:
            return self.max_code.bit_length() - 1 - self.mantissa_bits
        return (self.max_code >> self.mantissa_bits) - self.bias

    @property
    def top_mantissa_bits(self) -> int:
        """Mantissa bits of values in the binade of the largest one (what an integer has below its leading bit)."""
        return self.significand_bits - 1 if self.integer else self.mantissa_bits

    @property
    def smallest_normal(self) -> float:
        """Smallest positive normal value (integers: one step)."""
        if self.integer:
            return float(2.0**-self.mantissa_bits)
        return float(2.0 ** ((1 if self.signed else 0) - self.bias))

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive value."""
        if self.integer or not self.signed:
            return self.smallest_normal
        return float(2.0 ** (1 - self.bias - self.mantissa_bits))


def _float(name: str, e: int, m: int, *, max_code: int, nan_code: int, overflow_code: int | None = None,
           has_nan: bool = True, has_inf: bool = False, bias: int | None = None) -> Element:  # fmt: skip
    return Element(
        name=name, bits=1 + e + m, exponent_bits=e, mantissa_bits=m, bias=(1 << (e - 1)) - 1 if bias is None else bias,
        max_code=max_code, nan_code=nan_code, overflow_code=max_code if overflow_code is None else overflow_code,
        has_nan=has_nan, has_inf=has_inf,
    )  # fmt: skip


float8_e4m3fn = _float("float8_e4m3fn", 4, 3, max_code=0x7E, nan_code=0x7F, overflow_code=0x7F)
float8_e5m2 = _float("float8_e5m2", 5, 2, max_code=0x7B, nan_code=0x7F, overflow_code=0x7C, has_inf=True)
float6_e2m3fn = _float("float6_e2m3fn", 2, 3, max_code=0x1F, nan_code=0x1F, has_nan=False)
float6_e3m2fn = _float("float6_e3m2fn", 3, 2, max_code=0x1F, nan_code=0x1F, has_nan=False)
float4_e2m1fn = _float("float4_e2m1fn", 2, 1, max_code=0x7, nan_code=0x7, has_nan=False)
bfloat16 = _float("bfloat16", 8, 7, max_code=0x7F7F, nan_code=0x7FC0, overflow_code=0x7F80, has_inf=True)
float16 = _float("float16", 5, 10, max_code=0x7BFF, nan_code=0x7E00, overflow_code=0x7C00, has_inf=True)
float32 = _float("float32", 8, 23, max_code=0x7F7FFFFF, nan_code=0x7FC00000, overflow_code=0x7F800000, has_inf=True)
float8_e8m0fnu = Element(
    name="float8_e8m0fnu", bits=8, exponent_bits=8, mantissa_bits=0, bias=127,
    max_code=254, nan_code=255, overflow_code=255, has_nan=True, signed=False,
)  # fmt: skip
# MXINT8: k / 64 with k in -128..127 (gfloat's range; microxcaling stops at -127).
int8 = Element(
    name="int8", bits=8, exponent_bits=0, mantissa_bits=6, bias=0,
    max_code=127, nan_code=0, overflow_code=127, has_nan=False, integer=True,
)  # fmt: skip
# Plain integers -8..7, for formats made by users (int4 weights).
int4 = Element(
    name="int4", bits=4, exponent_bits=0, mantissa_bits=0, bias=0,
    max_code=7, nan_code=0, overflow_code=7, has_nan=False, integer=True,
)  # fmt: skip

ELEMENTS: dict[str, Element] = {
    e.name: e
    for e in (
        float8_e4m3fn, float8_e5m2, float6_e2m3fn, float6_e3m2fn, float4_e2m1fn,
        float8_e8m0fnu, int8, int4, bfloat16, float16, float32,
    )
}  # fmt: skip
