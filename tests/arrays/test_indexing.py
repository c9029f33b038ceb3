"""Reading by index against NumPy, its errors, and gradients over repeated indices (H17)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, BlockIndexError, DeviceError, DTypeError, ShapeError

KEYS: list[Any] = [
    0,
    -1,
    slice(1, None),
    slice(None, None, -1),
    slice(5, 1, -2),
    (0, 1),
    (..., 2),
    (slice(None), 1),
    None,
    (None, ..., None),
    (0, None, slice(1, 3)),
    [0, 1, 1],
    np.array([[0, 1], [1, 0]]),
    (slice(None), [2, 0]),
    ([0, 1], [1, 2]),
    ([0, 1], slice(None), [0, 3]),
    (None, [0, 1], ..., 1, 2),  # an ellipsis without axes parts the index arrays
    (None, 1, [0, 1], ..., [2, 0]),
    (0, [0, 1]),
    (0, slice(None), [0, 1]),
    np.array([True, False]),
    (slice(None), np.array([True, False, True])),
    (),
    ...,
    (1, 2, 3),
    np.zeros((2, 3), bool),
    np.int64(1),
    (np.array(1), 0),
    slice(1, 1),
    [],
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_like_numpy(key: Any, device: Any) -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    own = tuple(nf.asarray(k) if isinstance(k, np.ndarray) else k for k in key) if isinstance(key, tuple) else key
    own = nf.asarray(own) if isinstance(own, np.ndarray) else own
    numpy_key = np.array(key, np.int64) if isinstance(key, list) and not key else key
    got = nf.asarray(values)[own]
    np.testing.assert_array_equal(np.asarray(got), values[numpy_key])
    assert got.shape == np.asarray(values[numpy_key]).shape and type(got) is nf.Array


def test_basic_keys_are_views(device: Any) -> None:
    x = nf.arange(6.0)
    assert x[1:].storage is x.storage and x[[1, 2]].storage is not x.storage
    assert x[1].shape == () and x[1].storage is x.storage


def test_iteration_and_length() -> None:
    x = nf.asarray([[1.0, 2.0], [3.0, 4.0]])
    assert [row.tolist() for row in x] == [[1.0, 2.0], [3.0, 4.0]] and len(x) == 2
    assert 3.0 in x and 7.0 not in x
    with pytest.raises(TypeError, match="len"):
        len(nf.asarray(1.0))
    with pytest.raises(TypeError, match="iter"):
        iter(nf.asarray(1.0))


def test_errors() -> None:
    x = nf.zeros((2, 3))
    for key in (2, (0, 3), (0, 0, 0), (..., ...), [5]):
        with pytest.raises(BlockIndexError, match=r"\[getitem\]"):
            x[key]
    for key in (1.5, "a", True, nf.asarray([0.5]), np.array([1.0])):
        with pytest.raises(DTypeError, match=r"\[getitem\]"):
            x[key]


@pytest.mark.gpu
def test_index_arrays_share_the_device() -> None:
    with pytest.raises(DeviceError, match="index array"):
        nf.zeros((2,), device="cuda")[nf.asarray([0], device="cpu")]


UPSTREAM = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32)
EXPECTED = [[0, 0], [11, 14], [0, 0], [5, 6], [0, 0]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("ids", [[1, 1, 3, 1], [-4, 1, 3, -4], [[1, 1], [3, 1]]], ids=str)
@pytest.mark.parametrize("form", ["getitem", "take", "pair", "mask"])
def test_h17_gradient_adds_up_repeated_indices(dtype: str, ids: Any, form: str, device: Any) -> None:
    if dtype == "float64" and device.type == "cuda":
        pytest.skip("index gradients on CUDA are float32 or narrower")
    table = nf.zeros((5, 2), dtype=dtype, requires_grad=True)
    index = nf.asarray(ids)
    if form == "getitem":
        picked = table[index]
    elif form == "take":
        picked = nf.take(table, index, axis=0)
    elif form == "pair":
        picked = nf.stack([table[index, 0], table[index, nf.asarray(1)]], axis=-1)
    else:
        picked = table[nf.asarray([True] * 5)][index]
    picked.backward(nf.asarray(UPSTREAM.reshape((*np.shape(ids), 2)), dtype=dtype))
    assert (
        table.grad is not None
        and table.grad.tolist() == EXPECTED
        and table.grad.dtype == nf.asarray(0, dtype=dtype).dtype
    )


def test_repeated_gradient_is_summed_in_float32(device: Any) -> None:
    table = nf.zeros((1, 1), dtype=nf.bfloat16, requires_grad=True)
    table[nf.zeros((1000,), dtype=nf.int64)].backward(nf.ones((1000, 1), dtype=nf.bfloat16))
    assert table.grad is not None and table.grad.item() == 1000.0  # bfloat16 sums would stop at 256


def test_take_along_axis_like_numpy(device: Any) -> None:
    values = np.random.Generator(np.random.PCG64(0)).standard_normal((3, 4, 2)).astype(np.float32)
    for axis in (0, 1, -1):
        order = np.argsort(values, axis=axis)
        got = nf.take_along_axis(nf.asarray(values), nf.asarray(order), axis=axis)
        np.testing.assert_array_equal(np.asarray(got), np.take_along_axis(values, order, axis))


WRONG: list[tuple[Any, Any, type[Exception]]] = [
    ([0, 5], 1.0, BlockIndexError),
    (np.array([True, False, True]), 1.0, BlockIndexError),
    (([0, 1], [0, 1, 2]), 1.0, BlockIndexError),
    (slice(None, None, 0), 1.0, ArgumentError),
    (slice("a"), 1.0, DTypeError),
    (slice(1.0), 1.0, DTypeError),
    (0, np.ones((4, 4), np.float32), ShapeError),
    ([0, 1], np.ones((3, 2, 5), np.float32), ShapeError),
    (0, "a", DTypeError),
]


@pytest.mark.parametrize(("key", "value", "error"), WRONG, ids=repr)
@pytest.mark.parametrize("parameter", [False, True])
def test_a_write_that_fails_changes_nothing(key: Any, value: Any, error: type[Exception], parameter: bool) -> None:
    x = nf.ones((2, 3, 4), device="cpu")
    x = nf.parameter(x) if parameter else x
    version = x.storage.version
    with nf.no_grad(), pytest.raises(error, match=r"\[(setitem|asarray)\] expected"):
        x[key] = value
    assert np.array_equal(np.asarray(x), np.ones((2, 3, 4))) and x.storage.version == version


def test_a_parameter_takes_a_view_of_itself(device: Any) -> None:
    p = nf.parameter(nf.arange(6).astype(nf.float32))
    with nf.no_grad():
        p[1:] = p[:-1]
        assert p.tolist() == [0, 0, 1, 2, 3, 4]
        p[:] = p[::-1]
    assert p.tolist() == [4, 3, 2, 1, 0, 0]


def test_the_value_may_have_more_axes_of_length_one(device: Any) -> None:
    x = nf.zeros((2, 2))
    x[0] = nf.ones((1, 1, 2))
    assert x.tolist() == [[1, 1], [0, 0]]


def test_only_the_last_write_to_a_place_has_a_gradient() -> None:
    value = nf.asarray([1.0, 2.0, 3.0], device="cpu", requires_grad=True)
    x = nf.zeros((4,), device="cpu")
    x[[0, 0, 2]] = value
    assert x.tolist() == [2, 0, 3, 0]
    (x * nf.asarray([5.0, 6.0, 7.0, 8.0], device="cpu")).sum().backward()
    assert value.grad.tolist() == [0, 5, 7]
