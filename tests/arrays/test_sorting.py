"""Order, distinct elements, places and running sums against array-api-strict, over dtypes and devices."""

from __future__ import annotations

from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import nvfp as nf
from nvfp.autograd import check_grads
from nvfp.errors import ArgumentError, DTypeError, GradientError, ShapeError

FLOATS = ["float32", "bfloat16", "float16", "float64"]
DTYPES = [*FLOATS, "int32", "uint8", "int64", "bool"]


def values(shape: tuple[int, ...], dtype: str, seed: int = 0, nan: bool = False) -> np.ndarray:
    """Small integers with repetitions (every dtype holds them), and NaN if wanted."""
    a = np.random.default_rng(seed).integers(0, 6, shape).astype(np.float64)
    if nan and dtype in FLOATS:
        a[a == 3] = np.nan
    return a.astype(nf.result_type(dtype))


def wide(a: np.ndarray) -> Any:
    """What strict computes with: 16-bit floats as float32."""
    return strict.asarray(a.astype(np.float32) if a.dtype.itemsize == 2 and a.dtype.kind in "fV" else a)


def same(got: Any, expected: Any, dtype: Any = None) -> None:
    e = np.asarray(expected)
    assert got.shape == e.shape and got.dtype == (e.dtype if dtype is None else dtype)
    np.testing.assert_array_equal(np.asarray(got).astype(np.float64), e.astype(np.float64))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sort_and_argsort(dtype: str, descending: bool, device: Any) -> None:
    a = values((5, 7), dtype, nan=True)
    x = nf.asarray(a)
    for axis in (0, -1):
        if dtype == "bool":
            same(
                nf.sort(x, axis=axis, descending=descending),
                np.flip(np.sort(a, axis), axis) if descending else np.sort(a, axis),
            )
            continue
        s = wide(a)
        same(nf.sort(x, axis=axis, descending=descending), strict.sort(s, axis=axis, descending=descending), x.dtype)
        same(nf.argsort(x, axis=axis, descending=descending), strict.argsort(s, axis=axis, descending=descending))
    same(nf.sort(x, axis=None), np.sort(np.asarray(wide(a)), axis=None), x.dtype)
    assert nf.sort(x).device == device and nf.argsort(x.T).dtype == nf.int64


@pytest.mark.parametrize("dtype", DTYPES)
def test_sets_and_places(dtype: str, device: Any) -> None:
    a = values((4, 5), dtype)
    x, s = nf.asarray(a), wide(a)
    found, expected = nf.unique_all(x), strict.unique_all(s)
    same(found.values, expected.values, x.dtype)
    for name in ("indices", "inverse_indices", "counts"):
        same(getattr(found, name), getattr(expected, name))
    same(nf.unique_values(x), expected.values, x.dtype)
    same(nf.unique_counts(x).counts, expected.counts)
    same(nf.unique_inverse(x).inverse_indices, expected.inverse_indices)
    for mine, theirs in zip(nf.nonzero(x), strict.nonzero(s), strict=True):
        same(mine, theirs)
    same(nf.flatnonzero(x), np.flatnonzero(np.asarray(s)))
    same(nf.argwhere(x), np.argwhere(np.asarray(s)))
    same(nf.count_nonzero(x, axis=1), strict.count_nonzero(s, axis=1))
    if dtype != "bool":
        n = np.asarray(s)  # strict takes integers only
        same(nf.isin(x, x[0, :2]), np.isin(n, n[0, :2]))
        same(nf.isin(x, 2, invert=True), np.isin(n, 2, invert=True))


def test_unique_is_numpy_s_and_nan_counts_there_as_one() -> None:
    a = np.array([[3.0, np.nan], [np.nan, 3.0]], np.float32)
    x = nf.asarray(a)
    for mine, theirs in zip(nf.unique(x, True, True, True), np.unique(a, True, True, True), strict=True):
        np.testing.assert_array_equal(np.asarray(mine), theirs)
    assert nf.unique(x).size == 2 and nf.unique(x, equal_nan=False).size == 3 and nf.unique_values(x).size == 3
    np.testing.assert_array_equal(np.asarray(np.unique(x)), np.unique(a))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool"])
def test_searchsorted_and_digitize(dtype: str, device: Any) -> None:
    edges, a = np.array([1, 2, 4]).astype(nf.result_type(dtype)), values((3, 4), dtype)
    x, e = nf.asarray(a), nf.asarray(edges)
    for side in ("left", "right"):
        same(nf.searchsorted(e, x, side=side), strict.searchsorted(wide(edges), wide(a), side=side))
    shuffled = nf.asarray(edges[[2, 0, 1]])
    same(
        nf.searchsorted(shuffled, x, sorter=nf.argsort(shuffled)),
        np.searchsorted(np.asarray(wide(edges)), np.asarray(wide(a))),
    )
    for right in (False, True):
        same(nf.digitize(x, e, right), np.digitize(np.asarray(wide(a)), np.asarray(wide(edges)), right))
        same(nf.digitize(x, nf.flip(e), right), np.digitize(np.asarray(wide(a)), np.asarray(wide(edges))[::-1], right))
    same(nf.searchsorted(e, 3), np.searchsorted(edges.astype(np.float64), 3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_running_sums_and_products(dtype: str, device: Any) -> None:
    a = values((3, 6), dtype)
    x, s = nf.asarray(a), np.asarray(wide(a))
    for name, f in (("cumulative_sum", np.cumsum), ("cumulative_prod", np.cumprod)):
        kind = f(s[:1, :1]).dtype if dtype not in FLOATS else x.dtype
        same(getattr(nf, name)(x, axis=1), f(s, axis=1).astype(kind), kind)
        longer = getattr(nf, name)(x, axis=0, include_initial=True)
        same(longer[1:], f(s, axis=0).astype(kind), kind)
        assert longer[0].tolist() == [float(name.endswith("prod"))] * 6
        assert getattr(nf, name)(x, axis=1, dtype=nf.float64).dtype is nf.float64
    for got, expected in ((nf.cumsum(x), np.cumsum(s)), (x.cumprod(0), np.cumprod(s, 0))):
        kind = x.dtype if dtype in FLOATS else expected.dtype
        same(got, expected.astype(kind), kind)
    assert nf.cumsum(x).device == device


def test_running_sums_of_16_bit_floats_do_not_stall(device: Any) -> None:
    """In bfloat16 itself the sum of tenths stops at 32."""
    total = nf.cumulative_sum(nf.full((4096,), 0.1, dtype=nf.bfloat16))
    assert (
        float(total[-1]) == 410 and float(nf.cumulative_prod(nf.full((64,), 1.01, dtype=nf.bfloat16))[-1]) == 1.6484375
    )


@settings(max_examples=20)
@given(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6), st.integers(0, 2**32 - 1), st.data())
def test_drawn_shapes_and_strides(shape: tuple[int, ...], seed: int, data: Any) -> None:
    a = (np.random.default_rng(seed).integers(-9, 10, shape) / 2).astype(np.float32)
    axis = data.draw(st.integers(-a.ndim, a.ndim - 1))
    view = a[..., ::-1] if data.draw(st.booleans()) else a.T
    x, s = nf.asarray(view), strict.asarray(view)
    for name in ("sort", "argsort"):
        same(getattr(nf, name)(x, axis=axis), getattr(strict, name)(s, axis=axis))
    np.testing.assert_allclose(
        np.asarray(nf.cumulative_sum(x, axis=axis)),
        np.asarray(strict.cumulative_sum(s, axis=axis)),
        rtol=1e-5,
        atol=1e-5,
    )
    same(nf.unique_values(x), strict.unique_values(s))
    for mine, theirs in zip(nf.nonzero(x), strict.nonzero(s), strict=True):
        same(mine, theirs)


def test_gradients() -> None:
    x = nf.asarray(np.array([[0.5, -1.0, 2.0, 0.25], [3.0, 1.5, -0.5, 0.75]]), dtype=nf.float64)
    with_zeros = nf.asarray([[0.0, 2.0, 3.0, 0.5], [1.5, 0.0, 2.0, 0.0]], dtype=nf.float64)
    check_grads(lambda v: nf.sort(v, axis=1) * nf.sort(v, axis=0, descending=True), (x,))
    check_grads(lambda v: nf.cumulative_sum(v, axis=0, include_initial=True) ** 2, (x,))
    for at in (x, with_zeros):
        check_grads(
            lambda v: nf.cumulative_prod(v, axis=1, include_initial=True) * nf.arange(5, dtype=nf.float64),
            (at,),
            order=1,
        )
    check_grads(lambda v: nf.repeat(v, nf.asarray([2, 0, 1, 3]), axis=1) ** 2, (x,))


def test_refusals() -> None:
    x = nf.asarray([[1.0, 2.0]], requires_grad=True)
    for call in (lambda: nf.unique_values(x), lambda: nf.unique_all(x), lambda: nf.unique(x)):
        with pytest.raises(GradientError, match=r"x\.detach\(\)"):
            call()
    z = nf.asarray([1j, 2.0])
    for call in (lambda: nf.sort(z), lambda: nf.argsort(z), lambda: nf.searchsorted(z, z)):
        with pytest.raises(DTypeError, match="real"):
            call()
    with pytest.raises(ShapeError, match="axis"):
        nf.cumulative_sum(x)
    with pytest.raises(ShapeError):
        nf.nonzero(nf.asarray(1.0))
    with pytest.raises(ShapeError, match="vector"):
        nf.searchsorted(x, x)
    with pytest.raises(ArgumentError, match="side"):
        nf.searchsorted(x[0], x, side="middle")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError):
        nf.repeat(x, [1, 2, 3], axis=1)


def test_quantized_and_narrow_arrays_are_sorted_by_value() -> None:
    x = nf.asarray([[3.0, -1.0, 6.0, 0.5] * 8], dtype=nf.float32)
    for y in (x.astype(nf.mxfp8), x.astype(nf.float8_e4m3fn)):
        got = nf.sort(y)
        assert got.dtype is nf.float32 and got.tolist() == nf.sort(x).tolist()
        assert nf.unique_values(y).tolist() == [-1.0, 0.5, 3.0, 6.0]
