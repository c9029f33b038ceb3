"""NVIDIA's conversion headers, compiled for the host, against the codec and what users call.

They need a C++ compiler and CUDA's headers: CI runs this file after it has installed the `compile` extra.
"""

from __future__ import annotations

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes import elements as el
from nvfp.dtypes.codec import Overflow, encode
from nvfp.dtypes.elements import Element
from nvfp.dtypes.scales import e8m0_from_amax
from tests.dtypes import cuda_headers
from tests.dtypes.every_input import OVERFLOWS, check_casts, check_decodes, is_nan
from tests.dtypes.inputs import FLOATS, SIXTEEN_BITS, all_of, around, f32, random_values, ties

names = pytest.mark.parametrize


@names("overflow", OVERFLOWS)
@names("element", FLOATS, ids=lambda e: e.name)
def test_every_16_bit_input(device: Device, casts: cuda_headers.Casts, element: Element, overflow: Overflow) -> None:
    """By NVIDIA's routines for bfloat16 and float16; those for float32 say the same of these inputs."""

    def theirs(x: np.ndarray) -> np.ndarray:
        codes = casts.encode(x, element, saturate=overflow == "saturate")
        wide = casts.encode(x.astype(np.float32), element, saturate=overflow == "saturate")
        np.testing.assert_array_equal(codes, wide)
        return codes

    check_casts(theirs, element, overflow, device)


@names("overflow", OVERFLOWS)
@names("element", FLOATS, ids=lambda e: e.name)
def test_float32(casts: cuda_headers.Casts, element: Element, overflow: Overflow) -> None:
    drawn = [random_values(element, 50_000, seed=3), around(ties(element), np.float32)]
    x = np.concatenate([*drawn, f32([0.0, -0.0, -1e-30, 3e38, -3e38, np.inf, -np.inf, np.nan])])
    codes = casts.encode(x, element, saturate=overflow == "saturate")
    np.testing.assert_array_equal(encode(x, element, overflow=overflow), codes)


@names("element", [*FLOATS, el.float8_e8m0fnu], ids=lambda e: e.name)
def test_every_code(device: Device, casts: cuda_headers.Casts, element: Element) -> None:
    check_decodes(lambda codes: casts.decode(codes, element), element, device)


@names("overflow", OVERFLOWS)
@names("element", FLOATS, ids=lambda e: e.name)
def test_nan_has_the_same_code(casts: cuda_headers.Casts, element: Element, overflow: Overflow) -> None:
    """docs/formats.md: for every NaN of either sign NVIDIA's headers write what nvfp writes."""
    for dtype in SIXTEEN_BITS.values():
        x = all_of(dtype)
        codes = casts.encode(x[is_nan(x)], element, saturate=overflow == "saturate")
        assert set(codes.tolist()) == {element.nan_code}


@names("overflow", OVERFLOWS)
def test_e8m0_toward_zero(casts: cuda_headers.Casts, overflow: Overflow) -> None:
    """cudaRoundZero is nvfp's ``rounding="toward_zero"``, except that NVIDIA drops the sign of negative numbers."""
    x = all_of(SIXTEEN_BITS["bfloat16"])
    x = x[~is_nan(x)]
    theirs = casts.encode(x, el.float8_e8m0fnu, saturate=overflow == "saturate")
    ours = encode(x, el.float8_e8m0fnu, overflow=overflow, rounding="toward_zero")
    negative = x.astype(np.float32) < 0
    np.testing.assert_array_equal(ours[~negative], theirs[~negative])
    assert (ours[negative] == 255).all()
    mirrored = casts.encode(-x[negative], el.float8_e8m0fnu, saturate=overflow == "saturate")
    np.testing.assert_array_equal(theirs[negative], mirrored)


@names("element", FLOATS, ids=lambda e: e.name)
def test_e8m0_rounds_amax_up(casts: cuda_headers.Casts, element: Element) -> None:
    """The kernels' way to rule ceil, e8m0(fl(amax * fl(1/max))) rounded up, equals ours wherever v is normal."""
    edges = (element.max * np.exp2(np.arange(-100.0, 100))).astype(np.float32)
    drawn = np.exp2(np.random.default_rng(5).uniform(-100, 127, 50_000)).astype(np.float32)
    amax = np.concatenate([edges, np.nextafter(edges, f32(np.inf)), np.nextafter(edges, f32(0)), drawn])
    codes = casts.e8m0_up(amax * (np.float32(1) / np.float32(element.max)))
    np.testing.assert_array_equal(e8m0_from_amax(amax, element), codes)
