"""The dense array: attributes, operators, promotion, scalars, printing, device rules."""

from __future__ import annotations

import operator
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DeviceError, DTypeError, ShapeError

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTS = ["int8", "uint8", "int32", "int64"]


def test_attributes(device: Any) -> None:
    x = nf.asarray([[1.0, 2.0, 3.0]])
    assert (x.shape, x.ndim, x.size, x.itemsize, x.nbytes, x.device) == ((1, 3), 2, 3, 4, 12, device)
    assert x.dtype is np.dtype("float32") and x.T.shape == (3, 1) and x.mT.shape == (3, 1)
    assert x.__array_namespace__() is nf and x.storage is x.T.storage
    assert nf.zeros((2, 3), dtype=nf.float8_e4m3fn).nbytes == 6


def test_arrays_are_made_by_functions() -> None:
    with pytest.raises(DTypeError, match=r"use nf\.asarray"):
        nf.Array([1.0])
    with pytest.raises(TypeError):
        hash(nf.asarray(1.0))


OPERATORS = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.eq,
    operator.ne,
]


@pytest.mark.parametrize("op", OPERATORS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_operators_like_numpy(op: Any, dtype: str, device: Any) -> None:
    a, b = np.array([[5, 7, 2]], dtype), np.array([[2], [3]], dtype)
    x, y = nf.asarray(a), nf.asarray(b)
    for got, expected in ((op(x, y), op(a, b)), (op(x, 3), op(a, 3)), (op(3, y), op(3, b)), (op(x, x), op(a, a))):
        if dtype == "int32" and op is operator.truediv:
            expected = expected.astype(np.float32)
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-6)


@pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift], ids=str)
def test_bit_operators(op: Any, device: Any) -> None:
    a, b = np.array([12, 7, 1]), np.array([3, 2, 1])
    for got, expected in (
        (op(nf.asarray(a), nf.asarray(b)), op(a, b)),
        (op(nf.asarray(a), 2), op(a, 2)),
        (op(9, nf.asarray(b)), op(9, b)),
    ):
        assert got.tolist() == expected.tolist()
    assert (~nf.asarray(a)).tolist() == (~a).tolist() and (~nf.asarray([True])).tolist() == [False]


def test_unary_operators() -> None:
    x = nf.asarray([-1.0, 2.0])
    assert (-x).tolist() == [1.0, -2.0] and (+x).tolist() == [-1.0, 2.0] and abs(x).tolist() == [1.0, 2.0]
    assert (x @ x).item() == 5.0 and (
        [1.0] @ nf.asarray([[2.0]]) if False else x @ np.ones(2, np.float32)
    ).item() == 1.0


@pytest.mark.parametrize("a", FLOATS + INTS + ["bool"])
@pytest.mark.parametrize("b", FLOATS + INTS + ["bool"])
def test_results_have_the_promoted_dtype(a: str, b: str) -> None:
    x, y = nf.ones((2,), dtype=a), nf.ones((2,), dtype=b)
    expected = nf.result_type(a, b)
    assert nf.add(x, y).dtype == expected
    assert nf.where(x.astype("bool"), x, y).dtype == expected
    assert nf.concat([x, y]).dtype == expected
    assert (x == y).dtype == nf.bool and (x == y).tolist() == [True, True]


@pytest.mark.parametrize("dtype", FLOATS + INTS)
def test_python_scalars_are_weak_and_numpy_scalars_are_not(dtype: str) -> None:
    x = nf.ones((2,), dtype=dtype)
    assert (x + 1).dtype == x.dtype
    assert (x * 2.0).dtype == nf.result_type(dtype, 2.0)
    assert (x * np.float64(2)).dtype == nf.float64 and (np.float64(2) * x).dtype == nf.float64
    assert (2 - x).tolist() == [1, 1]


def test_storage_dtypes_count_as_python_floats() -> None:
    q, n = nf.ones((2,)).astype(nf.nvfp4), nf.ones((2,), dtype=nf.float8_e4m3fn)
    b = nf.ones((2,), dtype=nf.bfloat16)
    assert (q + b).dtype == nf.bfloat16 and (n * b).dtype == nf.bfloat16
    assert (q + q).dtype == (n + n).dtype == (q + 1).dtype == (n * n.astype(nf.int32)).dtype == nf.float32


def test_small_floats_compute_in_float32() -> None:
    x = nf.full((4096,), 0.1, dtype=nf.bfloat16)
    assert float(x.sum()) == pytest.approx(409.6, rel=2**-8) and float(x.mean()) == pytest.approx(0.1, rel=2**-8)
    y = nf.asarray([256.0], dtype=nf.bfloat16) + nf.asarray([1.0], dtype=nf.bfloat16)
    assert y.tolist() == [256.0]
    half = nf.full((8,), 60000.0, dtype=nf.float16)
    assert float(half.mean()) == 60000.0


def test_conversion_to_python() -> None:
    x = nf.asarray(3.5)
    assert float(x) == 3.5 and int(x) == 3 and bool(x) and complex(x) == 3.5 + 0j and f"{x:.1f}" == "3.5"
    assert [10, 20, 30][nf.asarray(1)] == 20 and range(5)[nf.asarray(2) :] == range(2, 5)
    with pytest.raises(TypeError, match=r"\[bool\] expected a 0-d array.*nf\.any\(x\)"):
        bool(nf.asarray([1.0, 2.0]))
    with pytest.raises(TypeError, match=r"\[index\] expected an integer array"):
        operator.index(nf.asarray(1.0))
    with pytest.raises(ValueError, match=r"one element|size 1|scalar"):
        nf.asarray([1.0, 2.0]).item()


def test_foreign_operands_are_refused_by_python() -> None:
    x = nf.asarray([1.0])
    for other in ("a", [1.0], {}, object()):
        with pytest.raises(TypeError):
            x + other
        with pytest.raises(TypeError):
            other - x
    assert x.__eq__(None) is NotImplemented
    with pytest.raises(DTypeError, match=r"\[add\] expected arrays or scalars, got list"):
        nf.add(x, [1.0])


def test_shapes_that_do_not_broadcast() -> None:
    for n in (2, 5000):
        with pytest.raises(
            ShapeError, match=r"\[add\] expected shapes that broadcast, got \(\d+,[^)]*\), \(\d+,[^)]*\); insert"
        ):
            nf.ones((n,)) + nf.ones((n + 1,))
    with pytest.raises(
        ShapeError, match=r"\[matmul\] expected equal inner lengths, got \(2, 3\) @ \(2, 3\); transpose"
    ):
        nf.ones((2, 3)) @ nf.ones((2, 3))
    with pytest.raises(ShapeError, match=r"\[matmul\]"):
        nf.ones((2, 3)) @ nf.asarray(1.0)


@pytest.mark.gpu
def test_devices_never_mix() -> None:
    x, y = nf.ones((2,), device="cuda"), nf.ones((2,), device="cpu")
    for f in (nf.add, nf.matmul, lambda a, b: nf.where(a > 0, a, b), lambda a, b: nf.concat([a, b])):
        with pytest.raises(DeviceError, match="one device"):
            f(x, y)
    with pytest.raises(DeviceError):
        x + np.ones(2, np.float32)
    assert (x * np.float32(2)).device == x.device
    x.requires_grad = True
    (x.to_device("cpu") * y).sum().backward()
    assert x.grad is not None and x.grad.device == "cuda"


def test_asarray_keeps_and_converts(device: Any) -> None:
    x = nf.asarray([1.0, 2.0])
    assert nf.asarray(x) is x and nf.asarray(x, dtype=nf.float32) is x and nf.asarray(x, copy=True) is not x
    assert (
        nf.asarray(1).dtype == nf.int64 and nf.asarray(True).dtype == nf.bool and nf.asarray(1j).dtype == nf.complex64
    )
    assert nf.asarray(np.float64(1)).dtype == nf.float64 and nf.asarray([np.float32(1)]).dtype == nf.float32
    assert nf.asarray([[1, 2], [3, 4]], dtype=nf.nvfp4).dtype is nf.nvfp4
    assert nf.asarray([x, x]).shape == (2, 2) and nf.asarray([[x[0], 2.0]]).tolist() == [[1.0, 2.0]]
    assert nf.asarray(range(3)).tolist() == [0, 1, 2] and nf.asarray([]).dtype == nf.float32
    big = np.arange(3, dtype=">f4")
    assert nf.asarray(big).dtype is nf.float32 and nf.asarray(big).tolist() == [0.0, 1.0, 2.0]
    for bad in (["a"], [object()], np.array(["x"]), np.zeros(1, "datetime64[s]"), np.zeros(1, np.longdouble)):
        with pytest.raises(DTypeError):
            nf.asarray(bad)
    with pytest.raises(ArgumentError, match="copy=False"):
        nf.asarray([1.0], copy=False)
    with pytest.raises(ArgumentError, match="copy=False"):
        nf.asarray(x, dtype=nf.float64, copy=False)


def test_asarray_shares_numpy_memory_on_the_cpu() -> None:
    for dtype in ("float32", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, "int16"):
        a = np.zeros(3, dtype)
        x = nf.asarray(a, copy=False)
        a[1] = 2
        assert float(x[1]) == 2.0 and np.asarray(x).dtype == a.dtype and np.shares_memory(np.asarray(x), a)
        assert not np.shares_memory(np.asarray(nf.asarray(a, copy=True)), a)
    assert nf.asarray(np.zeros(2)).dtype == nf.float64


def test_requires_grad_of_asarray_makes_a_new_variable() -> None:
    x = nf.asarray([1.0])
    y = nf.asarray(x, requires_grad=True)
    assert y is not x and y.requires_grad and not x.requires_grad and y.raw is x.raw


REPR = {
    "nf.array([1., 2.])": lambda: nf.asarray([1.0, 2.0]),
    "nf.array([1, 2])": lambda: nf.asarray([1, 2]),
    "nf.array([ True])": lambda: nf.asarray([True]),
    "nf.array(3., requires_grad=True)": lambda: nf.asarray(3.0, requires_grad=True),
    "nf.array([1., 2.], dtype=float64)": lambda: nf.asarray(np.array([1.0, 2.0])),
    "nf.array([1. , 0.3], dtype=float16)": lambda: nf.asarray([1.0, 0.3], dtype="float16"),
    "nf.array([ 1.  ,  0.1 , -3.14], dtype=bfloat16)": lambda: nf.asarray([1.0, 0.1, -3.1415], dtype="bfloat16"),
    "nf.array([], shape=(0, 2))": lambda: nf.zeros((0, 2)),
    "nf.array([[  0.5],\n          [  1. ],\n          [448. ]], dtype=float8_e4m3fn)": lambda: nf.asarray(
        [[0.5], [1.0], [448.0]], dtype="float8_e4m3fn"
    ),
    "nf.array(1.5, dtype=bfloat16)": lambda: nf.asarray(1.5, dtype="bfloat16"),
    "nf.array([nan, inf], dtype=bfloat16)": lambda: nf.asarray([np.nan, np.inf], dtype="bfloat16"),
}


@pytest.mark.parametrize("text", REPR)
def test_repr(text: str) -> None:
    assert repr(REPR[text]()) == text
    with np.printoptions(precision=2):
        assert repr(nf.asarray([1.23456])) == "nf.array([1.23])"


def test_printed_digits_tell_16_bit_floats_apart() -> None:
    for dtype in ("float16", "bfloat16"):
        x = (
            nf.asarray(np.nextafter(np.float16(1.5), np.float16(2)))
            if dtype == "float16"
            else nf.asarray(1.5 + 2**-7).astype(dtype)
        )
        shown = repr(nf.stack([nf.asarray(1.5).astype(dtype), x.astype(dtype)]))
        first, second = shown[shown.index("[") + 1 : shown.index("]")].split(", ")
        assert first != second


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float4_e2m1fn"])
def test_printed_values_round_back_and_stand_in_columns(dtype: str) -> None:
    width = 2 if dtype == "bfloat16" else 1
    codes = np.arange(16 if "4_" in dtype else 64 if "6_" in dtype else 256 if width == 1 else 2**16)
    x = codes.astype(f"uint{8 * width}").view(nf.result_type(dtype))
    x = x[np.isfinite(x.astype(np.float32))][:: 1 if width == 1 else 61]
    with np.printoptions(threshold=10**6):
        text = repr(nf.asarray(x.reshape(-1, 1), device="cpu"))
    rows = [row.strip(" []") for row in text[text.index("[[") : text.index("]]")].replace("[", " ").split("],")]
    points = {len(row) - row.index(".") for row in rows}
    assert len(points) == 1, "decimal points stand in one column"
    np.testing.assert_array_equal(np.array(rows, np.float64).astype(x.dtype).astype(np.float64), x.astype(np.float64))


def test_long_arrays_print_their_ends_only() -> None:
    x = nf.asarray(np.linspace(1, 2, 10**6).reshape(1000, -1), dtype=nf.bfloat16, device="cpu")
    assert repr(x).startswith("nf.array([[1., 1., 1., ..., 1., 1., 1.],\n") and repr(x).count("...") == 7


def test_import_loads_no_heavy_package() -> None:
    heavy = {"numba", "cupy", "torch", "jax", "matplotlib"}
    code = f"import sys, nvfp.arrays, nvfp.autograd; sys.exit(str({heavy} & set(sys.modules) or '') or 0)"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
