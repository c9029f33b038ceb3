"""Writing: `x[i] = v` and `x += y` give new storage; parameters are written in place and counted."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import DeviceError, DTypeError, GradientError, ShapeError
from tests.devices import to_numpy


def address(x: Any) -> int:
    return int(x.raw.ctypes.data if isinstance(x.raw, np.ndarray) else x.raw.data.ptr)


KEYS: dict[str, Any] = {
    "int": 1,
    "slice": slice(1, 3),
    "step": (slice(None), slice(None, None, 2)),
    "negative": slice(None, None, -1),
    "ellipsis": (..., 0),
    "all": ...,
    "ids": [0, 2],
    "mask": np.array([True, False, True]),
    "pair": ([0, 1], [1, 1]),
    "none": (None, 1),
}


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool", "float8_e4m3fn", "complex64"])
def test_setitem_like_numpy(name: str, dtype: str, device: Any) -> None:
    if dtype == "complex64" and device.type == "cuda":
        pytest.skip("complex arrays are CPU only")
    key = KEYS[name]
    if isinstance(key, np.ndarray):
        key_nf: Any = nf.asarray(key)
    else:
        key_nf = key
    x = nf.asarray(np.arange(12).reshape(3, 4) % 5).astype(dtype)
    expected = np.array(np.asarray(x))
    x[key_nf] = 2
    expected[key] = 2
    np.testing.assert_array_equal(np.asarray(x), expected)
    assert x.dtype == nf.asarray(x).dtype


def test_views_and_saved_values_keep_the_old(device: Any) -> None:
    x = nf.asarray([1.0, 2.0, 3.0])
    view, same = x[1:], x
    x[1] = 10
    assert view.tolist() == [2.0, 3.0] and same is x and x.tolist() == [1.0, 10.0, 3.0]
    y = x.reshape(1, 3)
    x += 1
    assert y.tolist() == [[1.0, 10.0, 3.0]] and same.tolist() == [2.0, 11.0, 4.0]

    w = nf.asarray([2.0, 3.0, 4.0], requires_grad=True)
    z = x * w
    x *= 0  # the product has saved the old x
    z.sum().backward()
    assert w.grad is not None and w.grad.tolist() == [2.0, 11.0, 4.0]


def test_in_place_keeps_shape_and_dtype() -> None:
    x = nf.asarray([1.0, 2.0], dtype=nf.bfloat16)
    x += np.float64(0.5) * nf.ones((2,), dtype=nf.float64)
    assert x.dtype == nf.bfloat16 and x.tolist() == [1.5, 2.5]
    with pytest.raises(ShapeError, match=r"\[\+=\] expected a result of shape \(2,\), got \(3, 2\)"):
        x += nf.ones((3, 2))
    i = nf.asarray([1, 2])
    with pytest.raises(DTypeError, match=r"\[\+=\] expected a result that int64 holds, got float"):
        i += 0.5
    with pytest.raises(DTypeError):
        i /= 2
    i //= 2
    i <<= 3
    assert i.tolist() == [0, 8]


def test_gradient_flows_through_setitem(device: Any) -> None:
    x = nf.asarray([1.0, 2.0, 3.0], requires_grad=True)
    v = nf.asarray(5.0, requires_grad=True)
    y = x * 2
    y[1:] = v * v
    y += 1
    (y * nf.asarray([1.0, 10.0, 100.0])).sum().backward()
    assert x.grad is not None and v.grad is not None
    assert x.grad.tolist() == [2.0, 0.0, 0.0] and v.grad.item() == 1100.0


def test_variables_are_written_under_no_grad_only(device: Any) -> None:
    x = nf.asarray([1.0, 2.0], requires_grad=True)
    for write in (lambda: x.__setitem__(0, 3.0), lambda: x.__iadd__(1.0)):
        with pytest.raises(GradientError, match=r"update it inside nf\.no_grad\(\)"):
            write()
    before = address(x)
    with nf.no_grad():
        x -= 0.5
    assert x.tolist() == [0.5, 1.5] and x.requires_grad and address(x) != before
    (x * x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1.0, 3.0]


def test_parameters_keep_their_address_and_count_versions(device: Any) -> None:
    source = nf.ones((2, 2))
    p = nf.parameter(source)
    place, storage = address(p), p.storage
    with nf.no_grad():
        p -= 0.25
        p[0] = 7.0
        p[nf.asarray([1])] = 8.0
    p.storage.write_(p.detach().copy().raw)
    assert address(p) == place and p.storage is storage and storage.version == 4
    assert p.tolist() == [[7.0, 7.0], [8.0, 8.0]] and source.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert p.requires_grad and p.is_parameter and not nf.parameter(source, requires_grad=False).requires_grad


def test_backward_after_a_parameter_was_written_raises(device: Any) -> None:
    p = nf.parameter(nf.asarray([2.0, 3.0]))
    y = (p * p).sum()
    z = (p[:1] * p[1:].reshape(1)).sum()  # views share the storage
    with nf.no_grad():
        p -= 1.0
    for loss in (y, z):
        with pytest.raises(GradientError, match=r"\[multiply\] .*run backward before the update"):
            loss.backward()


def test_parameter_from_a_recorded_result_raises() -> None:
    w = nf.asarray([1.0, 1.0], requires_grad=True)
    frozen = nf.parameter(nf.ones((2,)), requires_grad=False)
    with pytest.raises(GradientError, match="untracked values for a parameter"):
        frozen += w


def test_write_checks(device: Any) -> None:
    p = nf.parameter(nf.ones((2,)))
    with pytest.raises(ShapeError, match=r"\[storage\.write_\]"):
        p.storage.write_(nf.ones((3,)).raw)
    p.storage.write_(nf.asarray([0.5, 0.25], dtype=nf.float64).raw)
    assert p.tolist() == [0.5, 0.25] and p.dtype == nf.float32
    if device.type == "cuda":
        with nf.no_grad(), pytest.raises(DeviceError):
            p[0:1] = nf.ones((1,), device="cpu")


def test_grad_is_a_variable_s_and_has_its_shape() -> None:
    x = nf.asarray([1.0, 2.0])
    assert x.grad is None
    x.grad = None
    with pytest.raises(GradientError, match="requires_grad"):
        x.grad = nf.ones((2,))
    x.requires_grad = True
    with pytest.raises(ShapeError, match=r"\[grad\]"):
        x.grad = nf.ones((3,))
    given = nf.asarray([1.0, 1.0])
    x.grad = given
    (x * 1.0).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 2.0] and given.tolist() == [1.0, 1.0]
    kept = x.grad
    (x * 1.0).sum().backward()
    assert x.grad is kept and kept.tolist() == [3.0, 3.0]
    x.grad *= 0.5
    assert x.grad.tolist() == [1.5, 1.5]
    x.requires_grad = False
    assert x.grad is None


def test_requires_grad_of_results_and_integers() -> None:
    x = nf.asarray([1.0], requires_grad=True)
    y = x * 2
    with pytest.raises(GradientError, match=r"a result of 'multiply'; use x\.detach\(\)"):
        y.requires_grad = False
    assert not y.detach().requires_grad and y.detach().raw is y.raw
    with pytest.raises(DTypeError, match="floating"):
        nf.asarray([1], requires_grad=True)


def test_backward_errors() -> None:
    x = nf.asarray([1.0, 2.0], requires_grad=True)
    with pytest.raises(GradientError, match=r"\[backward\] expected a scalar.* got shape \(2,\); reduce it with \.sum"):
        (x * 2).backward()
    with pytest.raises(ShapeError, match=r"\[backward\] expected grad of shape \(2,\)"):
        (x * 2).backward(nf.ones((3,)))
    with pytest.raises(GradientError, match="untracked"):
        nf.ones(()).backward()
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(GradientError, match="retain_graph"):
        y.backward()
    assert x.grad is not None and x.grad.tolist() == [4.0, 8.0]
    (x * 2).backward(np.array([1.0, 10.0]))
    assert x.grad.tolist() == [6.0, 28.0]


def test_gradients_own_their_memory_in_order(device: Any) -> None:
    """A broadcast or transposed gradient becomes a contiguous one that nobody shares."""
    x = nf.asarray(np.ones((2, 3), np.float32), requires_grad=True)
    y = nf.asarray(np.ones((2, 3), np.float32), requires_grad=True)
    (x + y).T.sum().backward()
    assert x.grad is not None and y.grad is not None
    assert x.grad.raw.flags.c_contiguous and address(x.grad) != address(y.grad)
    x.grad.storage.write_(nf.zeros((2, 3)).raw)
    assert y.grad.tolist() == [[1.0] * 3] * 2


def test_memory_of_a_graph_goes_without_the_garbage_collector(device: Any) -> None:
    gc.disable()
    try:
        x = nf.asarray(np.ones(64, np.float32), requires_grad=True)
        refs = []
        y = x
        for _ in range(6):
            y = nf.tanh(y) * 2.0
            refs.append(weakref.ref(y))
        loss = y.sum()
        nodes = weakref.ref(y._node)
        del y
        assert all(r() is None for r in refs)  # arrays hold nodes, never the other way round
        loss.backward()
        assert nodes() is None  # and the loss, still alive, holds no graph
        del loss
        assert x.grad is not None
    finally:
        gc.enable()


def test_copies_and_pickles(device: Any) -> None:
    for dtype in ("float32", "bfloat16", "int8", "float8_e5m2", "float4_e2m1fn"):
        x = nf.asarray([[1.0, 2.0]]).astype(dtype)
        for y in (x.copy(), copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
            assert y is not x and y.dtype is x.dtype and y.device is x.device and y.tolist() == x.tolist()
            assert address(y) != address(x)
    p = nf.parameter(nf.ones((2,)))
    for q in (copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert q.is_parameter and q.requires_grad and q.tolist() == [1.0, 1.0]
    assert pickle.loads(pickle.dumps(nf.asarray(3.0))).shape == ()
    with pytest.raises(GradientError, match="deepcopy"):
        copy.deepcopy(p * 2)


def test_narrow_setitem_casts(device: Any) -> None:
    x = nf.zeros((3,), dtype=nf.float8_e4m3fn)
    x[1] = 300.0
    x[2] = 1e6
    assert x.tolist() == [0.0, 288.0, 448.0] or x.tolist() == [0.0, 304.0, 448.0]
    assert to_numpy(x.raw).dtype == np.uint8
