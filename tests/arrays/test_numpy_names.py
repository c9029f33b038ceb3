"""NumPy's everyday names against NumPy: joining, products, statistics, padding, nearness; and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.autograd import check_grads
from nvfp.errors import ArgumentError, DTypeError, GradientError, ShapeError
from tests.tolerances import tolerance

DTYPES = ["float32", "bfloat16", "float16", "float64", "int32", "int8"]


def values(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Numbers that every dtype holds: quarters for floats, small integers else."""
    drawn = np.random.default_rng(seed).integers(-9, 10, shape)
    return (drawn if "int" in dtype else drawn / 4).astype(nf.result_type(dtype))


def reference(x: Any) -> Any:
    """What NumPy computes with: 16-bit floats as float64 (NumPy itself rounds at every step)."""
    if isinstance(x, list | tuple):
        return type(x)(reference(v) for v in x)
    return x if x.dtype.kind in "iub" else x.astype(np.float64)


def compare(got: Any, expected: Any, dtype: str, scale: float = 1.0) -> None:
    """Values within the row of `reduce`; ``dtype`` is the result's."""
    expected = np.asarray(expected)
    assert got.shape == expected.shape and got.dtype == nf.result_type(dtype)
    row = tolerance("reduce", "float32" if "int" in dtype or dtype in ("float64", "bool") else dtype)
    actual, wanted = np.asarray(got).astype(np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(actual, wanted, rtol=row.rtol, atol=row.atol * scale)


JOINS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "concatenate": lambda xp, x: xp.concatenate([x[0], x[0]], axis=1),
    "concatenate flat": lambda xp, x: xp.concatenate(x, axis=None),
    "vstack": lambda xp, x: xp.vstack([x[0], x[1][:3]]),
    "vstack vectors": lambda xp, x: xp.vstack([x[1], x[1]]),
    "hstack": lambda xp, x: xp.hstack([x[0], x[0][:, :2]]),
    "hstack vectors": lambda xp, x: xp.hstack([x[1], x[1][:1]]),
    "dstack": lambda xp, x: xp.dstack([x[0], x[0]]),
    "dstack vectors": lambda xp, x: xp.dstack([x[1], x[1]]),
    "column_stack": lambda xp, x: xp.column_stack([x[0].T, x[1]]),
    "ravel": lambda xp, x: xp.ravel(x[0].T),
    "atleast_1d": lambda xp, x: xp.atleast_1d(x[0][0, 0]),
    "atleast_2d": lambda xp, x: xp.atleast_2d(x[1]),
    "atleast_3d": lambda xp, x: xp.atleast_3d(x[0]),
    "pad": lambda xp, x: xp.pad(x[0], ((1, 2), (0, 3)), constant_values=1),
    "pad edge": lambda xp, x: xp.pad(x[0], (2, 1), mode="edge"),
    "pad reflect": lambda xp, x: xp.pad(x[0], ((4, 0), (0, 5)), "reflect"),
    "pad symmetric": lambda xp, x: xp.pad(x[0], 3, "symmetric"),
    "pad wrap": lambda xp, x: xp.pad(x[0], ((0, 1), (5, 0)), "wrap"),
    "diff": lambda xp, x: xp.diff(x[1]),
    "diff ends": lambda xp, x: xp.diff(x[0], axis=0, prepend=0, append=x[0][:1]),
    "ptp": lambda xp, x: xp.ptp(x[0], axis=1),
    "rot90": lambda xp, x: xp.rot90(x[0]),
    "rot90 back": lambda xp, x: xp.rot90(x[0], -1, (1, 0)),
    "rot90 twice": lambda xp, x: xp.rot90(x[0], 2),
    "array_split": lambda xp, x: xp.array_split(x[0], 3, axis=1)[1],
    "array_split positions": lambda xp, x: xp.array_split(x[1], [1, 3])[2],
    "fmax": lambda xp, x: xp.fmax(x[0], x[1]),
    "fmin": lambda xp, x: xp.fmin(x[0], x[1]),
    "fmod": lambda xp, x: xp.fmod(x[0], xp.where(x[1] == 0, x[1] + 3, x[1])),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", JOINS)
def test_moves_and_differences_are_exact(name: str, dtype: str, device: Any) -> None:
    arrays = [values((3, 5), dtype), values((5,), dtype, 1)]
    if name == "vstack":
        arrays[1] = values((3, 5), dtype, 1)
    got = JOINS[name](nf, [nf.asarray(a) for a in arrays])
    expected = np.asarray(JOINS[name](np, reference(arrays)))
    assert got.dtype == arrays[0].dtype and got.device == device
    np.testing.assert_array_equal(np.asarray(got).astype(np.float64), expected.astype(np.float64))


PRODUCTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "dot vectors": lambda xp, a, b: xp.dot(a[0, 0], b[0, 1]),
    "dot matrices": lambda xp, a, b: xp.dot(a[0], b[0].T),
    "dot axes": lambda xp, a, b: xp.dot(a, xp.swapaxes(b, 1, 2)),
    "dot scalar": lambda xp, a, b: xp.dot(a, b[0, 0, 0]),
    "inner": lambda xp, a, b: xp.inner(a, b[0]),
    "inner vectors": lambda xp, a, b: xp.inner(a[0, 0], b[0, 1]),
    "vdot": lambda xp, a, b: xp.vdot(a, b),
    "outer": lambda xp, a, b: xp.outer(a[0, 0], b[0, 1]),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, dtype: str, device: Any) -> None:
    a, b = values((2, 3, 5), dtype), values((2, 3, 5), dtype, 1)
    got = PRODUCTS[name](nf, nf.asarray(a), nf.asarray(b))
    expected = PRODUCTS[name](np, reference(a), reference(b))
    compare(got, expected, dtype, float(np.sum(np.abs(reference(a)))))


STATISTICS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "average": lambda xp, a, w: xp.average(a),
    "average weights": lambda xp, a, w: xp.average(a, weights=w),
    "average axis": lambda xp, a, w: xp.average(a, 1, w),
    "average axes": lambda xp, a, w: xp.average(a, axis=(0, 1), weights=w, keepdims=True),
    "average vector": lambda xp, a, w: xp.average(a, axis=0, weights=w[:, 0]),
    "median": lambda xp, a, w: xp.median(a),
    "median axis": lambda xp, a, w: xp.median(a, axis=1, keepdims=True),
    "percentile": lambda xp, a, w: xp.percentile(a, 30.0),
    "percentile several": lambda xp, a, w: xp.percentile(a, [0, 12.5, 100], axis=0),
    "quantile": lambda xp, a, w: xp.quantile(a, 0.3, axis=(0, 1)),
    "quantile method": lambda xp, a, w: xp.quantile(a, 0.3, method="nearest"),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", STATISTICS)
def test_statistics(name: str, dtype: str, device: Any) -> None:
    a, w = values((3, 7), dtype), np.abs(values((3, 7), dtype, 1)) + np.ones((), nf.result_type(dtype))
    got = STATISTICS[name](nf, nf.asarray(a), nf.asarray(w))
    expected = STATISTICS[name](np, reference(a), reference(w))
    compare(got, expected, "float32" if "int" in dtype else dtype, 10.0)


@pytest.mark.parametrize("dtype", [*DTYPES, "bool"])
def test_counts(dtype: str, device: Any) -> None:
    a = values((3, 7), "int8").astype(nf.result_type(dtype))
    for axis in (None, 0, (0, 1)):
        got = nf.count_nonzero(nf.asarray(a), axis)
        assert got.dtype == nf.int64 and got.tolist() == np.count_nonzero(a.astype(np.float32), axis).tolist()


@pytest.mark.parametrize("dtype", [*DTYPES, "bool"])
@pytest.mark.parametrize(
    "kwargs", [{}, {"bins": 4}, {"bins": [-2, 0, 0.5, 3]}, {"range": (-1.5, 2)}, {"density": True}], ids=str
)
def test_histogram(kwargs: dict[str, Any], dtype: str, device: Any) -> None:
    a = values((3, 37), "int8" if dtype == "bool" else dtype).astype(nf.result_type(dtype))
    counts, edges = nf.histogram(nf.asarray(a), **kwargs)
    read = a if dtype in ("float64", "int32", "int8") else a.astype(np.float32)
    expected, places = np.histogram(read, **kwargs)
    wide = np.float64 if dtype in ("float64", "int32", "int8", "bool") else np.float32
    assert edges.dtype == wide and counts.device == edges.device == device
    np.testing.assert_allclose(np.asarray(edges), places, rtol=1e-6, atol=1e-6)
    real = nf.float64 if dtype == "float64" else nf.float32
    assert counts.dtype == (real if kwargs.get("density") else nf.int64)
    np.testing.assert_allclose(np.asarray(counts), expected, rtol=1e-6)


def test_histogram_weights(device: Any) -> None:
    a, w = values((30,), "float32"), np.abs(values((30,), "float32", 1))
    counts, _ = nf.histogram(nf.asarray(a), 5, weights=nf.asarray(w))
    np.testing.assert_allclose(np.asarray(counts), np.histogram(a, 5, weights=w)[0], rtol=1e-6)
    assert nf.histogram(nf.asarray(a), nf.asarray([-1.0, 0.0, 1.0]))[0].shape == (2,)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_isclose(dtype: str, device: Any) -> None:
    inf, nan = np.inf, np.nan
    a = np.array([1, 1, 1, inf, inf, -inf, nan, 0, 1], dtype=nf.result_type(dtype))
    b = np.array([1, 1.0078125, 2, inf, -inf, 5, nan, 1e-9, nan], dtype=nf.result_type(dtype))
    for kwargs in ({}, {"rtol": 0.01}, {"atol": 1}, {"equal_nan": True}):
        got = nf.isclose(nf.asarray(a), nf.asarray(b), **kwargs)  # type: ignore[arg-type]
        with np.errstate(all="ignore"):
            expected = np.isclose(reference(a), reference(b), **kwargs)  # type: ignore[call-overload]
        assert got.dtype == nf.bool and got.device == device and got.tolist() == expected.tolist()
    x = nf.asarray(a)
    assert nf.allclose(x, x, equal_nan=True) and not nf.allclose(x, x) and not nf.array_equal(x, x)
    assert nf.array_equal(x, x, equal_nan=True) and not nf.array_equal(x, x[:2])
    assert nf.allclose(x[:3], 1, atol=1) and nf.isclose(1, x[:3], atol=1).shape == (3,)
    assert nf.allclose(nf.asarray([2**53]), nf.asarray([2**53 + 1]), rtol=1e-15)


COMPOSED: dict[str, Callable[[Any, Any], Any]] = {
    "angle": lambda xp, x: xp.angle(x),
    "exp2": lambda xp, x: xp.exp2(x),
    "sinc": lambda xp, x: xp.sinc(x),
    "unwrap": lambda xp, x: xp.unwrap(x * 3, axis=0),
    "unwrap period": lambda xp, x: xp.unwrap(x, 3, period=4),
    "gradient": lambda xp, x: xp.gradient(x, axis=1),
    "gradient step": lambda xp, x: xp.gradient(x, 0.5)[0],
    "gradient places": lambda xp, x: xp.gradient(x, 2, xp.asarray([0, 1, 3, 4, 8, 9, 11]))[1],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", COMPOSED)
def test_composed(name: str, dtype: str, device: Any) -> None:
    a = values((3, 7), dtype)
    got = COMPOSED[name](nf, nf.asarray(a))
    expected = COMPOSED[name](np, a.astype(np.float64))
    assert got.device == device
    compare(got, expected, "float32" if "int" in dtype else dtype, 40.0)


def test_composed_special_values(device: Any) -> None:
    special = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -2.5, 1e-30, 3e38], np.float32)
    x, y = nf.asarray(special[:, None]), nf.asarray(special)
    with np.errstate(all="ignore"):
        for name in ("fmod", "fmax", "fmin"):
            got, expected = getattr(nf, name)(x, y), getattr(np, name)(special[:, None], special)
            np.testing.assert_array_equal(np.asarray(got), expected)
        got, expected = np.asarray(nf.fmod(x, 2.0)), np.fmod(special[:, None], np.float32(2))
        finite = np.isfinite(expected)  # the sign of a NaN is anybody's
        np.testing.assert_array_equal(np.signbit(got[finite]), np.signbit(expected[finite]))
        np.testing.assert_allclose(np.asarray(nf.angle(y)), np.angle(special), rtol=1e-6)
    z = np.array([1 + 1j, -1j, -1 + 0j, 0j], np.complex64)
    np.testing.assert_allclose(np.asarray(nf.angle(nf.asarray(z))), np.angle(z), rtol=1e-6)
    near = nf.asarray([0.0, 1e-9, 0.0095, 0.0096], dtype=nf.float64)
    second = nf.grad(lambda v: nf.sum(nf.grad(lambda w: nf.sum(nf.sinc(w)))(v)))(near)
    np.testing.assert_allclose(np.asarray(second), -(np.pi**2) / 3, rtol=1e-3)
    for name in ("fmod", "fmax", "fmin"):
        with pytest.raises(ShapeError, match=rf"\[{name}\] expected shapes that broadcast, got \(2,\), \(3,\); insert"):
            getattr(nf, name)(nf.ones(2), nf.ones(3))
        with pytest.raises(DTypeError, match=rf"\[{name}\] "):
            getattr(nf, name)(nf.ones(2))
    with pytest.raises(ShapeError, match=r"\[rot90\]"):
        nf.rot90(x, axes=(0,))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"\[gradient\]"):
        nf.gradient(x)
    with pytest.raises(ArgumentError, match=r"\[gradient\]"):
        nf.gradient(nf.ones((2, 2)), 1, 2, 3)
    with pytest.raises(ShapeError, match=r"\[array_split\]"):
        nf.array_split(x, 0)


SMOOTH: dict[str, Callable[[Any], Any]] = {
    "vstack": lambda x: nf.vstack([x, x[:1] * 2]),
    "dstack": lambda x: nf.dstack([x, x * x]),
    "hstack": lambda x: nf.hstack([x[0], x[1]]),
    "column_stack": lambda x: nf.column_stack([x[:, 0], x]),
    "pad reflect": lambda x: nf.pad(x * x, 2, "reflect"),
    "dot": lambda x: nf.dot(x, x.T),
    "inner": lambda x: nf.inner(x, x[0]),
    "vdot": lambda x: nf.vdot(x, x),
    "average": lambda x: nf.average(x, axis=0, weights=x * x),
    "diff": lambda x: nf.diff(x * x, n=2, append=1.0),
    "ptp": lambda x: nf.ptp(x, axis=1),
    "ravel": lambda x: nf.ravel(x.T) * nf.ravel(x),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients(name: str) -> None:
    x = nf.asarray(np.random.default_rng(3).uniform(0.5, 2, (3, 4)), device="cpu")
    check_grads(SMOOTH[name], [x], order=2)


@pytest.mark.parametrize("name", ["median", "percentile", "quantile", "histogram"])
def test_what_has_no_gradient_refuses_variables_by_name(name: str, device: Any) -> None:
    x = nf.asarray([1.0, 2.0], requires_grad=True)
    rest = () if name in ("median", "histogram") else (0.5,)
    with pytest.raises(GradientError, match=rf"\[{name}\] .*x\.detach\(\)"):
        getattr(nf, name)(x, *rest)
    with nf.no_grad():
        getattr(nf, name)(x, *rest)
    getattr(nf, name)(x.detach(), *rest)


def test_quantized_and_narrow_arrays_count_with_their_values(device: Any) -> None:
    x = nf.asarray(values((4, 32), "float32"))
    q, n = x.astype(nf.mxfp8), x.astype(nf.float8_e4m3fn)
    for y in (q, n):
        dense = y.astype(nf.float32)
        assert nf.array_equal(nf.vstack([y, y]), nf.vstack([dense, dense])) and nf.allclose(y, dense)
        assert nf.median(y).item() == nf.median(dense).item() and nf.ptp(y).item() == nf.ptp(dense).item()
        assert nf.allclose(nf.dot(y, dense.T), dense @ dense.T) and nf.count_nonzero(y) == nf.count_nonzero(dense)
    assert nf.ravel(n).dtype == nf.float8_e4m3fn and nf.atleast_3d(q[0]).shape == (1, 32, 1)


def test_numpy_s_functions_come_here(device: Any) -> None:
    x = nf.asarray(values((3, 4), "bfloat16"))
    for call in (
        lambda a: np.vstack([a, a]),
        lambda a: np.dot(a, a.T),
        lambda a: np.median(a),
        lambda a: np.average(a, axis=0),
        lambda a: np.diff(a),
        lambda a: np.pad(a, 1, mode="edge"),
        lambda a: np.concatenate([a, a], axis=1, dtype="float32"),
    ):
        assert isinstance(call(x), nf.Array) and call(x).device == device
    assert np.allclose(x, x) is True and np.histogram(x)[0].device == device


def test_empty_and_odd_shapes(device: Any) -> None:
    e = nf.zeros((0, 3))
    assert nf.vstack([e, e]).shape == (0, 3) and nf.vdot(e, e).item() == 0 and nf.count_nonzero(e) == 0
    assert nf.diff(e).shape == (0, 2) and nf.allclose(e, e) and nf.ravel(e).shape == (0,)
    assert nf.dot(nf.zeros((2, 0)), nf.zeros((0, 3))).tolist() == [[0.0] * 3] * 2
    assert np.isnan(nf.median(nf.asarray([1.0, np.nan])).item())
    assert nf.diff(nf.ones((3,)), n=0, prepend=0, append=1).shape == (3,)  # as NumPy
    assert np.isnan(nf.histogram(e, bins=2, density=True)[0]).all()
    assert [a.shape for a in nf.atleast_1d(e, nf.asarray(1.0))] == [(0, 3), (1,)]


WRONG: dict[str, tuple[type[Exception], Callable[[], Any]]] = {
    "vstack": (ShapeError, lambda: nf.vstack([])),
    "concatenate": (DTypeError, lambda: nf.concatenate(3)),  # type: ignore[arg-type]
    "inner": (ShapeError, lambda: nf.inner(nf.ones((2, 3)), nf.ones((2, 4)))),
    "vdot": (ShapeError, lambda: nf.vdot(nf.ones((2, 3)), nf.ones((5,)))),
    "average": (ShapeError, lambda: nf.average(nf.ones((2, 3)), weights=nf.ones((3,)))),
    "diff": (ArgumentError, lambda: nf.diff(nf.ones((3,)), n=-1)),
    "pad": (ArgumentError, lambda: nf.pad(nf.ones((3,)), 1, mode="mean")),
    "median": (ShapeError, lambda: nf.median(nf.ones((0,)))),
    "quantile": (ArgumentError, lambda: nf.quantile(nf.ones((2,)), 1.5)),
    "percentile": (ArgumentError, lambda: nf.percentile(nf.ones((2,)), 50, method="middle")),
    "histogram": (ArgumentError, lambda: nf.histogram(nf.ones((2,)), bins=0)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name: str, device: Any) -> None:
    kind, call = WRONG[name]
    with pytest.raises(kind, match=rf"^\[{name.replace('concatenate', 'concat')}\] expected .*; "):
        call()
