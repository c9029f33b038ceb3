"""`reduce`: float sums bit for bit against the tree, everything else against Python, over any axes and layout."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from nvfp.device import Device
from nvfp.errors import ArgumentError, DTypeError, NvfpError, ShapeError
from nvfp.kernels.cuda._launch import count_launches
from nvfp.kernels.cuda.reduce import layout_of
from nvfp.kernels.reduce import reduce
from tests.devices import to_device, to_numpy
from tests.oracles import reduce as oracle
from tests.tolerances import check

BF16, F16, F32, F64 = (np.dtype(t) for t in (ml_dtypes.bfloat16, np.float16, np.float32, np.float64))
FLOATS = (F32, BF16, F16, F64)
SUMS = ("sum", "mean", "prod", "sumsq")
# Lengths around every border of the kernels: packs of 8, lanes, steps, warps, segments, rows of a thread and a block.
LENGTHS = (1, 2, 7, 8, 9, 15, 16, 17, 63, 65, 255, 257, 511, 1000, 2048, 2049, 5000, 16385, 70_001)


def accumulator(dtype: np.dtype) -> Any:
    return np.float64 if dtype == F64 else np.float32


def bits_equal(actual: np.ndarray, expected: np.ndarray) -> None:
    """Assert equal values and signs of zeros; NaN is NaN."""
    assert actual.dtype == expected.dtype
    a, e = actual.astype(F64).ravel(), expected.astype(F64).ravel()
    ok = (a == e) & (np.signbit(a) == np.signbit(e)) | np.isnan(a) & np.isnan(e)
    assert ok.all(), f"{(~ok).sum()} of {ok.size} differ: got {a[~ok][:3]}, expected {e[~ok][:3]}"


def tree_of(op: str, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return oracle.float_reduce(op, x, axes, accumulator(x.dtype)).astype(x.dtype)


def normal(shape: tuple[int, ...], dtype: np.dtype, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def speckled(shape: tuple[int, ...], dtype: np.dtype, seed: int = 0) -> np.ndarray:
    """Few different values, with zeros, infinities and NaN among them."""
    some = np.array([0.0, -0.0, 1.0, 2.0, -1.0, -3.0, np.inf, -np.inf, np.nan] + [0.5] * 40)
    return np.random.default_rng(seed).choice(some, shape).astype(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_row_lengths(dtype: np.dtype, device: Device) -> None:
    for n in LENGTHS if dtype in (F32, BF16) else (9, 2049, 16385):
        x = normal((2, n), dtype, n)
        bits_equal(to_numpy(reduce("sum", to_device(x, device), axis=1)), tree_of("sum", x, (1,)))


@pytest.mark.parametrize("dtype", (F32, BF16), ids=str)
@pytest.mark.parametrize("op", ("mean", "prod", "sumsq"))
def test_other_trees(op: str, dtype: np.dtype, device: Device) -> None:
    for n in (9, 700, 17_000):
        x = normal((3, n), dtype, n)
        bits_equal(to_numpy(reduce(op, to_device(x, device), axis=1)), tree_of(op, x, (1,)))
        bits_equal(to_numpy(reduce(op, to_device(x.T, device), axis=0)), tree_of(op, x, (1,)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("columns", (2, 3, 8, 64, 300))
def test_column_lengths(columns: int, dtype: np.dtype, device: Device) -> None:
    for n in (1, 2, 15, 16, 17, 100, 129, 700, 2100):
        x = normal((n, columns), dtype, n)
        bits_equal(to_numpy(reduce("sum", to_device(x, device), axis=0)), tree_of("sum", x, (0,)))


ORDER_FREE = [
    *(("max", t) for t in (F32, BF16, F64, "int8", "uint64", "bool")),
    *(("argmax", t) for t in (F32, F16, "int32", "uint64")),
    *(("min", t) for t in (F16, "int8")),
    *(("argmin", t) for t in (BF16, "bool")),
    *(("all", t) for t in (F32, "bool")),
    *(("any", t) for t in (BF16, "int64")),
]


@pytest.mark.parametrize(("op", "dtype"), ORDER_FREE, ids=str)
def test_order_free(op: str, dtype: Any, device: Device) -> None:
    for shape, axes in (((3, 700), (1,)), ((2, 40_000), (1,)), ((3000, 16), (0,))):
        x = speckled(shape, F64, len(shape)) if dtype in FLOATS else np.random.default_rng(2).integers(0, 100, shape)
        x = x.astype(dtype)
        actual = to_numpy(reduce(op, to_device(x, device), axis=axes[0]))
        expected = np.array(oracle.exact(op, x, axes)).reshape(actual.shape)
        assert np.array_equal(actual.astype(expected.dtype), expected, equal_nan=expected.dtype.kind == "f")


@pytest.mark.parametrize("op", ("sum", "prod", "sumsq", "max"))
@pytest.mark.parametrize("dtype", ("int64", "int8", "uint32", "uint64", "bool"))
def test_integers(op: str, dtype: str, device: Device) -> None:
    rng = np.random.default_rng(4)
    if dtype == "bool":
        x = rng.random((3, 20_003)) < 0.5
    else:
        limits = np.iinfo(dtype)
        x = rng.integers(limits.min, limits.max, (3, 20_003), dtype=dtype, endpoint=True)
    for view, axes in ((x, (1,)), (x, (0, 1)), (x.T, (0,)), (x, (0,))):
        actual = to_numpy(reduce(op, to_device(view, device), axis=axes))
        wide = dtype if op in ("max", "min") else "uint64" if dtype.startswith("u") else "int64"
        assert actual.dtype == wide
        expected = [int(v) % 2**64 for v in oracle.exact(op, view, axes)]
        assert [int(v) % 2**64 for v in actual.ravel()] == expected


def test_mean_of_integers(device: Device) -> None:
    x = np.random.default_rng(5).integers(-(2**31), 2**31, (7, 300), dtype=np.int32)
    actual = to_numpy(reduce("mean", to_device(x, device), axis=1))
    assert actual.dtype == F32
    assert actual.tolist() == [float(np.float32(sum(row) / 300)) for row in x.tolist()]
    flags = to_device(x > 0, device)
    assert float(to_numpy(reduce("mean", flags))) == float(np.float32((x > 0).sum() / x.size))


def test_narrow_floats_do_not_stall(device: Device) -> None:
    """4,096 tenths: in bfloat16 arithmetic the sum stops at 32."""
    x = to_device(np.full(4096, 0.1, BF16), device)
    assert float(to_numpy(reduce("sum", x))) == 410.0
    assert float(to_numpy(reduce("sum", x, dtype=F32))) == 4096 * 0.10009765625
    assert float(to_numpy(reduce("mean", x))) == 0.10009765625
    ones = to_device(np.ones(2**24 + 64, BF16), device)
    assert float(to_numpy(reduce("sum", ones, dtype=F32))) == 2**24 + 64


def test_long_sum(device: Device) -> None:
    x = np.random.default_rng(6).random(10_000_000, dtype=np.float32)
    exact = math.fsum(x.tolist())
    assert abs(float(to_numpy(reduce("sum", to_device(x, device)))) - exact) <= 2.0**-23 * exact
    check(to_numpy(reduce("mean", to_device(x, device))), exact / x.size, "reduce", F32)


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, ...]]:
    """An array of any layout and some of its axes."""
    shape = draw(st.lists(st.integers(0, 12), max_size=4))
    steps = [draw(st.sampled_from((1, 1, 2, -1, -2))) for _ in shape]
    dtype = draw(st.sampled_from((F32, BF16)))
    base = speckled(tuple(n * abs(s) for n, s in zip(shape, steps)), dtype, draw(st.integers(0, 9)))
    view = np.asarray(base[tuple(slice(None, None, s) for s in steps)])
    view = view.transpose(draw(st.permutations(range(len(shape)))))
    if shape and draw(st.booleans()):
        view = np.broadcast_to(view[:1], view.shape) if view.shape[0] else view
    return view, tuple(sorted(draw(st.sets(st.integers(0, len(shape) - 1))))) if shape else ()


@pytest.mark.sanitizer
@settings(max_examples=200)
@given(case=cases(), op=st.sampled_from(("sum", "mean", "argmin", "any")), keepdims=st.booleans())
def test_layouts(case: tuple[np.ndarray, tuple[int, ...]], op: str, keepdims: bool, device: Device) -> None:
    x, axes = case
    axis: Any = axes
    if op == "argmin":
        axis = axes[0] if axes else None
        axes = axes[:1] if axes else tuple(range(x.ndim))
    shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes)
    if op == "argmin" and math.prod(x.shape[a] for a in axes) == 0:
        with pytest.raises(ShapeError):
            reduce(op, to_device(x, device), axis=axis, keepdims=keepdims)
        return
    actual = to_numpy(reduce(op, to_device(x, device), axis=axis, keepdims=keepdims))
    assert actual.shape == shape
    if op in SUMS:
        bits_equal(actual, tree_of(op, x, axes))
    else:
        expected = np.array(oracle.exact(op, x, axes)).reshape(shape)
        assert np.array_equal(actual.astype(expected.dtype), expected, equal_nan=expected.dtype.kind == "f")


def test_layout_does_not_change_bits(device: Device) -> None:
    x = normal((40, 50, 60), F32)
    forms = [
        x,
        np.asfortranarray(x),
        x[::-1][::-1],
        np.repeat(x, 2, 2)[..., ::2],
        np.moveaxis(np.moveaxis(x, 1, 0).copy(), 0, 1),
    ]
    for axes in ((0,), (1,), (2,), (0, 2), (0, 1, 2)):
        results = [to_numpy(reduce("sum", to_device(form, device), axis=axes)) for form in forms]
        for result in results[1:]:
            bits_equal(result, results[0])


def test_positions_and_nan(device: Device) -> None:
    x = np.array([[1.0, 3.0, 3.0, -np.inf], [np.nan, 9.0, np.nan, 0.0], [-0.0, 0.0, -0.0, 0.0]], F32)
    on = to_device(x, device)
    assert to_numpy(reduce("argmax", on, axis=1)).tolist() == [1, 0, 0]
    assert to_numpy(reduce("argmin", on, axis=1)).tolist() == [3, 0, 0]
    assert to_numpy(reduce("argmax", on)).tolist() == 4
    assert np.array_equal(to_numpy(reduce("max", on, axis=0)), [np.nan, 9.0, np.nan, 0.0], equal_nan=True)
    assert np.isnan(to_numpy(reduce("max", on, axis=1))).tolist() == [False, True, False]
    assert to_numpy(reduce("argmax", on, axis=1)).dtype == np.int64


def test_nothing(device: Device) -> None:
    x = to_device(np.zeros((0, 3), F32), device)
    for op, value in (("sum", 0.0), ("sumsq", 0.0), ("prod", 1.0), ("all", True), ("any", False)):
        assert to_numpy(reduce(op, x, axis=0)).tolist() == [value] * 3
    assert np.isnan(to_numpy(reduce("mean", x))).all()
    assert to_numpy(reduce("sum", x, axis=1)).shape == (0,)
    assert to_numpy(reduce("max", x, axis=1)).shape == (0,)
    assert to_numpy(reduce("sum", to_device(np.zeros((0,), np.int8), device))).tolist() == 0


def test_dtype_and_out(device: Device) -> None:
    x = to_device(normal((6, 9), BF16), device)
    assert to_numpy(reduce("sum", x, axis=0, dtype=F32)).dtype == F32
    assert to_numpy(reduce("sum", x, dtype=F64)).dtype == F64
    out = to_device(np.zeros((6, 2), F32), device)[:, 1]
    assert reduce("sum", x, axis=1, out=out) is out
    bits_equal(to_numpy(out), oracle.float_reduce("sum", to_numpy(x), (1,), np.float32))
    wide = np.array([[1.0, 2.0**-8 + 2.0**-40]], F64)  # above a tie of bfloat16, on it after rounding to float32
    assert float(to_numpy(reduce("sum", to_device(wide * 2, device), dtype=BF16))) == 2.015625
    i = to_device(np.array([3, 4], np.int32), device)
    assert float(to_numpy(reduce("mean", i, dtype=BF16))) == 3.5
    assert to_numpy(reduce("any", i, dtype=F32)).dtype == F32


@pytest.mark.parametrize("op", ("sum", "mean", "prod", "all", "any"))
def test_complex_is_numpys(op: str, device: Device) -> None:
    x = (normal((4, 5), F64) + 1j * normal((4, 5), F64, 1)).astype(np.complex64)
    assert np.allclose(to_numpy(reduce(op, to_device(x, device), axis=1)), getattr(np, op)(x, axis=1), rtol=1e-5)


def test_read_only_input() -> None:
    x = normal((5, 5), F32)
    x.flags.writeable = False
    bits_equal(reduce("sum", x, axis=1), tree_of("sum", x, (1,)))


@pytest.mark.gpu
def test_launches() -> None:
    x = to_device(np.ones((1024, 4096), BF16), "cuda")
    for axis, most in ((1, 1), (0, 2), (None, 2)):
        with count_launches() as count:
            reduce("sum", x, axis=axis)
        assert count.n <= most


def test_errors(device: Device) -> None:
    x, c = (to_device(np.ones((2, 3), t), device) for t in (F32, np.complex64))
    cases: list[tuple[type[NvfpError], str, Any, dict[str, Any]]] = [
        (ArgumentError, "median", x, {}),
        (ArgumentError, "sum", x, {"axis": (0, -2)}),
        (ArgumentError, "argmax", x, {"axis": (0, 1)}),
        (ShapeError, "sum", x, {"axis": 2}),
        (ShapeError, "max", x[:0], {"axis": 0}),
        (ShapeError, "sum", x, {"axis": 0, "out": x[0, :2]}),
        (DTypeError, "sum", x, {"dtype": np.dtype(np.int32)}),
        (DTypeError, "argmax", x, {"dtype": F32}),
        (DTypeError, "max", c, {}),
        (DTypeError, "mean", to_device(np.ones(3, np.int32), device), {"dtype": np.dtype(np.int64)}),
    ]
    for error, op, value, more in cases:
        with pytest.raises(error, match=r"^\[\w+\] expected .*, got .*; "):
            reduce(op, value, **more)  # type: ignore[arg-type]


@given(case=cases())
def test_cuda_layouts_address_every_element(case: tuple[np.ndarray, tuple[int, ...]]) -> None:
    """[batch, n, columns] of the launcher walks each result's elements in order."""
    x, axes = case
    if x.size == 0:
        return
    itemsize = x.dtype.itemsize
    layout = layout_of(x.shape, tuple(s // itemsize for s in x.strides), axes)
    if layout is None:
        return
    b, n, c = np.indices((layout.batch, layout.n, layout.columns))
    inner = n if layout.columns == 1 else n * layout.row_stride + c
    at = (b * layout.batch_stride + inner).transpose(0, 2, 1).reshape(-1, layout.n)
    grid = np.indices(x.shape).reshape(x.ndim, x.size)
    strides = np.array([s // itemsize for s in x.strides], int).reshape(-1, 1)
    expected = oracle.rows((strides * grid).sum(0).reshape(x.shape), axes)
    assert np.array_equal(at, expected)
