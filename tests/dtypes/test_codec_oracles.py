"""Casts against ml_dtypes, gfloat and torch on every 16-bit input, each where its rule is nvfp's; NaN codes by name.

NVIDIA's own routines are compared in test_cuda_headers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gfloat
import gfloat.formats as gf
import ml_dtypes
import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes import elements as el
from nvfp.dtypes.codec import Overflow, decode, encode
from nvfp.dtypes.elements import Element
from tests.devices import need_oracle
from tests.dtypes.every_input import OVERFLOWS, check_casts, check_decodes, is_nan
from tests.dtypes.inputs import FLOATS, SIXTEEN_BITS, all_of, around, f32, random_values, ties

# gfloat has no int4: int8 with four bits and whole steps.
INT4 = gfloat.FormatInfo(
    "int4", 4, 4, bias=-2, is_signed=True, domain=gf.format_info_ocp_int8.domain, has_nz=False, num_high_nans=0,
    has_subnormals=True, is_twos_complement=True,
)  # fmt: skip
GFLOAT = {
    "float8_e4m3fn": gf.format_info_ocp_e4m3,
    "float8_e5m2": gf.format_info_ocp_e5m2,
    "float6_e2m3fn": gf.format_info_ocp_e2m3,
    "float6_e3m2fn": gf.format_info_ocp_e3m2,
    "float4_e2m1fn": gf.format_info_ocp_e2m1,
    "int8": gf.format_info_ocp_int8,
    "int4": INT4,
}
SIGNED = [*FLOATS, el.int8, el.int4]
HALF_EVEN, TO_ZERO, HALF_AWAY = (gfloat.RoundMode[n] for n in ("TiesToEven", "TowardZero", "TiesToAway"))
Cast = Callable[[np.ndarray], np.ndarray]
names = pytest.mark.parametrize
by_name: dict[str, Any] = {"ids": lambda value: getattr(value, "name", value)}


def by_gfloat(element: Element, overflow: Overflow, mode: Any = HALF_EVEN) -> Cast:
    """gfloat refuses infinities where a format has none: they become large numbers; its one NaN code gets x's sign."""
    info: Any = GFLOAT[element.name]
    saturates = overflow == "saturate" or not (element.has_inf or element.has_nan)

    def cast(x: np.ndarray) -> np.ndarray:
        wide = x.astype(np.float64)
        wide = np.where(np.isinf(wide), np.copysign(1e38, wide), wide) if saturates else wide
        codes = gfloat.encode_ndarray(info, gfloat.round_ndarray(info, wide, mode, saturates)).astype(np.uint8)
        overflowed = element.has_nan & np.isnan(decode(codes, element))
        return np.where(overflowed, element.nan_code | np.where(wide < 0, 0x80, 0), codes).astype(np.uint8)

    return cast


def by_ml_dtypes(element: Element) -> Cast:
    def cast(x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return x.astype(element.dtype).view(np.uint8)

    return cast


def by_torch(element: Element) -> Cast:
    torch = need_oracle("torch")

    def cast(x: np.ndarray) -> np.ndarray:
        kind = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(x.dtype.name)
        tensor = torch.from_numpy(x) if kind is None else torch.from_numpy(x.view(np.int16)).view(kind)
        return np.asarray(tensor.to(getattr(torch, element.name)).view(torch.uint8).numpy())

    return cast


def numbers(element: Element) -> np.ndarray:
    """Float32: random values, ties and their neighbours, extremes; without NaN."""
    drawn = [random_values(element, 20_000, seed=3), around(ties(element), np.float32)]
    return np.concatenate([*drawn, f32([0.0, -0.0, -1e-30, 3e38, -3e38, np.inf, -np.inf])])


@names("overflow", OVERFLOWS)
@names("element", SIGNED, **by_name)
def test_gfloat(device: Device, element: Element, overflow: Overflow) -> None:
    theirs = by_gfloat(element, overflow)
    check_casts(theirs, element, overflow, device)
    x = numbers(element)
    np.testing.assert_array_equal(encode(x, element, overflow=overflow), theirs(x))


@names("overflow", OVERFLOWS)
@names("element", SIGNED, **by_name)
def test_gfloat_toward_zero(element: Element, overflow: Overflow) -> None:
    """Finite numbers beyond the largest value become that value; infinities follow ``overflow``."""
    sixteen = [all_of(dtype) for dtype in SIXTEEN_BITS.values()]
    every = [x[~is_nan(x)].astype(np.float64) for x in sixteen]
    x = np.concatenate([*every, numbers(element).astype(np.float64), around(ties(element), np.float64), [1e9, -1e9]])
    x = x[np.isfinite(x)]
    codes = encode(x, element, overflow=overflow, rounding="toward_zero")
    np.testing.assert_array_equal(codes, by_gfloat(element, overflow, TO_ZERO)(x))


@names("element", SIGNED, **by_name)
def test_gfloat_decodes_the_same(device: Device, element: Element) -> None:
    info: Any = GFLOAT[element.name]
    check_decodes(lambda codes: np.array([gfloat.decode_float(info, int(c)).fval for c in codes]), element, device)


@names("element", [*FLOATS, el.float8_e8m0fnu], **by_name)
def test_ml_dtypes_decodes_the_same(device: Device, element: Element) -> None:
    check_decodes(lambda codes: codes.view(element.dtype).astype(np.float64), element, device)


@names(
    ("element", "overflow"),
    [(el.float8_e4m3fn, "nonsat"), (el.float8_e5m2, "nonsat"), *((e, o) for e in FLOATS[2:] for o in OVERFLOWS)],
)
def test_ml_dtypes(device: Device, element: Element, overflow: Overflow) -> None:
    """ml_dtypes saturates FP6 and FP4, which have no other way, and not FP8."""
    check_casts(by_ml_dtypes(element), element, overflow, device)
    x = numbers(element)
    np.testing.assert_array_equal(encode(x, element, overflow=overflow), by_ml_dtypes(element)(x))


@names(
    ("element", "codes"),
    [(el.float8_e4m3fn, (0x7F, 0xFF)), (el.float8_e5m2, (0x7E, 0xFE)), (el.float6_e2m3fn, (0x20, 0)),
     (el.float6_e3m2fn, (0x20, 0)), (el.float4_e2m1fn, (8, 0))],
)  # fmt: skip
def test_nan_codes_of_ml_dtypes(element: Element, codes: tuple[int, int]) -> None:
    """docs/formats.md: another code than nvfp's, for NaN and for negative NaN."""
    nan = np.copysign(f32([np.nan, np.nan]), f32([1, -1]))
    with np.errstate(invalid="ignore"):
        assert tuple(nan.astype(element.dtype).view(np.uint8).tolist()) == codes
    assert set(encode(nan, element).tolist()) == {element.nan_code}


@names("element", FLOATS[:2], **by_name)
def test_nan_code_of_gfloat(element: Element) -> None:
    """docs/formats.md: one code for NaN, the one with all bits set, also for what overflows to NaN."""
    info: Any = GFLOAT[element.name]
    assert gfloat.encode_ndarray(info, np.array([np.nan, -np.nan])).tolist() == [0xFF, 0xFF]
    rounded = gfloat.round_ndarray(info, np.array([1e6, -1e6]), HALF_EVEN, False)
    wanted = {"float8_e4m3fn": [0xFF, 0xFF], "float8_e5m2": [0x7C, 0xFC]}[element.name]
    assert gfloat.encode_ndarray(info, rounded).tolist() == wanted
    ours = {"float8_e4m3fn": [0x7F, 0xFF], "float8_e5m2": [0x7C, 0xFC]}[element.name]
    assert encode([1e6, -1e6], element, overflow="nonsat").tolist() == ours


@pytest.mark.oracle
@names(("element", "overflow"), [(el.float8_e4m3fn, "saturate"), (el.float8_e5m2, "nonsat")])
def test_torch(device: Device, element: Element, overflow: Overflow) -> None:
    """docs/formats.md: torch saturates E4M3 (from 2.13) and not E5M2, and keeps the sign of NaN."""
    theirs = by_torch(element)
    if element is el.float8_e4m3fn and theirs(f32([500.0])).tolist() != [0x7E]:
        pytest.skip("oracle torch is not installed in a version that saturates float8_e4m3fn")
    check_casts(theirs, element, overflow, device)
    x = numbers(element)
    np.testing.assert_array_equal(encode(x, element, overflow=overflow), theirs(x))
    for dtype in SIXTEEN_BITS.values():
        x = all_of(dtype)
        x = x[is_nan(x)]
        np.testing.assert_array_equal(theirs(x), np.where(np.signbit(x), 0xFF, 0x7F))


@pytest.mark.oracle
@names("element", [el.float8_e4m3fn, el.float8_e5m2, el.float8_e8m0fnu], **by_name)
def test_torch_decodes_the_same(device: Device, element: Element) -> None:
    torch = need_oracle("torch")

    def theirs(codes: np.ndarray) -> np.ndarray:
        values = torch.from_numpy(codes).view(getattr(torch, element.name)).float().numpy()
        with np.errstate(invalid="ignore"):  # torch gives signalling NaNs
            return np.asarray(values, np.float64)

    check_decodes(theirs, element, device)


def test_float64_is_rounded_twice_by_others() -> None:
    """docs/formats.md: ml_dtypes goes to FP8 by way of float32; a double a hair beside a tie comes out one code off."""
    x = np.array([4.25 + 2.0**-40])
    assert encode(x, el.float8_e4m3fn).tolist() == [0x49]
    assert x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8).tolist() == [0x48]


@pytest.mark.oracle
def test_float64_is_rounded_twice_by_torch() -> None:
    assert by_torch(el.float8_e4m3fn)(np.array([4.25 + 2.0**-40])).tolist() == [0x48]
