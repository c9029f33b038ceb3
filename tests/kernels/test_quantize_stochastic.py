"""Rounding by random numbers and toward zero: the exact twin's bits, and the chances that the rule promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes import elements as el
from nvfp.dtypes.block import quantize_exact
from nvfp.dtypes.codec import decode, encode
from nvfp.dtypes.elements import ELEMENTS, Element
from nvfp.dtypes.formats import QuantDType, fp8_e4m3, fp8_e4m3_b128, mxfp8_e4m3, nvfp4
from nvfp.dtypes.packing import unpack
from nvfp.dtypes.stochastic import COL_LANE, ROW_LANE, encode_random, random_bits, random_numbers
from nvfp.kernels._stochastic import Rng
from nvfp.kernels.dropout import advance_steps
from nvfp.kernels.quantize import quantize
from tests.devices import to_device, to_numpy
from tests.kernels.quantized import BF16, BUILT, F32, F64, MADE, check_operand, nvfp4_2d, values
from tests.oracles.random import word

KEY, ORDINAL, STEP = 0x0123456789ABCDEF, 3, 5
NARROW = [e for e in ELEMENTS.values() if e.bits <= 8 and e.signed]
by_name: dict[str, Any] = {"ids": lambda row: row.name}


def rng_on(device: Device, *, key: int = KEY, ordinal: int = ORDINAL, step: int = STEP) -> Rng:
    return Rng(key, ordinal, to_device(np.asarray(step, np.int64), device))


def numbers(shape: tuple[int, ...], fmt: QuantDType, lane: int, **place: int) -> np.ndarray:
    return random_numbers(shape, fmt.element, lane=lane, **{"key": KEY, "ordinal": ORDINAL, "step": STEP, **place})


def check_both(x: np.ndarray, fmt: QuantDType, pair: Any, **place: int) -> None:
    options: dict[str, Any] = {"rounding": "stochastic"}
    row = quantize_exact(x, fmt, axis=1, random=numbers(x.shape, fmt, ROW_LANE, **place), **options)
    lane = ROW_LANE if fmt.square else COL_LANE
    col = quantize_exact(x, fmt, axis=0, random=numbers(x.shape, fmt, lane, **place), **options)
    check_operand(pair.row, row, fmt, 1)
    check_operand(pair.col, col, fmt, 0, swap=True)


def test_random_numbers() -> None:
    """Where the bits of an element come from, element by element with Python integers."""
    for element, per_word in ((el.float4_e2m1fn, 4), (el.float8_e4m3fn, 2)):
        bits = random_bits(element)
        got = random_numbers((3, 11), element, key=KEY, ordinal=7, lane=1, step=2**32 + 9).ravel()
        for e, r in enumerate(got):
            wide = word(4 * (e // (4 * per_word)) + e % (4 * per_word) // per_word, KEY, 7, lane=1, step=9)
            assert r == wide >> bits * (e % per_word) & ((1 << bits) - 1)


@pytest.mark.parametrize(
    ("t", "counts"),
    [(0.0009765625, {0: 256}), (0.001953125, {0: 255, 0.5: 1}), (0.3125, {0: 96, 0.5: 160}), (1.75, {1.5: 128, 2: 128}),
     (-2.1875, {-2: 208, -3: 48}), (5, {4: 128, 6: 128}), (5.9921875, {4: 1, 6: 255}), (6.5, {6: 256}),
     (np.inf, {6: 256}), (np.nan, {6: 256})],
)  # fmt: skip
def test_rule_of_transformer_engine(t: float, counts: dict[float, int]) -> None:
    """The table of its 8-bit rule, over all 256 numbers."""
    found = decode(encode_random(np.full(256, t), el.float4_e2m1fn, np.arange(256)), el.float4_e2m1fn)
    assert {float(v): int(n) for v, n in zip(*np.unique(found, return_counts=True), strict=True)} == counts


@pytest.mark.parametrize("element", NARROW, **by_name)
def test_exact_rule(element: Element) -> None:
    """Numbers of the grid stay; 0 cuts toward zero; the others lie at a neighbour, up with floor(2**B f) of 2**B."""
    codes = np.arange(1 << element.bits, dtype=element.storage)
    grid = decode(codes, element)
    top = (1 << random_bits(element)) - 1
    exact = np.isfinite(grid)
    for r in (0, top):
        again = decode(encode_random(grid[exact], element, np.full(exact.sum(), r)), element)
        np.testing.assert_array_equal(again, grid[exact])
    x = np.concatenate([values("wide", (4000,)), values("normal", (4000,)) * 3, values("huge", (50,))])
    cut = encode_random(x, element, np.zeros(x.shape, int))
    np.testing.assert_array_equal(cut, encode(x, element, rounding="toward_zero"))
    magnitudes = np.unique(np.abs(grid[exact]))
    inside = np.abs(x) < element.max
    a = np.abs(x[inside].astype(F64))
    low = magnitudes[np.searchsorted(magnitudes, a, side="right") - 1]
    high = magnitudes[np.searchsorted(magnitudes, a, side="right")]
    chance = (a - low) / (high - low)
    for r in (0, 1, top // 3, top):
        up = np.abs(decode(encode_random(x[inside], element, np.full(inside.sum(), r)), element)) > low
        wanted = r >= (1 - chance) * (top + 1)
        differs = up != wanted
        assert np.abs((top + 1 - r) - chance[differs] * (top + 1)).max(initial=0) < 2.0**-7  # s is rounded to float32


@pytest.mark.sanitizer
@pytest.mark.parametrize("fmt", [*BUILT, *MADE], **by_name)
def test_bits(device: Device, fmt: QuantDType) -> None:
    for kind, shape in (("normal", (64, 128)), ("nonfinite", (40, 33)), ("wide", (70, 200)), ("ties", (1, 5))):
        for dtype in (F32, BF16):
            x = values(kind, shape, dtype)
            pair = quantize(to_device(x, device), fmt, col=True, rounding="stochastic", rng=rng_on(device))
            check_both(x, fmt, pair)


@pytest.mark.parametrize("fmt", [fp8_e4m3, fp8_e4m3_b128, mxfp8_e4m3, nvfp4, nvfp4_2d], **by_name)
def test_layouts_sides_and_places(device: Device, fmt: QuantDType) -> None:
    x = values("normal", (48, 70), BF16)
    for view in (x.T, x[::-1, ::2], x[1:, 3:]):
        pair = quantize(to_device(view, device), fmt, col=True, rounding="stochastic", rng=rng_on(device))
        check_both(view, fmt, pair)
    on = to_device(x, device)
    both = quantize(on, fmt, col=True, rounding="stochastic", rng=rng_on(device))
    for sides in ({"row": True, "col": False}, {"row": False, "col": True}):
        alone = quantize(on, fmt, rounding="stochastic", rng=rng_on(device), **sides)
        for one, two in ((alone.row, both.row), (alone.col, both.col)):
            if one is not None:
                assert two is not None
                np.testing.assert_array_equal(to_numpy(one.codes), to_numpy(two.codes))
    for place in ({"key": 2**64 - 1}, {"ordinal": 2**30 - 1}, {"step": 2**32 + 17}):
        pair = quantize(on, fmt, col=True, rounding="stochastic", rng=rng_on(device, **place))
        check_both(x, fmt, pair, **place)
    cube = values("normal", (3, 40, 5))
    if (fmt.block_shape or (1, 1))[0] == 1:
        side = quantize(to_device(cube, device), fmt, axis=1, rounding="stochastic", rng=rng_on(device)).row
        assert side is not None
        exact = quantize_exact(
            cube, fmt, axis=1, rounding="stochastic", random=numbers(cube.shape, fmt, ROW_LANE)
        )  # fmt: skip
        check_operand(side, exact, fmt, 1)


def test_with_rotation(device: Device) -> None:
    """Dy of NVFP4's recipe: the elements of the rotated column copy are counted in the rotated matrix."""
    x = values("normal", (40, 32), BF16)
    pair = quantize(
        to_device(x, device), nvfp4, col=True, rotation="rht16", rounding="stochastic", rng=rng_on(device)
    )  # fmt: skip
    assert pair.col is not None
    random = numbers((48, 32), nvfp4, COL_LANE)
    exact = quantize_exact(x, nvfp4, axis=0, rotation="rht16", rounding="stochastic", random=random)
    check_operand(pair.col, exact, nvfp4, 0, swap=True)


@pytest.mark.parametrize("fmt", [*BUILT, *MADE], **by_name)
def test_toward_zero(device: Device, fmt: QuantDType) -> None:
    for kind, shape in (("normal", (64, 80)), ("nonfinite", (40, 33))):
        x = values(kind, shape, BF16)
        pair = quantize(to_device(x, device), fmt, col=True, rounding="toward_zero")
        check_operand(pair.row, quantize_exact(x, fmt, axis=1, rounding="toward_zero"), fmt, 1)
        check_operand(pair.col, quantize_exact(x, fmt, axis=0, rounding="toward_zero"), fmt, 0, swap=True)


@pytest.mark.parametrize("fmt", [BUILT[0], BUILT[1], nvfp4], **by_name)
def test_toward_zero_beyond_the_largest_code(device: Device, fmt: QuantDType) -> None:
    """A finite number stays finite, whatever ``overflow`` says; an infinity follows it."""
    x = values("nonfinite", (40, 33), BF16)
    options: dict[str, Any] = {"scale": np.array(1e5, np.float32)} if fmt.block is None else {}
    there = {name: to_device(word, device) for name, word in options.items()}
    pair = quantize(to_device(x, device), fmt, rounding="toward_zero", overflow="nonsat", **there)
    check_operand(
        pair.row, quantize_exact(x, fmt, axis=1, rounding="toward_zero", overflow="nonsat", **options), fmt, 1
    )


def at_scale_one(
    x: np.ndarray, device: Device, element: Element, *, overflow: str = "saturate", decoded: bool = True
) -> np.ndarray:
    """Values (or unpacked codes) of ``x`` rounded by random numbers, under one scale that is 1."""
    fmt = QuantDType(element=element, block=None, scale="float32", nonfinite="saturate")
    one, rng = to_device(np.ones((), F32), device), rng_on(device)
    side = quantize(to_device(x, device), fmt, scale=one, rounding="stochastic", rng=rng, overflow=overflow).row  # type: ignore[arg-type]
    assert side is not None
    codes = to_numpy(side.codes)
    codes = unpack(codes, x.shape[1]) if element.packed else codes
    return decode(codes, element) if decoded else codes


@pytest.mark.parametrize("element", NARROW, **by_name)
def test_every_cell(device: Device, element: Element) -> None:
    """Between every two neighbours, subnormal and next to the largest: chi-square of the counts, mean error < 3 sigma.

    Positions are whole 256ths of a cell, so that both 8 and 16 bits give them their exact chances.
    """
    grid = decode(np.arange(element.max_code + 1, dtype=element.storage), element)
    low, high = grid[:-1, None], grid[1:, None]
    part = np.random.default_rng(0).integers(1, 256, (low.size, 2048))
    sign = np.where(np.arange(2048) % 2, -1.0, 1.0)
    x = (sign * (low + (high - low) * (part / 256))).astype(F32)
    got = sign * at_scale_one(x, device, element)
    assert ((got == low) | (got == high)).all()
    up, chance = got == high, part / 256
    spread = chance * (1 - chance)
    bins = part[..., None] // 16 == np.arange(16)
    off = ((up - chance)[..., None] * bins).sum(1) ** 2 / (spread[..., None] * bins).sum(1)
    chi = off.sum(1)
    assert chi.max() < 62 and chi.min() > 1, "16 bins: one in a million lies beyond either"
    assert abs(chi.sum() - 16 * chi.size) < 4 * np.sqrt(32 * chi.size)
    error = (up - chance).sum(1) / np.sqrt(spread.sum(1))
    assert abs((up - chance).sum()) < 3 * np.sqrt(spread.sum())
    assert np.abs(error).max() < 4.5 and (np.abs(error) > 3).sum() <= 2


@pytest.mark.parametrize("element", NARROW, **by_name)
def test_what_needs_no_rounding_takes_none(device: Device, element: Element) -> None:
    """Numbers of the grid, zeros of both signs, NaN, infinities and what lies far beyond: as if rounded to nearest."""
    grid = decode(np.arange(1 << element.bits, dtype=element.storage), element)
    odd = [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 4 * element.max, -4 * element.max, 3e38, -3e38]
    x = np.tile(np.concatenate([grid, odd]).astype(F32), (64, 1))
    for overflow in ("saturate", "nonsat"):
        codes = at_scale_one(x, device, element, overflow=overflow, decoded=False)
        np.testing.assert_array_equal(codes, encode(x, element, overflow=overflow))  # type: ignore[arg-type]


def test_half_way_to_infinity(device: Device) -> None:
    """Without saturation a number between the largest one and the next overflows by its chance; else it never does."""
    x = np.full((128, 128), 61440.0, F32)  # 57344, then 65536
    for overflow, share in (("saturate", 0.0), ("nonsat", 0.5)):
        got = at_scale_one(x, device, el.float8_e5m2, overflow=overflow)
        assert set(np.unique(got)) <= {57344.0, np.inf}
        assert abs(np.isinf(got).mean() - share) <= 3 * np.sqrt(share * (1 - share) / x.size)


def test_streams_differ(device: Device) -> None:
    """Row and column, calls and steps agree about as often as independent draws; the word is read by the kernel."""
    x = to_device(np.full((128, 128), 2.5, F32), device)
    tensor = to_device(np.asarray(1 / 2688, F32), device)
    options: dict[str, Any] = {"rounding": "stochastic", "tensor_scale": tensor, "col": True}

    def ups(place: Rng) -> list[np.ndarray]:
        pair = quantize(x, nvfp4, rng=place, **options)
        sides = [unpack(to_numpy(side.codes), 128) for side in (pair.side("row"), pair.side("col"))]
        return [sides[0] == sides[0].max(), (sides[1] == sides[1].max()).T]

    step = rng_on(device)
    found = [*ups(step), *ups(rng_on(device, ordinal=4)), *ups(rng_on(device, step=6)), *ups(rng_on(device, key=1))]
    share = found[0].mean()
    for i, a in enumerate(found):
        for b in found[:i]:
            same = (a == b).mean()
            assert abs(same - (share**2 + (1 - share) ** 2)) < 0.04
    advance_steps([step.step])
    np.testing.assert_array_equal(ups(step)[0], found[4])


@pytest.mark.parametrize("threads", ["1", "3"])
def test_threads(monkeypatch: pytest.MonkeyPatch, threads: str) -> None:
    x = values("normal", (300, 500))
    monkeypatch.setenv("NVFP_NUM_THREADS", threads)
    check_both(x, nvfp4, quantize(x, nvfp4, col=True, rounding="stochastic", rng=rng_on(Device("cpu"))))


def test_what_does_not_fit(device: Device) -> None:
    x = to_device(np.ones((4, 32), F32), device)
    step = to_device(np.zeros((), np.int64), device)
    with pytest.raises(ValueError, match=r"rng=\(key, ordinal, step\)"):
        quantize(x, nvfp4, rounding="stochastic")
    with pytest.raises(ValueError, match="rounding='stochastic' with rng"):
        quantize(x, nvfp4, rng=Rng(0, 0, step))
    with pytest.raises(ValueError, match="rounding out of"):
        quantize(x, nvfp4, rounding="up")  # type: ignore[arg-type]
    for key, ordinal in ((-1, 0), (2**64, 0), (0, 2**30), (0, True), (0.5, 0)):
        with pytest.raises(ValueError, match=r"0 <= (key|ordinal)"):
            quantize(x, nvfp4, rounding="stochastic", rng=Rng(key, ordinal, step))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="step as an int64"):
        quantize(x, nvfp4, rounding="stochastic", rng=Rng(0, 0, 0))
