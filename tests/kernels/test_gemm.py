"""GEMM on every device against float64: dense arrays, layouts, batches, outputs, arguments.

Operands are in test_gemm_operands.py. tests/kernels/cublaslt runs both files once more through the CUDA
launcher over an emulated cuBLASLt.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.errors import ArgumentError, DTypeError, ShapeError
from nvfp.kernels.gemm import gemm
from tests.devices import to_device, to_numpy
from tests.kernels.gemm_operands import BF16, DENSE, F16, F32, F64, dense, moved
from tests.oracles import gemm as oracle
from tests.tolerances import check

SHAPES = [(1, 1, 1), (3, 5, 7), (16, 24, 32), (33, 17, 65), (1, 40, 64), (64, 1, 48), (130, 72, 96)]  # M, N, K
LAYOUTS = ["NN", "NT", "TN", "TT"]


def laid_out(x: np.ndarray, layout: str) -> np.ndarray:
    """The same matrix, stored row by row ("N") or column by column ("T")."""
    return x if layout == "N" else np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


def run(device: Device, a: Any, b: Any, **arguments: Any) -> np.ndarray:
    """GEMM on the device under test, back as NumPy."""
    given = {k: to_device(v, device) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
    result = gemm(moved(a, device), moved(b, device), **given)
    assert "out" not in given or result is given["out"]
    return to_numpy(result)


def agree(device: Device, a: Any, b: Any, name: str = "gemm", **arguments: Any) -> np.ndarray:
    """Run a GEMM and compare it with float64; return the result."""
    terms = {k: arguments.get(k) for k in ("bias", "alpha")}
    terms["out"] = arguments["out"].copy() if arguments.get("accumulate") else None
    expected = oracle.gemm(a, b, **terms)
    found = run(device, a, b, **arguments)
    check(found, expected.value, name, scale=expected.scale)
    return found


@pytest.mark.sanitizer
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DENSE, ids=str)
def test_dense_layouts_and_shapes(device: Device, dtype: np.dtype, layout: str) -> None:
    rng = np.random.default_rng(1)
    for m, n, k in SHAPES:
        a, b = laid_out(dense(rng, (m, k), dtype), layout[0]), laid_out(dense(rng, (k, n), dtype), layout[1])
        found = agree(device, a, b)
        assert found.dtype == dtype and found.flags.c_contiguous


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return np.asarray(rng.integers(-4, 5, shape).astype(dtype))


@pytest.mark.parametrize("dtype", DENSE, ids=str)
def test_integers_are_exact(device: Device, dtype: np.dtype) -> None:
    rng = np.random.default_rng(2)
    a, b, bias = integers(rng, (37, 90), dtype), integers(rng, (90, 23), dtype), integers(rng, (23,), dtype)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    result = F64 if dtype == F64 else F32
    np.testing.assert_array_equal(run(device, a, b, dtype=result), expected)
    np.testing.assert_array_equal(run(device, a, b, dtype=result, bias=bias), expected + bias.astype(np.float64))


def test_float32_is_not_tf32(device: Device) -> None:
    a = np.full((64, 64), 1 + 2.0**-20, F32)
    np.testing.assert_array_equal(run(device, a, np.eye(64, dtype=F32)), a)


def test_strided_reversed_and_broadcast_inputs(device: Device) -> None:
    rng = np.random.default_rng(3)
    big = dense(rng, (40, 60))
    row = np.broadcast_to(dense(rng, (60,)), (40, 60))
    for a in (big[::2, ::3], big[::-1], big[:, ::-1], big[5:25, 7:31], big.T[3:40:2], row, row.T):
        b = dense(rng, (a.shape[1], 9))
        agree(device, a, b)
        agree(device, b.T, a.T)


def test_misaligned_addresses(device: Device) -> None:
    rng = np.random.default_rng(4)
    for dtype in (BF16, F16, F32):
        a, b = (
            dense(rng, (16 * 32 + 1,), dtype)[1:].reshape(16, 32),
            dense(rng, (32 * 24 + 3,), dtype)[3:].reshape(32, 24),
        )
        bias, out = dense(rng, (25,), dtype)[1:], np.zeros(16 * 24 + 1, dtype)[1:].reshape(16, 24)
        agree(device, a, b, bias=bias, out=out)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3, 5, 8), (2, 3, 8, 4)),
        ((2, 3, 5, 8), (8, 4)),
        ((5, 8), (3, 8, 4)),
        ((1, 3, 5, 8), (2, 1, 8, 4)),
        ((2, 1, 1, 8), (1, 3, 8, 1)),
        ((4, 1, 8), (8, 6)),
        ((7, 5, 8), (1, 8, 6)),
    ],
)
def test_batches_broadcast(device: Device, left: tuple[int, ...], right: tuple[int, ...], dtype: np.dtype) -> None:
    rng = np.random.default_rng(5)
    agree(device, dense(rng, left, dtype), dense(rng, right, dtype), bias=dense(rng, right[-1:], dtype))


def test_batches_of_views(device: Device) -> None:
    rng = np.random.default_rng(6)
    a, b = dense(rng, (6, 5, 4, 8)), dense(rng, (6, 5, 8, 4))
    agree(device, a[::2, ::-1], b[1::2])
    agree(device, a.transpose(1, 0, 2, 3), b.transpose(1, 0, 2, 3))
    agree(device, a.transpose(0, 2, 1, 3), dense(rng, (6, 4, 8, 3)))
    agree(device, a.transpose(0, 2, 1, 3), dense(rng, (8, 3)))
    agree(device, np.broadcast_to(a[:1], a.shape), b)
    whole = np.full((6, 5, 4, 7), np.nan, np.float32)
    found = agree(device, a, b, out=whole[..., 1:5])
    assert found.shape == (6, 5, 4, 4)


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_empty(device: Device, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    rng = np.random.default_rng(7)
    a, b, bias = dense(rng, (m, k), BF16), dense(rng, (k, n), BF16), dense(rng, (n,), BF16)
    np.testing.assert_array_equal(run(device, a, b), np.zeros((m, n)))
    agree(device, a, b, bias=bias)
    agree(device, a, b, out=np.full((m, n), 7, F32), dtype=F32)
    agree(device, a, b, out=np.full((m, n), 7, F32), accumulate=True, bias=bias)
    infinite = np.asarray(np.float32(np.inf))
    np.testing.assert_array_equal(run(device, a, b, alpha=infinite), np.zeros((m, n)))
    assert run(device, np.zeros((0, 2, 3), F32), np.zeros((3, 4), F32)).shape == (0, 2, 4)


@pytest.mark.parametrize("result", DENSE, ids=str)
@pytest.mark.parametrize("dtype", DENSE, ids=str)
def test_result_dtypes(device: Device, dtype: np.dtype, result: np.dtype) -> None:
    rng = np.random.default_rng(8)
    a, b, bias = dense(rng, (9, 20), dtype), dense(rng, (20, 12), dtype), dense(rng, (12,), result)
    assert agree(device, a, b, dtype=result, bias=bias).dtype == result
    out = dense(rng, (9, 12), result)
    agree(device, a, b, out=out, accumulate=True, bias=bias)


@pytest.mark.parametrize(
    ("left", "right", "result"), [(BF16, F32, F32), (F32, F16, F32), (BF16, F16, F32), (F64, BF16, F64)]
)
def test_mixed_dtypes(device: Device, left: np.dtype, right: np.dtype, result: np.dtype) -> None:
    rng = np.random.default_rng(9)
    assert agree(device, dense(rng, (9, 20), left), dense(rng, (20, 12), right)).dtype == result


@pytest.mark.parametrize("bias", DENSE, ids=str)
@pytest.mark.parametrize("result", [F32, BF16], ids=str)
def test_bias_is_rounded_to_the_result(device: Device, bias: np.dtype, result: np.dtype) -> None:
    rng = np.random.default_rng(10)
    a, b, given = dense(rng, (9, 20), BF16), dense(rng, (20, 12), BF16), dense(rng, (24,), bias)[::2]
    expected = oracle.gemm(a, b, bias=given.astype(result))
    check(run(device, a, b, bias=given, dtype=result), expected.value, "gemm", scale=expected.scale)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_out_of_any_strides(device: Device, dtype: np.dtype) -> None:
    rng = np.random.default_rng(11)
    a, b, word = dense(rng, (9, 20), dtype), dense(rng, (20, 12), dtype), np.asarray(np.float32(-1.5))
    for accumulate in (False, True):
        for make in (
            lambda x: x[:9, :12],  # a leading dimension
            lambda x: x[:9, 1:13],
            lambda x: x[:12, :9].T,  # column by column
            lambda x: x[::2, ::2][:9, :12],
            lambda x: x[8::-1, :12],
        ):
            whole = dense(rng, (30, 30), dtype)
            keep, view = whole.copy(), make(whole)
            expected = oracle.gemm(a, b, out=view.copy() if accumulate else None, alpha=word)
            target = to_device(whole, device)
            view = make(target)
            gemm(
                to_device(a, device),
                to_device(b, device),
                out=view,
                accumulate=accumulate,
                alpha=to_device(word, device),
            )
            check(to_numpy(view), expected.value, "gemm", scale=expected.scale)
            after = to_numpy(target).copy()
            make(after)[...] = make(keep)
            np.testing.assert_array_equal(after, keep)  # nothing beside the view was written


def test_alpha(device: Device) -> None:
    rng = np.random.default_rng(12)
    word = np.asarray(np.float32(0.375))
    for dtype in DENSE:
        a, b, bias = dense(rng, (9, 20), dtype), dense(rng, (20, 12), dtype), dense(rng, (12,), dtype)
        agree(device, a, b, alpha=word)
        agree(device, a, b, alpha=word, bias=bias, out=dense(rng, (9, 12), dtype), accumulate=True)


def test_nan_and_infinity(device: Device) -> None:
    rng = np.random.default_rng(13)
    a, b = dense(rng, (8, 16)), dense(rng, (16, 8))
    a[2, 3], a[4, 5], b[7, 6] = np.nan, np.inf, -np.inf
    found = run(device, a, b)
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
    unread = run(device, np.ones((2, 4), F32), np.ones((4, 2), F32), out=np.full((2, 2), np.nan, F32))
    np.testing.assert_array_equal(unread, np.full((2, 2), 4.0))


@pytest.mark.parametrize("dtype", DENSE, ids=str)
def test_bits_repeat(device: Device, dtype: np.dtype) -> None:
    rng = np.random.default_rng(14)
    a, b = dense(rng, (65, 300), dtype), dense(rng, (300, 47), dtype)
    first = run(device, a, b)
    assert all(first.tobytes() == run(device, a, b).tobytes() for _ in range(3))


def test_inputs_are_left_alone(device: Device) -> None:
    rng = np.random.default_rng(15)
    a, b = dense(rng, (9, 20)), dense(rng, (20, 12))
    a.flags.writeable = b.flags.writeable = False
    agree(device, a, b)


def test_refusals(device: Device) -> None:
    def f(*args: Any, **arguments: Any) -> Any:
        return run(device, *args, **arguments)

    a, b = np.ones((2, 3), F32), np.ones((3, 4), F32)
    with pytest.raises(ShapeError, match=r"equal inner lengths, got \(2, 3\) @ \(2, 3\)"):
        f(a, a)
    with pytest.raises(ShapeError, match="two axes"):
        f(a, b[:, 0])
    with pytest.raises(ShapeError, match="batch axes"):
        f(np.ones((2, 2, 3), F32), np.ones((3, 3, 4), F32))
    with pytest.raises(ShapeError, match="bias of shape"):
        f(a, b, bias=np.ones(3, F32))
    with pytest.raises(ShapeError, match="out as float32"):
        f(a, b, out=np.ones((4, 2), F32))
    with pytest.raises(ShapeError, match="out as bfloat16"):
        f(a, b, out=np.ones((2, 4), F32), dtype=BF16)
    with pytest.raises(ArgumentError, match="accumulate=True"):
        f(a, b, accumulate=True)
    with pytest.raises(DTypeError, match="int64"):
        f(np.ones((2, 3), np.int64), b)
    with pytest.raises(DTypeError, match="bias"):
        f(a, b, bias=np.ones(4, np.int64))
    with pytest.raises(DTypeError, match="alpha"):
        f(a, b, alpha=2.0)
