"""`kernels.attention_decode` on every device, against float64: one piece and pages, ragged, groups, windows, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.device import Device
from nvfp.errors import ArgumentError, DTypeError, NotBuiltError, ShapeError
from nvfp.kernels.attention_decode import attention_append, attention_decode
from tests.devices import to_device, to_numpy
from tests.kernels.dense import BF16, COMPUTED, F16, F32, normal
from tests.oracles import attention_decode as oracle
from tests.tolerances import check

dtypes = pytest.mark.parametrize("dtype", COMPUTED, ids=str)
Words = tuple[np.ndarray, np.ndarray, np.ndarray]


def words(starts: Any, fresh: Any, length: int, page: int | None = None) -> tuple[Words, int, int]:
    """(table, starts, fresh), number of pages and tokens per page; pages lie scrambled, some are nobody's."""
    batch = len(starts)
    size = length if page is None else page
    each = -(-length // size)
    pages = batch * each + 2
    order = np.random.default_rng(batch + size).permutation(pages).astype(np.int32)
    table = order[: batch * each].reshape(batch, each)
    return (np.ascontiguousarray(table), np.asarray(starts, np.int32), np.asarray(fresh, np.int32)), pages, size


def caches(pages: int, size: int, groups: int, depth: int, values: int, dtype: np.dtype) -> list[np.ndarray]:
    return [normal((pages, size, groups, n), dtype, seed) for seed, n in enumerate((depth, values), 5)]


def decode(device: Device, q: np.ndarray, k: np.ndarray, v: np.ndarray, at: Words, **options: Any) -> np.ndarray:
    return to_numpy(attention_decode(*(to_device(x, device) for x in (q, k, v, *at)), **options))


def compare(device: Device, q: np.ndarray, k: np.ndarray, v: np.ndarray, at: Words, **options: Any) -> np.ndarray:
    got = decode(device, q, k, v, at, **options)
    wanted, size = oracle.attention_decode(q, k, v, *at, **options)
    assert got.dtype == q.dtype and got.flags.c_contiguous
    check(got, wanted, "attention", scale=1e-3 + size)
    assert not got[wanted == 0].any()
    return got


@pytest.mark.sanitizer
@pytest.mark.parametrize("page", [None, 4])
@dtypes
def test_values(device: Device, dtype: np.dtype, page: int | None) -> None:
    """One query per sequence of another length each, heads in groups, a sequence that only begins, one that rests."""
    at, pages, size = words([0, 5, 17, 40, 3], [1, 1, 1, 1, 0], 44, page)
    for heads, groups, depth, values in ((4, 4, 16, 16), (8, 2, 64, 64), (6, 1, 24, 40), (3, 3, 5, 7), (1, 1, 136, 8)):
        k, v = caches(pages, size, groups, depth, values, dtype)
        compare(device, normal((5, 1, heads, depth), dtype), k, v, at)


@pytest.mark.parametrize(
    "options", [{}, {"left": 6}, {"causal": False}, {"causal": False, "left": 0, "scale": 0.3}], ids=str
)
@pytest.mark.parametrize("page", [None, 8])
def test_several_queries(device: Device, page: int | None, options: dict[str, Any]) -> None:
    """Tokens behind what is cached, as many as each sequence has; the others' places give 0."""
    at, pages, size = words([0, 9, 20], [5, 3, 1], 32, page)
    k, v = caches(pages, size, 2, 16, 16, F32)
    got = compare(device, normal((3, 5, 4, 16), F32), k, v, at, **options)
    assert not got[1, 3:].any() and not got[2, 1:].any()


@pytest.mark.parametrize(("batch", "length"), [(1, 4096), (2, 1100)])
@dtypes
def test_long_caches_are_split(device: Device, dtype: np.dtype, batch: int, length: int) -> None:
    """Many blocks share the keys of a row, whatever of them the length leaves empty."""
    k, v = caches(batch + 2, length, 2, 32, 32, dtype)
    q = normal((batch, 1, 4, 32), dtype)
    for used in (1, 130, 555, length):
        at, _, _ = words([used - 1] * batch, [1] * batch, length)
        first = compare(device, q, k, v, at)
        assert first.tobytes() == decode(device, q, k, v, at).tobytes()


def test_what_lies_beyond_is_not_read(device: Device) -> None:
    at, pages, size = words([6, 2], [1, 1], 16, 4)
    k, v = caches(pages, size, 2, 16, 16, F32)
    q = normal((2, 1, 4, 16), F32)
    clean = decode(device, q, k, v, at)
    poisoned = [np.full_like(c, np.nan) for c in (k, v)]
    for b, length in enumerate((7, 3)):
        for i in range(length):
            for c, p in zip((k, v), poisoned, strict=True):
                p[at[0][b, i // 4], i % 4] = c[at[0][b, i // 4], i % 4]
    assert decode(device, q, *poisoned, at).tobytes() == clean.tobytes()


def test_pages_do_not_matter(device: Device) -> None:
    """The same tokens in one piece and in scattered pages: the same bits."""
    starts, fresh, length = [30, 11], [1, 1], 48
    one, _, _ = words(starts, fresh, length)
    at, pages, size = words(starts, fresh, length, 16)
    k, v = caches(pages, size, 2, 16, 16, BF16)
    whole = [np.zeros((4, length, 2, 16), BF16) for _ in range(2)]
    for b in range(2):
        for c, w in zip((k, v), whole, strict=True):
            w[one[0][b, 0]] = oracle.gathered(c, at[0][b], length)
    q = normal((2, 1, 4, 16), BF16)
    assert decode(device, q, k, v, at).tobytes() == decode(device, q, *whole, one).tobytes()


def test_any_strides_of_q(device: Device) -> None:
    at, pages, size = words([6, 2], [1, 1], 16, 4)
    k, v = caches(pages, size, 2, 16, 16, F32)
    wide = normal((2, 1, 4, 3, 16), F32)
    q = to_device(wide, device)[:, :, :, 1]
    got = attention_decode(q, *(to_device(x, device) for x in (k, v, *at)))
    assert to_numpy(got).tobytes() == decode(device, np.ascontiguousarray(wide[:, :, :, 1]), k, v, at).tobytes()


def test_infinite_and_nan_scores(device: Device) -> None:
    """-inf has no weight; NaN and inf give NaN, in their own row only."""
    at, pages, size = words([3], [1], 4)
    k, v = np.zeros((pages, size, 1, 1), F32), normal((pages, size, 1, 2), F32)
    row = k[at[0][0, 0], :, 0, 0]
    row[:] = [-np.inf, 0, 0, 0]
    q = np.ones((1, 1, 2, 1), F32)
    got = decode(device, q, k, v, at, scale=1.0)
    np.testing.assert_allclose(got[0, 0, 0], v[at[0][0, 0], 1:, 0].mean(0), rtol=1e-6)
    q[0, 0, 1] = np.nan
    got = decode(device, q, k, v, at, scale=1.0)
    assert np.isfinite(got[0, 0, 0]).all() and np.isnan(got[0, 0, 1]).all()


@pytest.mark.sanitizer
@dtypes
def test_append(device: Device, dtype: np.dtype) -> None:
    """New tokens go to their places and nowhere else; slices of a fused buffer are read where they lie."""
    for page, depth, values in ((None, 16, 16), (4, 16, 8), (3, 5, 7)):
        at, pages, size = words([0, 5, 8], [6, 1, 0], 12, page)
        k, v = caches(pages, size, 2, depth, values, dtype)
        fused = normal((3, 6, 2, depth + values), dtype, seed=9)
        new = fused[..., :depth], fused[..., depth:]
        held = [to_device(c.copy(), device) for c in (k, v)]
        buffer = to_device(fused, device)
        attention_append(buffer[..., :depth], buffer[..., depth:], *held, *(to_device(w, device) for w in at))
        for c, n, h in zip((k, v), new, held, strict=True):
            assert to_numpy(h).tobytes() == oracle.append(n, c, *at).tobytes()


@given(data=st.data(), dtype=st.sampled_from(COMPUTED))
def test_any_problem(device: Device, data: st.DataObject, dtype: np.dtype) -> None:
    batch, queries = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    groups, share = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 5))
    depth, values = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 20))
    starts = data.draw(st.lists(st.integers(0, 9), min_size=batch, max_size=batch))
    fresh = data.draw(st.lists(st.integers(0, 3), min_size=batch, max_size=batch))
    at, pages, size = words(starts, fresh, 12, data.draw(st.sampled_from((None, 1, 5))))
    k, v = caches(pages, size, groups, depth, values, dtype)
    options = {"causal": data.draw(st.booleans()), "left": data.draw(st.integers(-1, 4))}
    compare(device, normal((batch, queries, groups * share, depth), dtype), k, v, at, **options)


def test_what_does_not_fit(device: Device) -> None:
    at, pages, size = words([3, 4], [1, 1], 8)
    k, v = caches(pages, size, 2, 16, 16, F32)
    q = normal((2, 1, 4, 16), F32)
    for error, match, args, options in (
        (DTypeError, "one dtype", (q.astype(F16), k, v, *at), {}),
        (DTypeError, "float32, bfloat16", (q.astype(np.float64), k, v, *at), {}),
        (ShapeError, "heads of 16 elements", (q[..., :8].copy(), k, v, *at), {}),
        (ShapeError, "divide those of q", (q[:, :, :3].copy(), k, v, *at), {}),
        (ShapeError, r"table int32 \[B', M\]", (q, k, v, at[0][:1].copy(), *at[1:]), {}),
        (ShapeError, r"table int32 \[B', M\]", (q, k, v, at[0].astype(np.int64), *at[1:]), {}),
        (ShapeError, "caches", (q, k, v[:1].copy(), *at), {}),
        (ShapeError, "contiguous last axis", (normal((2, 1, 4, 32), F32)[..., ::2], k, v, *at), {}),
        (ArgumentError, "left of at least -1", (q, k, v, *at), {"left": -2}),
        (ArgumentError, "finite float32 scale", (q, k, v, *at), {"scale": np.inf}),
    ):
        with pytest.raises(error, match=match):
            attention_decode(*(to_device(x, device) for x in args), **options)
    deep = np.zeros((2, 1, 1, 520), F32), *(np.zeros((pages, size, 1, 520), F32) for _ in range(2))
    with pytest.raises(NotBuiltError, match="at most 512"):
        attention_decode(*(to_device(x, device) for x in (*deep, *at)))
    with pytest.raises(ShapeError, match="num_heads_kv"):
        attention_append(*(to_device(x, device) for x in (q, q, k, v, *at)))
    new = normal((2, 1, 2, 16), F32)
    with pytest.raises(ShapeError, match="one projection"):
        attention_append(*(to_device(x, device) for x in (new, new[:1].copy(), k, v, *at)))
