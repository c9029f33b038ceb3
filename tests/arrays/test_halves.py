"""16-bit floats where NumPy with ml_dtypes is wrong, raises or widens: each fault beside what nf does."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nvfp as nf

HALVES = ["bfloat16", "float16"]
BF16 = np.dtype(ml_dtypes.bfloat16)


def tenths(n: int, dtype: str = "bfloat16") -> Any:
    return nf.full((n,), 0.1, dtype=dtype)


def test_numpy_s_faults_are_still_there() -> None:
    """Otherwise the tests below prove nothing."""
    assert float(np.full(4096, 0.1, BF16).sum()) == 32.0
    assert (np.ones(2, BF16) + 2.0).dtype == np.float32
    assert np.where(np.ones(2, bool), np.ones(2, BF16), 0.0).dtype == np.float64
    with pytest.raises(ValueError, match="not inexact"):
        np.finfo(BF16)


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_and_means(dtype: str, device: Any) -> None:
    x, step = tenths(4096, dtype), float(np.asarray(0.1).astype(nf.result_type(dtype)))
    half = nf.result_type(dtype)
    exact = 4096 * step
    for got, expected in (
        (nf.sum(x), exact),
        (x.sum(), exact),
        (nf.mean(x), step),
        (nf.cumulative_sum(x)[-1], exact),
        (nf.sum(nf.reshape(x, (64, 64)), axis=0)[3], 64 * step),
        (nf.vecdot(x, nf.ones((4096,), dtype=dtype)), exact),
        (nf.trace(nf.broadcast_to(x[0], (512, 512))), 512 * step),
        (nf.nansum(x), exact),
        (nf.nanmean(x), step),
        (nf.average(x), step),
        (nf.median(x), step),
    ):
        assert got.dtype is half and float(got) == float(np.asarray(expected).astype(half))
    assert float(nf.std(x)) == 0.0 and float(nf.var(x)) == 0.0
    assert float(nf.sum(nf.ones((1000,), dtype=nf.float8_e4m3fn))) == 1000.0  # ml_dtypes: 16


@pytest.mark.parametrize("dtype", HALVES)
def test_scalars_and_integers_do_not_widen(dtype: str, device: Any) -> None:
    x, half = nf.asarray([1.0, 2.0], dtype=dtype), nf.result_type(dtype)
    integers = nf.asarray([3, 4])
    for got in (
        x + 2.0, 2 * x, x - True, x / 3, x**2, x % 2.0, x // 2, 1.0 - x, x + integers, integers * x,
        nf.maximum(x, 0.0), nf.where(x > 1, x, 0.0), nf.where(x > 1, 0.0, x), nf.clip(x, 0, 1.5), nf.clip(x, None, 1.5),
        nf.atan2(x, 1.0), nf.hypot(x, 2.0), nf.copysign(x, -1.0), nf.logaddexp(x, 0.0), x @ x,
        nf.concat([x, x]), nf.stack([x, x]), nf.sort(x), nf.diff(x), nf.exp(x), nf.linspace(0, 1, 3, dtype=dtype),
    ):  # fmt: skip
        assert got.dtype is half
    assert (x + nf.ones((2,))).dtype is nf.float32 and (x + nf.ones((2,), dtype=nf.float64)).dtype is nf.float64
    assert (nf.ones((1,), dtype=nf.bfloat16) + nf.ones((1,), dtype=nf.float16)).dtype is nf.float32


@pytest.mark.parametrize("dtype", HALVES)
def test_products_round_once(dtype: str, device: Any) -> None:
    a = np.random.default_rng(0).normal(size=(33, 65)).astype(nf.result_type(dtype))
    b = np.random.default_rng(1).normal(size=(65, 17)).astype(nf.result_type(dtype))
    got = nf.matmul(nf.asarray(a), nf.asarray(b))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    scale = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    error = np.abs(np.asarray(got).astype(np.float64) - exact)
    assert got.dtype is nf.result_type(dtype)
    assert np.all(error <= np.abs(exact) * float(nf.finfo(dtype).eps) / 2 * 1.001 + scale * 1e-6)


def test_limits_and_kinds() -> None:
    info = nf.finfo(nf.bfloat16)
    assert (info.bits, info.eps, info.max, info.smallest_normal) == (16, 2.0**-7, 3.3895313892515355e38, 2.0**-126)
    assert all(type(v) is float for v in (info.eps, info.max, info.min, info.smallest_normal))
    assert nf.isdtype(nf.bfloat16, "real floating") and not nf.isdtype(nf.bfloat16, ("integral", "bool"))
    assert nf.isdtype(nf.float8_e5m2, "real floating") and nf.isdtype(nf.nvfp4, "quantized")


def test_casts_saturate_and_keep_nan(device: Any) -> None:
    x = nf.asarray([1e6, -1e6, nf.nan, -0.0])
    e4m3 = nf.asnumpy(nf.astype(x.astype(nf.float8_e4m3fn), nf.float32))
    e5m2 = nf.asnumpy(nf.astype(x.astype(nf.float8_e5m2), nf.float32))
    assert e4m3[:2].tolist() == [448.0, -448.0] and e5m2[:2].tolist() == [57344.0, -57344.0]
    assert np.isnan(e4m3[2]) and np.isnan(e5m2[2]) and np.signbit(e4m3[3]) and np.signbit(e5m2[3])


@pytest.mark.parametrize("dtype", HALVES)
def test_lists_and_writes_round_once(dtype: str, device: Any) -> None:
    """A list of Python floats went through float32 first: two roundings, and float64 lost its digits."""
    value = 1 + 2.0**-8 + 2.0**-30 if dtype == "bfloat16" else 1 + 2.0**-11 + 2.0**-30  # just above a tie
    up = 1 + float(nf.finfo(dtype).eps)
    assert nf.asarray([value], dtype=dtype).tolist() == [up] and float(nf.asarray(value, dtype=dtype)) == up
    x = nf.zeros((2,), dtype=nf.float64)
    x[0] = 0.1
    assert x.tolist() == [0.1, 0.0] and nf.asarray([0.1], dtype=nf.float64).tolist() == [0.1]
    assert nf.asarray([0.1]).dtype is nf.float32 and nf.asarray([0.1, 1j], dtype=nf.complex128)[0].item() == 0.1
