"""Functions against array-api-strict: values, dtypes, shapes and parameter names."""

from __future__ import annotations

import doctest
import inspect
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

import nvfp as nf

UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "conj", "cos", "cosh", "exp", "expm1",
    "floor", "imag", "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "logical_not", "negative",
    "positive", "real", "reciprocal", "round", "sign", "signbit", "sin", "sinh", "sqrt", "square", "tan",
    "tanh", "trunc",
)  # fmt: skip
BINARY = (
    "add", "atan2", "copysign", "divide", "equal", "floor_divide", "greater", "greater_equal", "hypot",
    "less", "less_equal", "logaddexp", "logical_and", "logical_or", "logical_xor", "maximum", "minimum",
    "multiply", "nextafter", "not_equal", "pow", "remainder", "subtract", "bitwise_and", "bitwise_or",
    "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift",
)  # fmt: skip

SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, 1e-3, 100.0, float("inf"), float("-inf"), float("nan")]


def both(values: Any, dtype: str) -> tuple[Any, Any]:
    a = np.asarray(values).astype(dtype)
    return nf.asarray(a), strict.asarray(a)


def compare(got: Any, expected: Any, rtol: float = 1e-6, atol: float = 1e-7) -> None:
    e = np.asarray(expected)
    assert got.dtype == e.dtype and got.shape == e.shape
    np.testing.assert_allclose(np.asarray(got), e, rtol=rtol, atol=atol if e.dtype.kind == "f" else 0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool", "complex64"])
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: str) -> None:
    values = [v for v in SPECIAL if np.isfinite(v)] if dtype in ("int32", "complex64") else SPECIAL
    x, s = both(values, dtype)
    try:
        expected = getattr(strict, name)(s)
    except (TypeError, ValueError):
        return  # strict takes fewer kinds; what nf adds has its own tests
    if dtype == "complex64" and name in ("ceil", "floor", "trunc"):
        return
    compare(getattr(nf, name)(x), expected, rtol=1e-5 if dtype == "complex64" else 2e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, dtype: str) -> None:
    values = [0, 1, 2, 3, 7] if dtype in ("int32", "uint8", "bool") else SPECIAL
    x, s = both(values, dtype)
    with np.errstate(all="ignore"):
        try:
            expected = getattr(strict, name)(strict.expand_dims(s, axis=1), s)
        except (TypeError, ValueError):
            return
    if dtype in ("int32", "uint8") and name in ("floor_divide", "remainder", "pow"):
        x, s = both([1, 2, 3, 4], dtype)
        expected = getattr(strict, name)(strict.expand_dims(s, axis=1), s)
    got = getattr(nf, name)(nf.expand_dims(x, 1), x)
    if name in ("floor_divide", "remainder") and dtype.startswith("float"):
        finite = np.isfinite(np.asarray(expected)) & np.isfinite(np.asarray(got))  # NumPy follows Python at infinities
        np.testing.assert_allclose(np.asarray(got)[finite], np.asarray(expected)[finite], rtol=1e-6)
        return
    compare(got, expected)


@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
        elements=st.floats(-8, 8, width=32),
    ),
    st.data(),
)
def test_reductions(a: np.ndarray, data: Any) -> None:
    x, s = nf.asarray(a), strict.asarray(a)
    axis = data.draw(st.one_of(st.none(), hnp.valid_tuple_axes(a.ndim)))
    keep = data.draw(st.booleans())
    for name in ("sum", "prod", "mean", "max", "min", "all", "any", "var", "std"):
        lengths = [a.shape[i] for i in (range(a.ndim) if axis is None else axis)]
        if name in ("mean", "max", "min", "var", "std") and 0 in lengths:
            continue
        with np.errstate(over="ignore"):
            partial = np.prod(np.maximum(np.abs(a.astype(np.float64)), 1))
        if name == "prod" and partial > np.finfo(np.float32).max:
            continue  # inf * 0 on the way: whether it comes up depends on the order
        with np.errstate(over="ignore"):
            expected = getattr(strict, name)(s, axis=axis, keepdims=keep)
        compare(getattr(nf, name)(x, axis=axis, keepdims=keep), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "bool", "float16"])
def test_sums_widen_like_numpy(dtype: str) -> None:
    x = np.ones((3, 100), dtype)
    got = nf.sum(nf.asarray(x), axis=1)
    assert got.dtype == (np.sum(x).dtype if dtype != "float16" else np.float16) and got.tolist() == [100] * 3
    assert nf.sum(nf.asarray(x), dtype=nf.float64).dtype == nf.float64
    assert nf.mean(nf.asarray(x)).dtype == (nf.float16 if dtype == "float16" else nf.float32)


def test_arg_reductions() -> None:
    a = np.array([[3.0, 9.0, 9.0], [np.nan, 2.0, 1.0]], np.float32)
    for name in ("argmax", "argmin"):
        for axis in (None, 0, 1):
            got = getattr(nf, name)(nf.asarray(a), axis=axis)
            assert got.dtype == nf.int64
            np.testing.assert_array_equal(np.asarray(got), getattr(np, name)(a, axis=axis))


SHAPES: dict[str, Any] = {
    "reshape": lambda xp, x: xp.reshape(x, (4, 6)),
    "permute_dims": lambda xp, x: xp.permute_dims(x, (2, 0, 1)),
    "moveaxis": lambda xp, x: xp.moveaxis(x, 0, 2),
    "expand_dims": lambda xp, x: xp.expand_dims(x, axis=1),
    "squeeze": lambda xp, x: xp.squeeze(xp.expand_dims(x, axis=0), axis=0),
    "flip": lambda xp, x: xp.flip(x, axis=1),
    "roll": lambda xp, x: xp.roll(x, (1, -2), axis=(0, 2)),
    "concat": lambda xp, x: xp.concat([x, x], axis=-1),
    "stack": lambda xp, x: xp.stack([x, x], axis=-1),
    "tile": lambda xp, x: xp.tile(x, (2, 1, 1, 2)),
    "repeat": lambda xp, x: xp.repeat(x, 2, axis=1),
    "broadcast_to": lambda xp, x: xp.broadcast_to(x, (5, 2, 3, 4)),
    "unstack": lambda xp, x: xp.unstack(x, axis=1)[1],
    "matrix_transpose": lambda xp, x: xp.matrix_transpose(x),
    "tril": lambda xp, x: xp.tril(x, k=-1),
    "triu": lambda xp, x: xp.triu(x),
    "take": lambda xp, x: xp.take(x, xp.asarray([2, 0]), axis=1),
    "where": lambda xp, x: xp.where(x > 3, x, -x),
    "take_along_axis": lambda xp, x: xp.take_along_axis(x, xp.argmax(x, axis=2, keepdims=True), axis=2),
    "clip": lambda xp, x: xp.clip(x, 2, 9),
    "astype": lambda xp, x: xp.astype(x, xp.int32),
    "matmul": lambda xp, x: xp.matmul(x, xp.matrix_transpose(x)),
    "tensordot": lambda xp, x: xp.tensordot(x, x, axes=((1, 2), (1, 2))),
    "vecdot": lambda xp, x: xp.vecdot(x, x, axis=-1),
    "full_like": lambda xp, x: xp.full_like(x, 3),
    "zeros_like": lambda xp, x: xp.zeros_like(x),
    "arange": lambda xp, x: xp.arange(1, 7, 2),
    "linspace": lambda xp, x: xp.linspace(0, 1, 7),
    "eye": lambda xp, x: xp.eye(3, 4, k=1),
    "full": lambda xp, x: xp.full((2,), True),
    "ones": lambda xp, x: xp.ones((2, 3)),
    "zeros": lambda xp, x: xp.zeros(4, dtype=xp.int8),
    "meshgrid": lambda xp, x: xp.meshgrid(x[0, 0, :], x[0, :, 0])[1],
    "broadcast_arrays": lambda xp, x: xp.broadcast_arrays(x, x[0, ...])[1],
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_and_creation(name: str) -> None:
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    got, expected = SHAPES[name](nf, nf.asarray(a)), np.asarray(SHAPES[name](strict, strict.asarray(a)))
    if name in ("linspace", "eye", "ones"):
        expected = expected.astype(np.float32)  # strict's default float is float64
    compare(got, expected)


def test_other_numpy_functions() -> None:
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    x = nf.asarray(a)
    for got, expected in (
        (nf.swapaxes(x, 0, 2), np.swapaxes(a, 0, 2)),
        (
            nf.pad(x, ((0, 1), (2, 0), (0, 0)), constant_values=7),
            np.pad(a, ((0, 1), (2, 0), (0, 0)), constant_values=7),
        ),
        (nf.pad(x[0], 1), np.pad(a[0], 1)),
        (nf.outer(x[0, 0], x[0, 1]), np.outer(a[0, 0], a[0, 1])),
        (nf.roll(x, 5), np.roll(a, 5)),
        (nf.sigmoid(x - 10), 1 / (1 + np.exp(-(a - 10)))),
        (nf.rsqrt(x + 1), 1 / np.sqrt(a + 1)),
        (nf.transpose(x, (1, 0, 2)), a.transpose(1, 0, 2)),
        (nf.arange(5), np.arange(5)),
        (nf.arange(1.0, 0.0, -0.25), np.arange(1.0, 0.0, -0.25, np.float32)),
        (nf.full((2,), 2.5), np.full(2, 2.5, np.float32)),
    ):
        compare(got, expected)
    assert [p.tolist() for p in nf.split(nf.arange(5), [1, 3])] == [[0], [1, 2], [3, 4]]
    assert nf.broadcast_shapes((2, 1), (3,)) == (2, 3)


def test_parameter_names_are_the_standard_s() -> None:
    checked = 0
    for name in (*UNARY, *BINARY, *SHAPES, "sum", "mean", "max", "argmax", "var", "std", "prod", "all"):
        wanted = getattr(strict, name, None)
        if wanted is None or name in UNARY or name in BINARY:
            continue
        own = inspect.signature(getattr(nf, name)).parameters
        for parameter in inspect.signature(wanted).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY:
                assert parameter.name in own, (name, parameter.name)
                assert own[parameter.name].kind is not parameter.POSITIONAL_ONLY
                checked += 1
    assert checked > 30


def test_array_has_the_standard_s_methods() -> None:
    for name in dir(strict.asarray(1.0)):
        if name.startswith("__") and name.endswith("__") and name not in ("__buffer__",):
            assert hasattr(nf.Array, name) or name in ("__weakref__", "__dict__"), name
    for name in ("dtype", "device", "mT", "ndim", "shape", "size", "T", "to_device"):
        assert hasattr(nf.asarray([[1.0]]), name)


@pytest.mark.parametrize("name", [*UNARY, *BINARY, "sigmoid", "rsqrt"])
def test_generated_examples_run(name: str) -> None:
    examples = doctest.DocTestFinder(recurse=False).find(getattr(nf, name), name, globs={})
    assert doctest.DocTestRunner().run(examples[0]).failed == 0 and examples[0].examples
