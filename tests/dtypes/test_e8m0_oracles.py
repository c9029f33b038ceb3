"""E8M0 casts of every 16-bit input: gfloat's rule on positive numbers, and where ml_dtypes and torch part from it."""

from __future__ import annotations

from typing import Any

import gfloat
import gfloat.formats as gf
import ml_dtypes
import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes import elements as el
from nvfp.dtypes.codec import Overflow, encode
from tests.dtypes.every_input import OVERFLOWS, check_casts
from tests.dtypes.inputs import SIXTEEN_BITS, all_of, f32
from tests.dtypes.test_codec_oracles import HALF_AWAY, TO_ZERO, by_ml_dtypes, by_torch

E8M0 = el.float8_e8m0fnu


def by_gfloat(x: np.ndarray, overflow: Overflow, mode: Any) -> np.ndarray:
    info: Any = gf.format_info_ocp_e8m0
    rounded = gfloat.round_ndarray(info, x.astype(np.float64), mode, overflow == "saturate")
    return gfloat.encode_ndarray(info, rounded).astype(np.uint8)


def in_range(x: np.ndarray) -> np.ndarray:
    """gfloat is meant for finite numbers from the smallest power on."""
    return (x >= 2.0**-127) & np.isfinite(x)


@pytest.mark.parametrize("overflow", OVERFLOWS)
def test_gfloat(device: Device, overflow: Overflow) -> None:
    """The nearest power of two; ties, 1.5 * 2**k, go away from zero."""
    check_casts(lambda x: by_gfloat(x, overflow, HALF_AWAY), E8M0, overflow, device, where=in_range)


@pytest.mark.parametrize("overflow", OVERFLOWS)
def test_gfloat_toward_zero(overflow: Overflow) -> None:
    for dtype in SIXTEEN_BITS.values():
        with np.errstate(invalid="ignore"):
            x = all_of(dtype).astype(np.float32)
            x = x[in_range(x)]
        codes = encode(x, E8M0, overflow=overflow, rounding="toward_zero")
        np.testing.assert_array_equal(codes, by_gfloat(x, overflow, TO_ZERO))


def test_ml_dtypes_from_the_second_power_on(device: Device) -> None:
    check_casts(by_ml_dtypes(E8M0), E8M0, "nonsat", device, where=lambda x: x >= 2.0**-126)


@pytest.mark.oracle
def test_torch_from_the_second_power_on(device: Device) -> None:
    check_casts(by_torch(E8M0), E8M0, "nonsat", device, where=lambda x: x >= 2.0**-126)


def between() -> np.ndarray:
    """Every bfloat16 strictly between the two smallest powers."""
    x = all_of(np.dtype(ml_dtypes.bfloat16))
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float32)
    return x[(wide > 2.0**-127) & (wide < 2.0**-126)]


def test_how_ml_dtypes_differs() -> None:
    """docs/formats.md: NaN for 0, and up between 2**-127 and 2**-126; nvfp has 0 and the nearest."""
    theirs = by_ml_dtypes(E8M0)
    assert theirs(f32([0.0, -1.0])).tolist() == [255, 255]
    assert encode(f32([0.0, -1.0]), E8M0).tolist() == [0, 255]
    assert set(theirs(between()).tolist()) == {1}
    assert set(encode(between(), E8M0).tolist()) == {0, 1}


@pytest.mark.oracle
def test_how_torch_differs() -> None:
    """docs/formats.md: the sign of a negative number is dropped, and up between 2**-127 and 2**-126."""
    theirs = by_torch(E8M0)
    assert theirs(f32([0.0, -1.0, -4.0])).tolist() == [0, 127, 129]
    assert set(theirs(between()).tolist()) == {1}
