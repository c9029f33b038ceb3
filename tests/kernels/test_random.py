"""`random`: known answers of Philox, every draw against Python's integers, and its statistics."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.device import Device
from nvfp.errors import ArgumentError, DTypeError, NvfpError
from nvfp.kernels.cpu._philox import fill_words
from nvfp.kernels.cuda._launch import count_launches
from nvfp.kernels.random import random
from tests.devices import to_device, to_numpy
from tests.oracles import random as oracle
from tests.tolerances import check

BF16, F16, F32, F64 = (np.dtype(t) for t in (ml_dtypes.bfloat16, np.float16, np.float32, np.float64))
FLOATS, UINT32 = (F32, BF16, F16, F64), np.dtype(np.uint32)
KEY = 0xA4093822_299F31D0
# Counter, key, words: Random123's own vectors (kat_vectors).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def draw(kind: Any, shape: tuple[int, ...], dtype: Any, device: Device, **more: Any) -> np.ndarray:
    return to_numpy(random(kind, shape, dtype=np.dtype(dtype), device=device, **{"key": KEY, "ordinal": 5, **more}))


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]) -> None:
    assert oracle.philox(counter, key) == words  # type: ignore[arg-type]
    out = np.empty((1, 4), np.uint32)
    first, whole = np.uint64(counter[0] | counter[1] << 32), np.uint64(key[0] | key[1] << 32)
    fill_words(out, first, np.uint32(counter[2]), np.uint32(counter[3]), whole)
    assert tuple(out[0].tolist()) == words


def test_known_answer_of_a_draw(device: Device) -> None:
    assert draw("bits", (4,), UINT32, device, key=0, ordinal=0).tolist() == list(KNOWN[0][2])
    # ordinal and lane make the counter's third word, the step its fourth
    words = draw("bits", (4,), UINT32, device, ordinal=0x13198A2E // 4, lane=0x13198A2E % 4, step=0x03707344)
    assert words.tolist() == list(oracle.philox((0, 0, 0x13198A2E, 0x03707344), (KEY & 0xFFFFFFFF, KEY >> 32)))


@pytest.mark.sanitizer
@pytest.mark.parametrize("shape", [(), (1,), (3,), (4,), (5,), (3, 7), (2, 0), (33, 65)])
def test_every_kind(shape: tuple[int, ...], device: Device) -> None:
    n = math.prod(shape)
    where = {"lane": 2, "step": 9}
    bits = [oracle.word(e, KEY, 5, **where) for e in range(n)]
    found = draw("bits", shape, UINT32, device, **where)
    assert found.shape == shape
    assert found.ravel().tolist() == bits
    units = np.array([oracle.unit(w, double=False) for w in bits], F64)
    assert np.array_equal(draw("uniform", shape, F32, device, **where).ravel(), units)
    doubles = [oracle.unit(w, double=True) for w in bits]
    assert draw("uniform", shape, F64, device, **where).ravel().tolist() == doubles
    for low, high, dtype in ((-5, 9, "int8"), (0, 2**32, "int64"), (-(2**63), 2**63, "int64"), (3, 2**40, "uint64")):
        expected = [oracle.integer(e, KEY, 5, low, high, **where) for e in range(n)]
        assert draw("integers", shape, dtype, device, low=low, high=high, **where).ravel().tolist() == expected
    for dtype in FLOATS:
        z = np.array([oracle.normal(e, KEY, 5, dtype == F64, **where) for e in range(n)], F64)
        found = draw("normal", shape, dtype, device, low=0.5, high=2.0, **where)
        check(found.ravel(), 0.5 + 2 * z, "normal", dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_uniform_rounds_once_and_stays_below(dtype: np.dtype, device: Device) -> None:
    low, high = -1.3, 2.7
    found = draw("uniform", (20_000,), dtype, device, low=low, high=high)
    assert found.astype(F64).max() < high
    real = np.float64 if dtype == F64 else np.float32
    bits = draw("bits", (20_000,), UINT32, device)
    unit = (bits + 0.5) / 2**32 if dtype == F64 else (bits >> 8).astype(F32) * np.float32(2.0**-24)
    values = real(low) + unit.astype(real) * real(high - low)
    most = np.nextafter(np.asarray(high).astype(dtype), np.asarray(-np.inf, dtype))
    if float(np.asarray(high).astype(dtype)) < high:
        most = np.asarray(high).astype(dtype)
    assert np.array_equal(found, np.minimum(values, real(most)).astype(dtype))
    ones = draw("uniform", (200_000,), dtype, device)
    assert ones.astype(F64).min() >= 0
    assert ones.astype(F64).max() < 1
    assert float(draw("uniform", (), dtype, device, low=2.0, high=2.0)) == 2.0


def test_independent_of_shape_and_repeatable(device: Device) -> None:
    flat = draw("normal", (600_000,), F32, device)
    assert np.array_equal(draw("normal", (600, 1000), F32, device).ravel(), flat)
    assert np.array_equal(draw("normal", (1001,), F32, device), flat[:1001])


def test_streams_differ(device: Device) -> None:
    base = draw("bits", (64,), UINT32, device)
    for other in ({"key": KEY + 1}, {"key": KEY ^ 1 << 63}, {"ordinal": 6}, {"lane": 1}, {"step": 1}):
        assert (draw("bits", (64,), UINT32, device, **other) == base).mean() < 0.1


def test_step_in_device_memory(device: Device) -> None:
    for dtype in (np.int32, np.uint32):
        word = to_device(np.asarray(7, dtype), device)
        assert np.array_equal(draw("bits", (9,), UINT32, device, step=word), draw("bits", (9,), UINT32, device, step=7))


def test_groups_beyond_32_bits() -> None:
    out = np.empty((3, 4), np.uint32)
    fill_words(out, np.uint64(2**32 - 1), np.uint32(20), np.uint32(0), np.uint64(KEY))
    assert out.ravel().tolist() == [oracle.word(4 * (2**32 - 1) + i, KEY, 5) for i in range(12)]


@given(low=st.integers(-128, 127), span=st.integers(1, 256), key=st.integers(0, 2**64 - 1))
def test_integers_stay_inside(low: int, span: int, key: int, device: Device) -> None:
    high = min(low + span, 128)
    found = draw("integers", (300,), np.int8, device, low=low, high=high, key=key)
    assert low <= found.min()
    assert found.max() < high


@pytest.mark.parametrize("dtype", (F32, F64), ids=str)
def test_statistics(dtype: np.dtype, device: Device) -> None:
    n = 1_000_000
    u = draw("uniform", (n,), dtype, device).astype(F64)
    assert abs(u.mean() - 0.5) < 5 * math.sqrt(1 / 12 / n)
    assert abs(u.var() - 1 / 12) < 5 * math.sqrt(1 / 180 / n)
    assert _chi_square(np.histogram(u, 256, (0, 1))[0]) < 5
    z = draw("normal", (n,), dtype, device).astype(F64)
    assert abs(z.mean()) < 5 / math.sqrt(n)
    assert abs(z.var() - 1) < 5 * math.sqrt(2 / n)
    assert abs((z**3).mean()) < 5 * math.sqrt(15 / n)
    assert abs((z**4).mean() - 3) < 5 * math.sqrt(96 / n)
    cells = np.histogram([0.5 * math.erfc(-v / math.sqrt(2)) for v in z[:200_000].tolist()], 64, (0, 1))[0]
    assert _chi_square(cells) < 5
    assert abs((z[0::2] * z[1::2]).mean()) < 5 / math.sqrt(n / 2)  # the two of a pair


def test_integers_are_even(device: Device) -> None:
    found = draw("integers", (1_000_000,), np.int32, device, low=0, high=1000)
    assert _chi_square(np.bincount(found, minlength=1000)) < 5
    bits = draw("bits", (100_000,), UINT32, device)
    ones = [int((bits >> np.uint32(i) & np.uint32(1)).sum()) for i in range(32)]
    assert max(abs(count - 50_000) for count in ones) < 5 * math.sqrt(25_000)


def _chi_square(counts: np.ndarray) -> float:
    """Deviations of the chi-square statistic of equally likely cells from its mean."""
    expected = counts.sum() / counts.size
    statistic = float(((counts - expected) ** 2).sum() / expected)
    return (statistic - (counts.size - 1)) / math.sqrt(2 * (counts.size - 1))


@pytest.mark.gpu
def test_cuda_equals_cpu_beyond_one_grid() -> None:
    for kind, dtype in (("bits", UINT32), ("uniform", BF16), ("integers", np.dtype(np.int64))):
        with count_launches() as count:
            found = random(kind, (9_000_001,), dtype=dtype, key=3, ordinal=1, high=1000, device="cuda")  # type: ignore[arg-type]
        assert count.n == 1
        expected = random(kind, (9_000_001,), dtype=dtype, key=3, ordinal=1, high=1000)  # type: ignore[arg-type]
        assert np.array_equal(to_numpy(found), expected)


def test_errors() -> None:
    good: dict[str, Any] = {"dtype": F32, "key": 0, "ordinal": 0}
    cases: list[tuple[type[NvfpError], str, dict[str, Any]]] = [
        (ArgumentError, "gamma", {}),
        (ArgumentError, "uniform", {"key": -1}),
        (ArgumentError, "uniform", {"key": 2**64}),
        (ArgumentError, "uniform", {"ordinal": 2**30}),
        (ArgumentError, "uniform", {"lane": 4}),
        (ArgumentError, "uniform", {"step": 2**32}),
        (ArgumentError, "uniform", {"low": 2.0, "high": 1.0}),
        (ArgumentError, "uniform", {"high": math.inf}),
        (ArgumentError, "normal", {"high": -1.0}),
        (ArgumentError, "integers", {"dtype": np.dtype(np.int8), "low": 0, "high": 129}),
        (ArgumentError, "integers", {"dtype": np.dtype(np.int8), "low": 3, "high": 3}),
        (ArgumentError, "integers", {"dtype": np.dtype(np.int32), "low": 0.5, "high": 3}),
        (DTypeError, "uniform", {"dtype": np.dtype(np.int32)}),
        (DTypeError, "integers", {"dtype": F32, "high": 5}),
        (DTypeError, "integers", {"dtype": np.dtype(np.bool_), "high": 2}),
        (DTypeError, "bits", {}),
        (DTypeError, "uniform", {"step": np.zeros(2, np.int32)}),
        (DTypeError, "uniform", {"step": np.asarray(0.0, F32)}),
    ]
    for error, kind, more in cases:
        with pytest.raises(error, match=r"^\[\w+\] expected .*, got .*; "):
            random(kind, (3,), **{**good, **more})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError):
        random("uniform", (-1,), **good)
