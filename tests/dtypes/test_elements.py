"""Element rows: what is derived from the bits equals the published numbers and ml_dtypes' limits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nvfp.dtypes import elements as el
from nvfp.dtypes.codec import decode
from nvfp.dtypes.elements import ELEMENTS, Element

# Format: largest finite (value, code), smallest normal, smallest subnormal, significand bits, emax.
TABLE = {
    "float8_e4m3fn": (448, 0x7E, 2**-6, 2**-9, 4, 8),
    "float8_e5m2": (57344, 0x7B, 2**-14, 2**-16, 3, 15),
    "float6_e2m3fn": (7.5, 0x1F, 1, 2**-3, 4, 2),
    "float6_e3m2fn": (28, 0x1F, 2**-2, 2**-4, 3, 4),
    "float4_e2m1fn": (6, 7, 1, 0.5, 2, 2),
    "float8_e8m0fnu": (2.0**127, 254, 2.0**-127, 2.0**-127, 0, 127),
    "int8": (127 / 64, 127, 1 / 64, 1 / 64, 7, 0),
    "int4": (7.0, 7, 1.0, 1.0, 3, 2),
}


@pytest.mark.parametrize("name", TABLE)
def test_published_numbers(name: str) -> None:
    e = ELEMENTS[name]
    assert (
        e.max, e.max_code, e.smallest_normal, e.smallest_subnormal, e.significand_bits, e.emax
    ) == TABLE[name]  # fmt: skip


@pytest.mark.parametrize("element", [e for e in ELEMENTS.values() if not e.integer], ids=lambda e: e.name)
def test_limits_equal_ml_dtypes(element: Element) -> None:
    limits: Any = ml_dtypes.finfo(element.dtype)  # type: ignore[no-untyped-call]
    assert element.bits == limits.bits
    assert element.max == float(limits.max)
    assert element.smallest_normal == float(limits.smallest_normal)
    assert element.smallest_subnormal == float(limits.smallest_subnormal)
    assert element.dtype.itemsize == element.storage.itemsize


@pytest.mark.parametrize("element", [e for e in ELEMENTS.values() if e.bits <= 16], ids=lambda e: e.name)
def test_special_codes(element: Element) -> None:
    storage = element.storage.type
    assert decode(storage(element.max_code), element) == element.max
    if element.has_nan:
        assert np.isnan(decode(storage(element.nan_code), element))
    if element.has_inf:
        assert decode(storage(element.overflow_code), element) == np.inf


def test_storage_and_packing() -> None:
    assert [e.storage.name for e in (el.float4_e2m1fn, el.float6_e2m3fn, el.bfloat16)] == ["uint8", "uint8", "uint16"]
    assert [e.name for e in ELEMENTS.values() if e.packed] == ["float4_e2m1fn", "int4"]
    assert el.float4_e2m1fn.sign_code == 8
    assert el.float8_e8m0fnu.sign_code == 0
