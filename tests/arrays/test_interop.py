"""NumPy's protocols: functions of NumPy on Arrays, NumPy arrays beside Arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError


def test_ufuncs_give_arrays() -> None:
    x = nf.asarray([0.5, 1.0])
    for name in ("add", "multiply", "power", "arctan2", "maximum", "less", "logical_and", "hypot", "floor_divide"):
        got = getattr(np, name)(x, x)
        assert type(got) is nf.Array
        np.testing.assert_allclose(np.asarray(got), getattr(np, name)(np.asarray(x), np.asarray(x)), rtol=1e-6)
    for name in ("exp", "absolute", "arcsin", "rint", "negative", "sqrt", "isnan", "tanh"):
        got = getattr(np, name)(x)
        assert type(got) is nf.Array
        np.testing.assert_allclose(np.asarray(got), getattr(np, name)(np.asarray(x)), rtol=1e-6)
    assert type(np.ones(2, np.float32) + x) is nf.Array and type(np.float64(2) * x) is nf.Array
    assert type(np.matmul(np.ones((2, 2), np.float32), x)) is nf.Array


def test_ufuncs_record_gradients() -> None:
    x = nf.asarray([0.5, 1.0], requires_grad=True)
    (np.ones(2, np.float32) * np.exp(x)).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(np.asarray(x.grad), np.exp([0.5, 1.0]), rtol=1e-6)


def test_methods_of_ufuncs() -> None:
    x = nf.asarray([[0.5, 1.0], [2.0, 4.0]])
    a = np.asarray(x)
    for call in (
        lambda v: np.add.reduce(v),
        lambda v: np.maximum.reduce(v, axis=1),
        lambda v: np.multiply.reduce(v, axis=None, keepdims=True),
        lambda v: np.add.accumulate(v, axis=1),
    ):
        got = call(x)
        assert type(got) is nf.Array
        np.testing.assert_allclose(np.asarray(got), call(a))
    assert isinstance(np.add.outer(x, x), np.ndarray) and isinstance(np.frexp(x)[0], np.ndarray)  # NumPy's own


def test_numpy_never_writes_into_arrays() -> None:
    x, out = nf.asarray([0.5, 1.0]), np.zeros(2, np.float32)
    assert np.add(x, x, out=out) is out and out.tolist() == [1.0, 2.0]
    out += x
    assert out.tolist() == [1.5, 3.0]
    for call in (
        lambda v: np.add(v, v, out=v),
        lambda v: np.add(out, out, out=v),
        lambda v: np.add.at(v, 0, 1),
        lambda v: np.copyto(v, 0),
        lambda v: np.put(v, 0, 1),
        lambda v: np.fill_diagonal(v, 0),
        lambda v: np.sum(v, out=v),
    ):
        for v in (x, x.astype(nf.nvfp4)):
            with pytest.raises(DTypeError, match="to write into"):
                call(v)
    assert x.tolist() == [0.5, 1.0]


def test_numpy_adds_16_bit_floats_in_float32() -> None:
    """NumPy's own functions would add ml_dtypes up in the element type: 32 instead of 409.6."""
    x = nf.full((4096,), 0.1, dtype=nf.bfloat16)
    assert abs(float(np.trapezoid(x)) - 409.9) < 1 and float(np.sum(x)) == 410
    assert np.result_type(x, nf.ones((2,))) == nf.float32 and not np.iscomplexobj(x)
    assert np.may_share_memory(x, x.raw)


def test_unknown_array_types_decide_themselves() -> None:
    class Other:
        def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> str:
            return "other"

    assert np.concatenate([nf.ones((2,)), Other()]) == "other"


def test_functions_of_both_give_arrays() -> None:
    x = nf.asarray([[1.0, 2.0], [3.0, 4.0]])
    for call in (
        lambda a: np.mean(a, axis=0),
        lambda a: np.sum(a, 1, keepdims=True),
        lambda a: np.concatenate([a, a], axis=1),
        lambda a: np.reshape(a, (4,)),
        lambda a: np.transpose(a),
        lambda a: np.where(a > 2, a, 0.0),
        lambda a: np.stack([a, a]),
        lambda a: np.argmax(a),
        lambda a: np.clip(a, 2, 3),
        lambda a: np.max(a, 0),
        lambda a: np.squeeze(a[:1]),
        lambda a: np.tensordot(a, a, 1),
        lambda a: np.zeros_like(a),
        lambda a: np.take(a, [1, 0], 1),
        lambda a: np.tril(a),
        lambda a: np.roll(a, 1, 0),
        lambda a: np.tile(a, 2),
        lambda a: np.repeat(a, 2, 0),
        lambda a: np.flip(a, 0),
        lambda a: np.expand_dims(a, 0),
        lambda a: np.moveaxis(a, 0, 1),
        lambda a: np.broadcast_to(a, (3, 2, 2)),
        lambda a: np.outer(a[0], a[1]),
    ):
        got, expected = call(x), call(np.asarray(x))
        assert isinstance(got, nf.Array)
        np.testing.assert_allclose(np.asarray(got), expected)


def test_other_functions_fall_back_to_numpy() -> None:
    x = nf.asarray([[1.0, 2.0], [3.0, 5.0]])
    a = np.asarray(x)
    assert np.percentile(x, 50) == np.percentile(a, 50) and isinstance(np.cov(x), np.ndarray)
    np.testing.assert_allclose(np.var(x, ddof=1), np.var(a, ddof=1))
    np.testing.assert_allclose(np.einsum("ij,jk", x, x), a @ a)
    np.testing.assert_allclose(np.fft.fft(x), np.fft.fft(a))
    np.testing.assert_array_equal(x, a)
    assert np.may_share_memory(x, a) and np.shape(x) == (2, 2)
    x.requires_grad = True
    assert np.shape(x) == (2, 2) and np.ndim(x) == 2 and np.size(x) == 4
    with pytest.raises(DTypeError, match=r"\[numpy\.cov\] .*use x\.detach\(\) first"):
        np.cov(x)
    assert type(np.linalg.inv(x)) is nf.Array  # nf.linalg.inv, with its gradient


def test_asarray() -> None:
    x = nf.asarray([1.5, 2.5])
    assert np.asarray(x) is x.raw and np.array(x) is not x.raw and np.asarray(x, dtype="int32").tolist() == [1, 2]
    assert np.asarray(x, copy=False) is x.raw
    with pytest.raises(ValueError, match="copy=False"):
        np.asarray(x, dtype="float64", copy=False)
    b = nf.asarray([1.5], dtype=nf.bfloat16)
    assert np.asarray(b).dtype == nf.bfloat16 and nf.asnumpy(b).tolist() == [1.5]
    assert np.asarray(nf.asarray([1.5], dtype=nf.float8_e5m2)).dtype == nf.float8_e5m2
    assert nf.asnumpy([1, 2]).tolist() == [1, 2]


@pytest.mark.gpu
def test_cuda_arrays_copy_to_the_host() -> None:
    x = nf.ones((2,))
    assert np.asarray(x).tolist() == [1.0, 1.0] and float(x.sum()) == 2.0
    with pytest.raises(ValueError, match="copy=False"):
        np.asarray(x, copy=False)
    with pytest.raises(DTypeError, match=r"x\.to_device\('cpu'\)"):
        np.cov(x)


def test_quantized_dtype_names_are_told_to_use_astype() -> None:
    for call in (lambda: np.zeros(3, dtype=nf.nvfp4), lambda: np.ones(3).astype(nf.nvfp4)):
        with pytest.raises(TypeError, match=r"x\.astype\(nf\.nvfp4\)"):
            call()
    assert np.dtype("f4") != nf.nvfp4


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x, x], lambda x: [[x], [x]]])
def test_masked_arrays_are_refused(wrap: Any) -> None:
    """The numbers under a mask are not meant; all of nvfp would take them for values."""
    x = np.ma.masked_greater(np.float32([1.0, 9.0]), 5)
    with pytest.raises(ArgumentError, match=r"\[asarray\] expected an array without a mask.* fill it first"):
        nf.asarray(wrap(x))
    assert np.asarray(nf.asarray(wrap(x.filled(0.0)))).max() == 1


@pytest.mark.parametrize("function", [nf.asarray, nf.array, nf.asnumpy, nf.from_dlpack, nf.exp])
def test_masked_arrays_are_refused_everywhere(function: Any) -> None:
    with pytest.raises(ArgumentError, match="without a mask"):
        function(np.ma.masked_array(np.ones(2, np.float32)))
