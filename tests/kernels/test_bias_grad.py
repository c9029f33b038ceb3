"""`kernels.bias_grad` on every device, against float64 and against the CPU's bits; threads and forked children."""

from __future__ import annotations

import os
import threading
import warnings

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.device import Device
from nvfp.kernels.bias_grad import bias_grad, chunk_rows
from tests.devices import to_device, to_numpy
from tests.kernels.dense import BF16, COMPUTED, F32, arrays, bits, normal, views
from tests.oracles import bias_grad as oracle
from tests.tolerances import check

dtypes = pytest.mark.parametrize("dtype", COMPUTED, ids=str)


def run(dy: np.ndarray, device: Device, dtype: np.dtype | None = None) -> np.ndarray:
    return to_numpy(bias_grad(to_device(dy, device), dtype=dtype))


def size_of(dy: np.ndarray) -> np.ndarray:
    return oracle.bias_grad(np.abs(dy.astype(np.float64)))


@pytest.mark.sanitizer
@dtypes
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (64, 8), (65, 24), (700, 33), (3, 5, 130), (0, 5), (5, 0)], ids=str)
def test_values(device: Device, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    dy = normal(shape, dtype)
    for out in (None, F32, BF16):
        db = run(dy, device, out)
        assert db.dtype == (out or dtype)
        check(db, oracle.bias_grad(dy), "bias_grad", scale=1 + size_of(dy))
        assert np.array_equal(db, bias_grad(dy, dtype=out)), "not the CPU's bits"


@pytest.mark.parametrize("shape", [(5000, 129), (70_001, 3), (129, 5000), (2, 20_000)], ids=str)
def test_sizes(device: Device, shape: tuple[int, ...]) -> None:
    dy = normal(shape, BF16)
    db = run(dy, device, F32)
    check(db, oracle.bias_grad(dy), "bias_grad", scale=size_of(dy))
    assert np.array_equal(db, bias_grad(dy, dtype=F32))


def test_chunks() -> None:
    for rows in (0, 1, 64, 65_536, 65_537, 10**6, 10**9):
        assert chunk_rows(rows) % 64 == 0
        assert -(-rows // chunk_rows(rows)) <= 1024


def halved(x: np.ndarray) -> np.ndarray:
    """Sums of neighbours along the first axis, a power of two long, until one is left."""
    while len(x) > 1:
        x = x[::2] + x[1::2]
    return x[0]


@pytest.mark.parametrize("rows", [1, 4, 23, 128, 4500], ids=str)
def test_the_order_is_the_stated_one(device: Device, rows: int) -> None:
    dy = normal((rows, 7), F32)
    tiles = np.zeros((-(-rows // 128) * 128, 7), F32)
    tiles[:rows] = dy
    groups = tiles.reshape(-1, 32, 4, 7)
    sums = ((groups[:, :, 0] + groups[:, :, 1]) + groups[:, :, 2]) + groups[:, :, 3]
    lanes = np.zeros((32, 7), F32)
    for k, tile in enumerate(sums):
        lanes[k % 32] += halved(tile)
    assert np.array_equal(run(dy, device), halved(lanes))


@dtypes
def test_layouts_and_out(device: Device, dtype: np.dtype) -> None:
    for view in views(normal((90, 70), dtype)):
        assert np.array_equal(run(view, device), bias_grad(np.ascontiguousarray(view)))
    dy = normal((90, 70), dtype)
    base = to_device(np.zeros(140, dtype), device)
    out = base[::-2]
    assert bias_grad(to_device(dy, device), out=out) is out
    assert np.array_equal(to_numpy(base)[::-2], bias_grad(dy))


@given(data=st.data(), dtype=st.sampled_from(COMPUTED))
def test_any_view(device: Device, data: st.DataObject, dtype: np.dtype) -> None:
    dy = data.draw(arrays(dtype))
    assert np.array_equal(bits(run(dy, device)), bits(bias_grad(dy)))


def test_special_values(device: Device) -> None:
    dy = np.array([[np.inf, np.inf, 1, 3e38, -0.0], [1, -np.inf, np.nan, 3e38, -0.0]], F32)
    with np.errstate(all="raise"):
        db = run(dy, device)
    assert db[0] == db[3] == np.inf
    assert np.isnan(db[1:3]).all()
    assert db[4] == 0


def test_threads_agree() -> None:
    """Kernels run beside each other from several Python threads, each over nvfp's pool."""
    dy = [normal((3000, 200), seed=k) for k in range(6)]
    wanted, got = [bias_grad(x) for x in dy], [np.empty(200, F32) for _ in dy]
    threads = [threading.Thread(target=lambda k=k: bias_grad(dy[k], out=got[k])) for k in range(len(dy))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(np.array_equal(a, b) for a, b in zip(wanted, got))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_computes() -> None:
    dy = normal((3000, 200))
    wanted = bias_grad(dy)  # the parent's pool has threads now
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork beside threads
        child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(bias_grad(dy), wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_what_does_not_fit(device: Device) -> None:
    with pytest.raises(TypeError, match="float32, bfloat16"):
        bias_grad(to_device(np.ones((2, 3)), device))
    with pytest.raises(TypeError, match="an output of"):
        bias_grad(to_device(np.ones((2, 3), F32), device), dtype=np.dtype(np.int32))
    with pytest.raises(ValueError, match=r"dy \[\.\.\., N\]"):
        bias_grad(to_device(np.ones((), F32), device))
    with pytest.raises(ValueError, match="out as float32"):
        bias_grad(to_device(np.ones((2, 3), F32), device), out=to_device(np.ones(2, F32), device))
