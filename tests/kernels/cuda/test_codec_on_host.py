"""The device functions of `encode.cuh` and `scales.cuh`, compiled for the CPU, against the exact codec and scale rules.

All 65,536 bfloat16 values and many float32 ones, for every element row. On a GPU the same functions run inside the
kernels; only the hardware conversions of FP8 pairs are left out here.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import pytest

from nvfp.dtypes import elements as el, scales
from nvfp.dtypes.codec import decode, encode
from nvfp.dtypes.elements import ELEMENTS, Element
from nvfp.kernels.cuda._constants import element_define
from nvfp.kernels.cuda._loader import INCLUDE
from tests.kernels.cuda import emulator

NARROW = tuple(e for e in ELEMENTS.values() if e.bits <= 8)
CODED = (*NARROW, el.bfloat16, el.float16)  # elements and scale formats
SIGNED = tuple(e for e in NARROW if e.signed)
RULES: tuple[scales.ScaleRule, ...] = ("ceil", "floor", "even")
PAIRS = (
    (el.float4_e2m1fn, el.float8_e4m3fn), (el.float8_e5m2, el.float8_e5m2), (el.int8, el.float8_e4m3fn),
    (el.int4, el.float16),
)  # fmt: skip


def _row(element: Element) -> str:
    return f"Format<{element_define('F', element)[0][1]}>"


def _function(name: str, arguments: str, value: str, out: str = "unsigned") -> str:
    return (
        f'extern "C" void {name}(const float* x, {out}* y, long n, float p) {{'
        f" for (long i = 0; i < n; ++i) {{ {arguments} y[i] = {value}; }} }}\n"
    )


@cache
def library() -> Any:
    text = '#include "scales.cuh"\n'
    for e in CODED:
        for clamp in (0, 1):
            text += _function(f"encode_{e.name}_{clamp}", "", f"encode<{_row(e)}, {clamp}>(x[i])")
            if e.bits <= 8:
                text += _function(f"cut_{e.name}_{clamp}", "", f"encode_toward_zero<{_row(e)}, {clamp}>(x[i])")
        text += _function(f"decode_{e.name}", "", f"decode<{_row(e)}>((unsigned)x[i])", "float")
    e2m1 = _row(el.float4_e2m1fn)
    text += _function("e2m1_fast", f"static_assert(IS_E2M1<{e2m1}>);", f"encode_e2m1<{e2m1}>(x[i])")
    for e in SIGNED:
        for number, rule in enumerate(RULES):
            text += _function(f"e8m0_{e.name}_{rule}", "", f"e8m0_code<{_row(e)}, {number}>(__float_as_uint(x[i]))")
        for power in (0, 1):
            value = f"fp32_multiplier<{_row(e)}, {power}>(x[i], p, __uint_as_float(0x7f7fffffu))"
            text += _function(f"fp32_{e.name}_{power}", "", value, "float")
    for number, (e, s) in enumerate(PAIRS):
        text += _function(f"s_enc_{number}", "", f"s_enc<{_row(e)}, {_row(s)}>(x[i])", "float")
        text += _function(f"tensor_{number}", "", f"tensor_scale_from_amax<{_row(e)}, {_row(s)}>(x[i])", "float")
        factor = f"__fmul_rn(p, __fdiv_rn(1.0f, largest<{_row(e)}>()))"
        text += _function(f"block_{number}", "", f"two_level_code<{_row(s)}>(x[i], {factor})")
        text += _function(
            f"multiplier_{number}", "", f"two_level_multiplier<{_row(s)}>((unsigned)x[i], __fdiv_rn(1.0f, p))", "float"
        )
    text += _function("from_tensor_scale", "", "s_enc_from_tensor_scale(x[i])", "float")
    text += _function("e8m0_multiplier_", "", "e8m0_multiplier((unsigned)x[i])", "float")
    return emulator.build(text, sorted(INCLUDE.glob("*.cuh")))


def call(name: str, x: np.ndarray, parameter: float = 0.0, dtype: Any = np.uint32) -> np.ndarray:
    x = np.ascontiguousarray(x, np.float32)
    y = np.empty(x.shape, dtype)
    library()[name](
        ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_long(x.size), ctypes.c_float(parameter)
    )
    return y


@cache
def floats() -> np.ndarray:
    """Every bfloat16, and float32 of every exponent: random, and one unit beside bfloat16 values (the ties)."""
    every = np.arange(65536, dtype=np.uint32) << 16
    beside = (every[:, None] + np.array([-1, 1], np.int64)).astype(np.uint32).reshape(-1)
    middle = every | 0x8000
    drawn = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    return np.concatenate([every, beside, middle, drawn]).view(np.float32)


def amaxes() -> np.ndarray:
    x = np.abs(floats())
    return np.concatenate([x[~np.isnan(x)], np.float32([0, np.inf, 2.0**-149, 2.0**-127])])


def equal(got: np.ndarray, want: np.ndarray) -> bool:
    return np.array_equal(got.view(np.uint32), want.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize("element", CODED, ids=lambda e: e.name)
@pytest.mark.parametrize("overflow", ["saturate", "nonsat"])
def test_encode(element: Element, overflow: Any) -> None:
    got = call(f"encode_{element.name}_{int(overflow == 'saturate')}", floats())
    assert np.array_equal(got, encode(floats(), element, overflow=overflow))


@pytest.mark.parametrize("element", NARROW, ids=lambda e: e.name)
@pytest.mark.parametrize("overflow", ["saturate", "nonsat"])
def test_encode_toward_zero(element: Element, overflow: Any) -> None:
    got = call(f"cut_{element.name}_{int(overflow == 'saturate')}", floats())
    assert np.array_equal(got, encode(floats(), element, overflow=overflow, rounding="toward_zero"))


def test_encode_e2m1_on_the_float_pipe() -> None:
    sixteenths = np.arange(-128, 129, dtype=np.float32) / 16
    x = np.concatenate(
        [floats(), sixteenths, np.nextafter(sixteenths, np.float32(9)), np.nextafter(sixteenths, np.float32(-9))]
    )
    assert np.array_equal(call("e2m1_fast", x), encode(x, el.float4_e2m1fn))


@pytest.mark.parametrize("element", CODED, ids=lambda e: e.name)
def test_decode(element: Element) -> None:
    codes = np.arange(1 << element.bits, dtype=element.storage)
    got, want = call(f"decode_{element.name}", codes, dtype=np.float32), decode(codes, element).astype(np.float32)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got[~np.isnan(want)]), np.signbit(want[~np.isnan(want)]))


@pytest.mark.parametrize("element", SIGNED, ids=lambda e: e.name)
@pytest.mark.parametrize("rule", RULES)
def test_e8m0_scales(element: Element, rule: scales.ScaleRule) -> None:
    got = call(f"e8m0_{element.name}_{rule}", amaxes())
    assert np.array_equal(got, scales.e8m0_from_amax(amaxes(), element, rule))


def test_e8m0_multipliers() -> None:
    codes = np.arange(256)
    want = np.ldexp(np.float32(1), 127 - codes)
    assert equal(call("e8m0_multiplier_", codes, dtype=np.float32), want)


@pytest.mark.parametrize("element", SIGNED, ids=lambda e: e.name)
@pytest.mark.parametrize("power", [False, True])
def test_float32_scales(element: Element, power: bool) -> None:
    for epsilon in (0.0, 1e-12):
        got = call(f"fp32_{element.name}_{int(power)}", amaxes(), epsilon, np.float32)
        assert equal(got, scales.fp32_from_amax(amaxes(), element, power_of_two=power, epsilon=epsilon))


@pytest.mark.parametrize("number", range(len(PAIRS)), ids=["nvfp4", "e5m2 twice", "int8", "int4 fp16"])
def test_two_level_scales(number: int) -> None:
    element, scale = PAIRS[number]
    x = amaxes()
    assert equal(call(f"s_enc_{number}", x, dtype=np.float32), scales.s_enc(x, element, scale))
    assert equal(call(f"tensor_{number}", x, dtype=np.float32), scales.tensor_scale_from_amax(x, element, scale))
    assert equal(call("from_tensor_scale", x, dtype=np.float32), scales.s_enc_from_tensor_scale(x))
    codes = np.arange(scale.max_code + 1, dtype=scale.storage)
    for a in (0.75, 6.5, 1.015625, 3e-39, 1e30):
        factor = float(scales.s_enc(a, element, scale))
        assert np.array_equal(call(f"block_{number}", x, factor), scales.nvfp4_block_scale(x, factor, element, scale))
        got = call(f"multiplier_{number}", codes, factor, np.float32)
        assert equal(got, scales.nvfp4_multiplier(codes, factor, scale))
