"""The codec against ml_dtypes and exact arithmetic: every code, every 16-bit input, ties, float64, integers."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.dtypes import elements as el
from nvfp.dtypes.codec import Overflow, as_float64, decode, encode, round_to_odd32
from nvfp.dtypes.elements import ELEMENTS, Element
from nvfp.errors import ArgumentError, DTypeError
from tests.dtypes.inputs import (
    FLOATS,
    NARROW,
    SIXTEEN_BITS,
    all_of,
    around,
    f32,
    magnitudes,
    nearest_code,
    random_values,
    ties,
    u8,
)

WIDE = [el.bfloat16, el.float16, el.float32]
OVERFLOWS: list[Overflow] = ["saturate", "nonsat"]
names = pytest.mark.parametrize


def by_ml_dtypes(x: np.ndarray, element: Element, overflow: Overflow) -> np.ndarray:
    """ml_dtypes' cast, which does not saturate, with this library's rules for NaN and saturation put on top."""
    with np.errstate(all="ignore"):
        codes = x.astype(element.dtype).view(element.storage).astype(np.int64)
    sign = np.where(np.signbit(x), element.sign_code, 0)
    if overflow == "saturate":
        codes = np.where((codes & ~element.sign_code) > element.max_code, element.max_code | sign, codes)
        codes = np.where(np.isinf(x), element.max_code | sign, codes)
    return np.where(np.isnan(x), element.nan_code, codes).astype(element.storage)


@names("overflow", OVERFLOWS)
@names("source", SIXTEEN_BITS)
@names("element", [*FLOATS, *WIDE], ids=lambda e: e.name)
def test_every_16_bit_input(element: Element, source: str, overflow: Overflow) -> None:
    x = all_of(SIXTEEN_BITS[source])
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wide = x.astype(np.float32)
    np.testing.assert_array_equal(encode(x, element, overflow=overflow), by_ml_dtypes(wide, element, overflow))


@names("overflow", OVERFLOWS)
@names("element", [*FLOATS, *WIDE], ids=lambda e: e.name)
def test_random_float32(element: Element, overflow: Overflow) -> None:
    x = random_values(element, 100_000, seed=1)
    np.testing.assert_array_equal(encode(x, element, overflow=overflow), by_ml_dtypes(x, element, overflow))


@names("overflow", OVERFLOWS)
@names("element", FLOATS, ids=lambda e: e.name)
def test_ties_and_their_neighbours(element: Element, overflow: Overflow) -> None:
    x = around(ties(element), np.float32)
    np.testing.assert_array_equal(encode(x, element, overflow=overflow), by_ml_dtypes(x, element, overflow))
    np.testing.assert_array_equal(encode(x, element), [nearest_code(float(v), element) for v in x])


@names("element", FLOATS, ids=lambda e: e.name)
def test_float64_rounds_once(element: Element) -> None:
    """A hair beside a tie is on the tie after a rounding to float32, and then goes the wrong way (so in ml_dtypes)."""
    tie = ties(element)
    x = np.concatenate([np.nextafter(tie, np.inf), np.nextafter(tie, -np.inf), tie * (1 + 2.0**-30)])
    right = np.array([nearest_code(v, element) for v in x], np.uint8)
    np.testing.assert_array_equal(encode(x, element), right)
    assert (encode(x.astype(np.float32), element) != right).any(), "these inputs do not tell one rounding from two"
    np.testing.assert_array_equal(encode(round_to_odd32(x), element), right)


@names("element", WIDE, ids=lambda e: e.name)
def test_wide_formats_from_float64(element: Element) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal(20_000) * np.exp2(rng.uniform(-160, 130, 20_000))
    with np.errstate(over="ignore"):
        right = x.astype(element.dtype) if element.name != "bfloat16" else round_to_odd32(x).astype(element.dtype)
    np.testing.assert_array_equal(encode(x, element, overflow="nonsat"), right.view(element.storage))


@names("element", [e for e in ELEMENTS.values() if e.bits <= 16], ids=lambda e: e.name)
def test_every_code_decodes(element: Element) -> None:
    codes = np.arange(1 << element.bits, dtype=element.storage)
    values = decode(codes, element)
    if element.integer:
        signed = codes.astype(np.int64) - (codes > element.max_code) * (1 << element.bits)
        np.testing.assert_array_equal(values, signed / {"int8": 64, "int4": 1}[element.name])
        return
    with np.errstate(invalid="ignore"):
        right = codes.view(element.dtype).astype(np.float32).astype(np.float64)
    np.testing.assert_array_equal(values, right)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(np.signbit(values)[number], np.signbit(right)[number])


@names("overflow", OVERFLOWS)
@names("element", [e for e in ELEMENTS.values() if e.bits <= 16], ids=lambda e: e.name)
def test_encode_inverts_decode(element: Element, overflow: Overflow) -> None:
    codes = np.arange(1 << element.bits, dtype=element.storage)
    values = decode(codes, element)
    kept = np.isfinite(values) | (np.isinf(values) & (overflow == "nonsat"))
    np.testing.assert_array_equal(encode(values[kept], element, overflow=overflow), codes[kept])
    assert (encode(values[np.isnan(values)], element, overflow=overflow) == element.nan_code).all()


@names("element", NARROW, ids=lambda e: e.name)
def test_encode_is_monotone(element: Element) -> None:
    with np.errstate(invalid="ignore"):
        x = all_of(SIXTEEN_BITS["bfloat16"]).astype(np.float32)
    x = np.sort(x[~np.isnan(x) & ((x >= 0) | element.signed)])
    assert (np.diff(decode(encode(x, element), element)) >= 0).all()


@names("element", FLOATS, ids=lambda e: e.name)
@given(x=st.floats(allow_nan=False, allow_infinity=False, width=64))
def test_nearest_by_rational_arithmetic(element: Element, x: float) -> None:
    assert int(encode(x, element)) == nearest_code(x, element)


@given(x=st.floats(allow_nan=False))
def test_round_to_odd(x: float) -> None:
    """Exact where float32 can be, else the odd one of the two neighbours; never an infinity, never a zero."""
    with np.errstate(over="ignore"):
        exact = float(np.float32(x)) == x
    y = round_to_odd32(x)
    if exact:
        assert float(y) == x
        return
    assert int(y.view(np.uint32)) & 1
    with np.errstate(over="ignore"):
        outward = float(np.nextafter(y, np.copysign(np.float32(np.inf), y)))
        inward = float(np.nextafter(y, np.float32(0)))
    assert abs(inward) < abs(x) < abs(outward)


def test_round_to_odd_edges() -> None:
    tiny, largest = 2.0**-149, float(np.finfo(np.float32).max)
    x = [0.0, -0.0, 1e-300, -1e-300, 1e300, np.inf, np.nan, 1 + 2.0**-24, 1 + 3 * 2.0**-24]
    right = [0.0, -0.0, tiny, -tiny, largest, np.inf, np.nan, 1 + 2.0**-23, 1 + 2.0**-23]
    np.testing.assert_array_equal(round_to_odd32(x), f32(right))
    np.testing.assert_array_equal(np.signbit(round_to_odd32(x)), np.signbit(right))


def test_e8m0_takes_the_nearest_power() -> None:
    """ml_dtypes turns 0 into NaN and rounds up inside (2**-127, 2**-126); torch rounds up there too."""
    with np.errstate(invalid="ignore"):
        x = all_of(SIXTEEN_BITS["bfloat16"]).astype(np.float32)
    x = x[np.isfinite(x) & (x >= 2.0**-126)]
    np.testing.assert_array_equal(
        encode(x, el.float8_e8m0fnu, overflow="nonsat"), x.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)
    )
    values = [0.0, -0.0, 2.0**-149, 1.4 * 2.0**-127, 1.5 * 2.0**-127, 1.4142, 1.5, 3.0, -1.0, np.nan]
    assert encode(values, el.float8_e8m0fnu).tolist() == [0, 0, 0, 0, 1, 127, 128, 129, 255, 255]
    assert encode([3e38, np.inf], el.float8_e8m0fnu).tolist() == [254, 254]
    assert encode([3e38, np.inf], el.float8_e8m0fnu, overflow="nonsat").tolist() == [255, 255]


def test_int8_is_fixed_point() -> None:
    x = [0.0, -0.0, 1.0, -2.0, 1.99, 2.0, -3.0, 0.5 / 64, 1.5 / 64, -2.5 / 64, np.nan, np.inf, -np.inf]
    k = [0, 0, 64, -128, 127, 127, -128, 0, 2, -2, 0, 127, -128]
    for overflow in OVERFLOWS:
        assert encode(x, el.int8, overflow=overflow).view(np.int8).tolist() == k


def test_nan_loses_its_sign() -> None:
    nan = np.array([np.nan, -np.nan, np.copysign(np.nan, -1.0)])
    got = {e.name: set(encode(nan, e, overflow=o).tolist()) for e in NARROW for o in OVERFLOWS}
    assert got == {
        "float8_e4m3fn": {0x7F}, "float8_e5m2": {0x7F}, "float6_e2m3fn": {0x1F}, "float6_e3m2fn": {0x1F},
        "float4_e2m1fn": {7}, "float8_e8m0fnu": {255}, "int8": {0}, "int4": {0},
    }  # fmt: skip


@names("dtype", ["bool", "int8", "uint8", "int32", "int64", "uint64", "float16"])
def test_other_input_dtypes(dtype: str) -> None:
    x = np.array([0, 1, 1, 1, 0], dtype)
    assert decode(encode(x, el.float8_e4m3fn), el.float8_e4m3fn).tolist() == [0, 1, 1, 1, 0]


def test_wide_integers_round_once() -> None:
    """2**62 + 2**54 is a tie of bfloat16; a conversion to float64 on the way loses the 1 that is beyond it."""
    x = np.array([2**62 + 2**54 + 1, 2**62 + 2**54, 2**53 + 1, 2**64 - 1], np.uint64)
    got = encode(x, el.bfloat16, overflow="nonsat")
    table = [Fraction(2**62) + Fraction(2**55), Fraction(2**62), Fraction(2**53), Fraction(2**64)]
    assert [Fraction(v) for v in decode(got, el.bfloat16).tolist()] == table
    assert as_float64(np.array([-(2**63), 2**63 - 1], np.int64)).tolist() == [-(2.0**63), 2.0**63 - 2.0**11]


def test_shapes_strides_and_empty() -> None:
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for view in (a, a.T, a[::-1, :, ::2], a[:, :0], a[0, 0, 0]):
        codes = encode(view, el.float8_e4m3fn)
        assert codes.shape == view.shape
        np.testing.assert_array_equal(codes, encode(view.copy(), el.float8_e4m3fn))
        np.testing.assert_array_equal(decode(codes, el.float8_e4m3fn).shape, view.shape)


def test_errors() -> None:
    with pytest.raises(ArgumentError, match=r"\[encode\] expected overflow .* got 'wrap'"):
        encode(1.0, el.float8_e4m3fn, overflow="wrap")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"stochastic\.encode_random"):
        encode(1.0, el.float8_e4m3fn, rounding="stochastic")
    with pytest.raises(ArgumentError, match="'up'"):
        encode(1.0, el.float8_e4m3fn, rounding="up")  # type: ignore[arg-type]
    for wrong in (np.complex64(1), np.longdouble(1), "1", None):
        with pytest.raises(DTypeError):
            encode(wrong, el.float8_e4m3fn)  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="int64"):
        decode([1, 2], el.float8_e4m3fn)
    with pytest.raises(ArgumentError, match="got 16; unpack"):
        decode(u8([16]), el.float4_e2m1fn)


def test_magnitudes_ascend() -> None:
    assert all((np.diff(magnitudes(e)) > 0).all() for e in FLOATS)
