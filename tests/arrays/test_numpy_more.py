"""More of NumPy's names against NumPy: NaN left out, diagonals, counts, tables; names that nvfp spells otherwise."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.autograd import check_grads
from nvfp.errors import ArgumentError, DTypeError, GradientError, ShapeError, UnknownNameError
from tests.tolerances import tolerance

FLOATS = ["float32", "bfloat16", "float16", "float64"]


def near(got: Any, expected: Any, dtype: str) -> None:
    expected = np.asarray(expected)
    assert got.shape == expected.shape and got.dtype == nf.result_type(dtype)
    row = tolerance("reduce", dtype if dtype in ("bfloat16", "float16") else "float32")
    wide = np.asarray(got).astype(np.float64)
    np.testing.assert_allclose(wide, expected.astype(np.float64), rtol=row.rtol, atol=10 * row.atol)


def with_nans(dtype: str) -> tuple[nf.Array, np.ndarray]:
    a = np.random.default_rng(0).integers(-8, 9, (4, 6)) / 4
    a[0, 1] = a[2, :] = np.nan
    return nf.asarray(a.astype(nf.result_type(dtype))), a


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["nansum", "nanprod", "nanmean", "nanmax", "nanmin", "nanvar", "nanstd"])
def test_reductions_without_nan(name: str, dtype: str, device: Any) -> None:
    x, a = with_nans(dtype)
    for options in ({}, {"axis": 1}, {"axis": 0, "keepdims": True}, {"axis": (0, 1)}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of rows that are all NaN
            near(getattr(nf, name)(x, **options), getattr(np, name)(a, **options), dtype)
    n = np.arange(6).reshape(2, 3)
    assert float(getattr(nf, name)(nf.asarray(n))) == pytest.approx(float(getattr(np, name)(n)))


def test_nanvar_correction() -> None:
    x, a = with_nans("float64")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        near(nf.nanvar(x, axis=0, correction=1), np.nanvar(a, axis=0, ddof=1), "float64")


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_to_num(dtype: str, device: Any) -> None:
    x = nf.asarray([nf.nan, nf.inf, -nf.inf, 1.5], dtype=dtype)
    limits = nf.finfo(dtype)
    assert nf.nan_to_num(x).tolist() == [0.0, limits.max, limits.min, 1.5]
    assert nf.nan_to_num(x, 2.0, posinf=3.0, neginf=4.0).tolist() == [2.0, 3.0, 4.0, 1.5]
    assert nf.nan_to_num(x).dtype == x.dtype and nf.nan_to_num(nf.asarray([1, 2])).tolist() == [1, 2]


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
def test_diagonals_and_products(dtype: str, device: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-5, 6, s).astype(nf.result_type(dtype)) for s in ((3, 5, 4), (2, 3)))
    x, y = nf.asarray(a), nf.asarray(b)
    a, b = (v.astype(np.float64) if dtype != "int32" else v for v in (a, b))
    whole = "int64" if dtype == "int32" else dtype
    for k in (-9, -1, 0, 2, 4):
        near(nf.diagonal(x, k), np.diagonal(a, k), dtype)
        near(nf.diagonal(x, k, -1, 1), np.diagonal(a, k, -1, 1), dtype)
        near(nf.trace(x, k, 0, 2), np.trace(a, k, 0, 2), whole)
        near(nf.diag(x[0], k), np.diag(a[0], k), dtype)
        near(nf.diag(y[0], min(k, 2)), np.diag(b[0], min(k, 2)), dtype)
    near(x.diagonal(), a.diagonal(), dtype)
    near(x.trace(), a.trace(), whole)
    for f in (lambda xp, v, w: xp.kron(v, w), lambda xp, v, w: xp.kron(w, v[0]), lambda xp, v, w: xp.kron(v[0, 0], w)):
        near(f(nf, x, y), f(np, a, b), dtype)
    near(nf.cross(x, y[0][:, None, None], axis=0), np.cross(a, b[0][:, None, None], axis=0), dtype)
    near(nf.cross(y, y[0]), np.cross(b, b[0]), dtype)


def test_gradients() -> None:
    x = nf.asarray(np.random.default_rng(0).normal(size=(3, 4)))
    v, w = (nf.asarray(np.random.default_rng(s).normal(size=3)) for s in (1, 2))
    gaps = nf.asarray([[1.0, nf.nan, 3.0], [0.5, 2.0, nf.nan]], dtype=nf.float64)
    for f in (
        lambda t: nf.diagonal(t, 1) ** 2,
        lambda t: nf.trace(t) ** 2,
        lambda t: nf.diag(t[0]) ** 2,
        lambda t: nf.kron(t, t[:2]),
    ):
        check_grads(f, (x,))
    check_grads(lambda s, t: nf.cross(s, t) ** 2, (v, w))
    for f in (nf.nansum, nf.nanmean, nf.nanvar, lambda t: nf.nanmax(t, axis=1), nf.nan_to_num):
        y = nf.asarray(nf.asnumpy(gaps), requires_grad=True)
        nf.sum(f(y)).backward()
        assert y.grad is not None and np.isfinite(np.asarray(y.grad)).all() and float(y.grad[0, 1]) == 0.0


def test_counts_and_tables(device: Any) -> None:
    n = np.array([1, 3, 1, 6], np.int32)
    weights = np.array([0.5, 2.0, 0.25, 1.0], np.float32)
    x = nf.asarray(n)
    assert nf.bincount(x).tolist() == np.bincount(n).tolist() and nf.bincount(x).dtype is nf.int64
    assert nf.bincount(x, minlength=9).size == 9 and nf.bincount(x[:0]).size == 0
    got = nf.bincount(x, nf.asarray(weights))
    assert got.tolist() == np.bincount(n, weights).tolist() and got.dtype is nf.float32 and got.device == device
    at, places, values = np.array([[0.0, 1.5], [2.25, 9.0]]), np.array([1.0, 2.0, 4.0]), np.array([3.0, -1.0, 0.5])
    for dtype in FLOATS:
        at_, places_, values_ = (nf.asarray(v, dtype=dtype) for v in (at, places, values))
        near(nf.interp(at_, places_, values_), np.interp(at, places, values), dtype)
        near(nf.interp(at_, places_, values_, left=-5, right=7), np.interp(at, places, values, -5, 7), dtype)
    assert float(nf.interp(1.5, nf.asarray(places), nf.asarray(values))) == 1.0


def test_refusals() -> None:
    x = nf.asarray([1.0, 2.0], requires_grad=True)
    with pytest.raises(DTypeError, match="integer"):
        nf.bincount(x)
    with pytest.raises(ArgumentError, match="negative"):
        nf.bincount(nf.asarray([1, -1]))
    with pytest.raises(ShapeError):
        nf.bincount(nf.asarray([[1]]))
    with pytest.raises(GradientError):
        nf.interp(0.5, nf.asarray([0.0, 1.0]), x)
    with pytest.raises(ShapeError):
        nf.cross(x, x)
    with pytest.raises(ShapeError):
        nf.diag(nf.ones((2, 2, 2)))
    with pytest.raises(ShapeError):
        nf.diagonal(nf.ones((2, 2)), 0, 1, 1)


NAMES = {
    "arcsin": r"write nf\.asin", "absolute": r"write nf\.abs", "power": r"write nf\.pow",
    "true_divide": r"write nf\.divide", "amax": r"write nf\.max", "mod": r"write nf\.remainder",
    "float_power": r"write nf\.pow", "cat": r"write nf\.concat", "randn": r"write nf\.random",
    "set_printoptions": r"numpy\.set_printoptions", "trapezoid": r"numpy\.trapezoid", "ndarray": r"nf\.Array",
    "cov": r"nf\.asarray\(numpy\.cov\(nf\.asnumpy\(x\)\)\)", "concatanate": "is it one of concatenate",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_of_other_libraries(name: str) -> None:
    with pytest.raises(UnknownNameError, match=rf"\[nvfp\.{name}\] .*{NAMES[name]}"):
        getattr(nf, name)
    assert not hasattr(nf, name)  # for programs that ask


def test_every_name_of_numpy_is_there_or_told() -> None:
    """No function of NumPy's main namespace gives a bare error."""
    for name in dir(np):
        if (
            callable(getattr(np, name))
            and not isinstance(getattr(np, name), type)
            and not name.startswith("_")
            and not hasattr(nf, name)
        ):
            with pytest.raises(UnknownNameError, match=r"write|compute it"):
                getattr(nf, name)
