"""Scale rules against the worked tables: float32 scales, E8M0, the two levels of NVFP4."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.dtypes import elements as el, scales
from nvfp.dtypes.codec import decode
from nvfp.dtypes.elements import Element
from nvfp.errors import ArgumentError
from tests.dtypes.inputs import FLOATS

E4M3, E5M2, E2M1 = el.float8_e4m3fn, el.float8_e5m2, el.float4_e2m1fn
BF16_MAX = el.bfloat16.max


def bits(x: object) -> int:
    return int(np.asarray(x, np.float32).view(np.uint32))


# amax: multiplier under current scaling, with powers of two, per block of bfloat16, per block with powers of two.
FP32 = [
    (0.0, 0x3F800000, 0x3F800000, 0x3F800000, 0x3F800000),
    (np.inf, 0x3F800000, 0x3F800000, 0x3F800000, 0x3F800000),
    (np.nan, 0x3F800000, 0x3F800000, 0x3F800000, 0x3F800000),
    (2.0**-149, 0x7F7FFFFF, 0x7F000000, None, None),
    (2.0**-130, 0x7F7FFFFF, 0x7F000000, 0x7F7F0000, 0x7F000000),
    (2.0**-119, 0x7F600000, 0x7F000000, 0x7F600000, 0x7F000000),
    (0.8125, 0x4409D89E, 0x44000000, 0x4409D89E, 0x44000000),
    (448.0, 0x3F800000, 0x3F800000, 0x3F800000, 0x3F800000),
    (449.0, 0x3F7F6E0A, 0x3F000000, 0x3F7F6E0A, 0x3F000000),
]


@pytest.mark.parametrize("row", FP32, ids=lambda row: str(row[0]))
def test_fp32_table(row: tuple[float, int, int, int | None, int | None]) -> None:
    amax, current, current_pow2, block, block_pow2 = row
    assert bits(scales.fp32_from_amax(amax, E4M3)) == current
    assert bits(scales.fp32_from_amax(amax, E4M3, power_of_two=True)) == current_pow2
    if block is not None:
        assert bits(scales.fp32_from_amax(amax, E4M3, overflow_value=BF16_MAX)) == block
        assert bits(scales.fp32_from_amax(amax, E4M3, overflow_value=BF16_MAX, power_of_two=True)) == block_pow2


def test_fp32_worked_scales() -> None:
    assert bits(scales.fp32_from_amax(2.625, E4M3)) == 0x432AAAAB
    assert bits(scales.inverse(scales.fp32_from_amax(2.625, E4M3))) == 0x3BC00000
    assert bits(scales.fp32_from_amax(0.75, E5M2)) == 0x47955555
    assert bits(scales.inverse(scales.fp32_from_amax(0.75, E5M2))) == 0x375B6DB7


def test_epsilon_is_the_least_amax() -> None:
    got = scales.fp32_from_amax([0.0, 1e-9, 1.0, np.nan], E4M3, epsilon=2.0**-10)
    assert got.tolist() == [448 * 1024, 448 * 1024, 448, 1]


def test_fp32_per_block_keeps_the_shape() -> None:
    assert scales.fp32_from_amax(np.ones((2, 3)), E4M3, power_of_two=True).shape == (2, 3)
    assert scales.fp32_from_amax(1.0, E4M3, power_of_two=True).shape == ()


# v = amax / 448 in the table of the kernels; amax = 448 v is exact for these.
E8M0 = [
    (0.0, 0),
    (2.0**-149, 0),
    (2.0**-127, 0),
    (2.0**-126, 1),
    (2.0**-126 * (1 + 2.0**-20), 2),
    (1.0, 127),
    (1 + 2.0**-20, 128),
    (2.0**119, 246),
]


@pytest.mark.parametrize(("v", "byte"), E8M0)
def test_e8m0_table(v: float, byte: int) -> None:
    assert int(scales.e8m0_from_amax(448 * v, E4M3)) == byte


def test_e8m0_worked_scales() -> None:
    assert scales.e8m0_from_amax([3.75, 3.5, 3.515625, 0.0], E4M3).tolist() == [121, 120, 121, 0]
    assert int(scales.e8m0_from_amax(3.75, E4M3, "floor")) == 120
    assert int(scales.e8m0_from_amax(3.75, E5M2)) == 114
    assert scales.e8m0_from_amax([1.0, 2.0**20], E4M3).tolist() == [119, 139]
    assert scales.e8m0_from_amax([np.inf, np.nan], E4M3).tolist() == [254, 255]


@pytest.mark.parametrize("element", [*FLOATS, el.int8], ids=lambda e: e.name)
@given(amax=st.floats(min_value=0, max_value=float(np.finfo(np.float32).max), width=32))
def test_ceil_is_the_smallest_power_that_holds_amax(element: Element, amax: float) -> None:
    byte = int(scales.e8m0_from_amax(np.float32(amax), element))
    largest = Fraction(element.max)
    assert byte == 254 or largest * Fraction(2) ** (byte - 127) >= Fraction(amax)
    assert byte == 0 or largest * Fraction(2) ** (byte - 128) < Fraction(amax)


@pytest.mark.parametrize("element", FLOATS, ids=lambda e: e.name)
def test_ceil_at_every_edge(element: Element) -> None:
    """At max * 2**e exactly, and one float32 step to either side, for every e that float32 holds."""
    edges = (element.max * np.exp2(np.arange(-126.0, 128 - element.emax - 1))).astype(np.float32)
    at = scales.e8m0_from_amax(edges, element).astype(int)
    np.testing.assert_array_equal(at, np.arange(1, edges.size + 1))
    np.testing.assert_array_equal(scales.e8m0_from_amax(np.nextafter(edges, np.float32(np.inf)), element), at + 1)
    np.testing.assert_array_equal(scales.e8m0_from_amax(np.nextafter(edges, np.float32(0)), element), at)


@pytest.mark.parametrize("element", FLOATS, ids=lambda e: e.name)
def test_floor_and_even_by_bits(element: Element) -> None:
    """The same rules on the bits of amax: exponent field minus emax, after adding half a kept mantissa unit."""
    amax = np.abs(np.random.default_rng(4).standard_normal(20_000) * 1e3).astype(np.float32)
    word = amax.view(np.uint32).astype(np.int64)
    half = 1 << (22 - element.mantissa_bits)
    np.testing.assert_array_equal(scales.e8m0_from_amax(amax, element, "floor"), (word >> 23) - element.emax)
    np.testing.assert_array_equal(scales.e8m0_from_amax(amax, element, "even"), ((word + half) >> 23) - element.emax)


def test_unknown_rule() -> None:
    with pytest.raises(ArgumentError, match="'nearest'"):
        scales.e8m0_from_amax(1.0, E4M3, "nearest")  # type: ignore[arg-type]


def test_two_level_worked_scales() -> None:
    s_enc = scales.s_enc(6.5, E2M1, E4M3)
    assert bits(s_enc) == 0x43CEC4EC
    assert bits(scales.inverse(s_enc)) == 0x3B1E79E8
    codes = scales.nvfp4_block_scale([6.5, 0.4375, 2.0**-17, 2.0**-16, 0.0], s_enc, E2M1, E4M3)
    assert codes.tolist() == [0x7E, 0x5F, 0x00, 0x01, 0x00]
    multipliers = scales.nvfp4_multiplier(codes[:3], s_enc, E4M3).view(np.uint32)
    assert multipliers.tolist() == [0x3F6C4EC4, 0x415C8DC8, 0x7F7FFFFF]


def test_order_of_operations_is_part_of_the_format() -> None:
    s_enc = scales.s_enc(1.015625, E2M1, E4M3)
    assert int(scales.nvfp4_block_scale(0.76171875, s_enc, E2M1, E4M3)) == 0x7B
    other = np.float32(np.float32(0.76171875) / np.float32(6)) * s_enc
    assert bits(other) == 0x43A80000, "the other order lands on a tie and would give 0x7A"


@pytest.mark.parametrize(
    ("amax", "encode_factor", "stored"),
    [
        (0.0, 1.0, 0.0),
        (np.inf, 1.0, 1.0),
        (np.nan, 1.0, 1.0),
        (2688.0, 1.0, 1.0),
        (1344.0, 2.0, 0.5),
        (2.0**-120, float(scales.FLT_MAX), float(np.float32(2.0**-120) / np.float32(2688))),
    ],
)
def test_tensor_level(amax: float, encode_factor: float, stored: float) -> None:
    assert float(scales.s_enc(amax, E2M1, E4M3)) == encode_factor
    assert float(scales.tensor_scale_from_amax(amax, E2M1, E4M3)) == stored


def test_s_enc_from_a_given_tensor_scale() -> None:
    assert scales.s_enc_from_tensor_scale([0.5, 0.0, np.inf, np.nan]).tolist() == [2.0, 1.0, 1.0, 1.0]
    assert float(scales.s_enc_from_tensor_scale(2.0**-149)) == float(scales.FLT_MAX)


def test_without_a_tensor_scale_only_the_block_level_is_left() -> None:
    codes = scales.nvfp4_block_scale([6.0, 3.0, 6 * 500.0], np.float32(1), E2M1, E4M3)
    assert decode(codes, E4M3).tolist() == [1.0, 0.5, 448.0]
