"""`kernels.embedding` on every device, against indexing and `numpy.add.at`, and handed case H17."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.device import Device
from nvfp.kernels.embedding import embedding, embedding_vjp
from tests.devices import to_device, to_numpy
from tests.kernels.dense import BF16, COMPUTED, F32, normal
from tests.oracles import embedding as oracle
from tests.tolerances import check

dtypes = pytest.mark.parametrize("dtype", COMPUTED, ids=str)


def run(table: np.ndarray, ids: np.ndarray, device: Device) -> np.ndarray:
    return to_numpy(embedding(to_device(table, device), to_device(ids, device)))


def run_vjp(dy: np.ndarray, ids: np.ndarray, rows: int, device: Device, dtype: np.dtype = F32) -> np.ndarray:
    return to_numpy(embedding_vjp(to_device(dy, device), to_device(ids, device), rows, dtype=dtype))


def check_vjp(dy: np.ndarray, ids: np.ndarray, rows: int, device: Device, dtype: np.dtype = F32) -> None:
    got = run_vjp(dy, ids, rows, device, dtype)
    assert got.dtype == dtype
    size = oracle.embedding_vjp(np.abs(dy), ids, rows)
    check(got, oracle.embedding_vjp(dy, ids, rows), "embedding", scale=1 + size)


def draws(count: int, rows: int, seed: int = 0, dtype: Any = np.int64) -> np.ndarray:
    """Ids with a few very frequent ones, as of tokens."""
    rng = np.random.default_rng(seed)
    return (rng.integers(0, rows, count) * (rng.random(count) < 0.7)).astype(dtype)


def test_handed_h17(device: Device) -> None:
    dy = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], F32)
    wanted = [[0, 0], [11, 14], [0, 0], [5, 6], [0, 0]]
    ids = np.array([1, 1, 3, 1])
    assert run_vjp(dy, ids, 5, device).tolist() == wanted
    assert run_vjp(dy.reshape(2, 2, 2), ids.reshape(2, 2), 5, device).tolist() == wanted


@pytest.mark.sanitizer
@dtypes
@pytest.mark.parametrize("id_type", [np.int32, np.int64, np.uint8, np.int16], ids=lambda t: t.__name__)
def test_rows_are_copied(device: Device, dtype: np.dtype, id_type: Any) -> None:
    for rows, width in ((5, 1), (100, 24), (37, 130)):
        table, ids = normal((rows, width), dtype), draws(60, rows, dtype=id_type).reshape(3, 4, 5)
        for layout in (ids, ids[::-1, ::2], ids.T):
            got = run(table, layout, device)
            assert got.dtype == dtype
            assert got.tobytes() == oracle.embedding(table, layout).tobytes()
    for view in (table.T, table[::-2, 1:], np.broadcast_to(table[0], table.shape)):
        ids = draws(50, len(view))
        assert run(view, ids, device).tobytes() == np.ascontiguousarray(view)[ids].tobytes()


@pytest.mark.sanitizer
@dtypes
@pytest.mark.parametrize(
    ("count", "rows", "width"),
    [(1, 1, 1), (700, 5, 24), (3000, 256, 8), (2500, 257, 3), (900, 70_000, 16), (600, 3, 1030), (0, 4, 3)],
)  # fmt: skip
def test_gradient(device: Device, dtype: np.dtype, count: int, rows: int, width: int) -> None:
    dy, ids = normal((count, width), dtype), draws(count, rows)
    for out in (F32, dtype):
        check_vjp(dy, ids, rows, device, out)


@pytest.mark.parametrize(("count", "rows", "width"), [(200_000, 256, 16), (16_384, 50_304, 32), (300_000, 2, 8)])
def test_gradient_of_many_ids(device: Device, count: int, rows: int, width: int) -> None:
    dy, ids = normal((count, width), BF16), draws(count, rows, dtype=np.int32)
    check_vjp(dy, ids, rows, device)


@pytest.mark.gpu
@pytest.mark.parametrize(("count", "rows"), [(1_000_000, 256), (1_000_000, 50_304), (1_000_000, 1)])
def test_gradient_of_a_million_ids(count: int, rows: int) -> None:
    dy, ids = normal((count, 64), BF16), draws(count, rows)
    check_vjp(dy, ids, rows, Device("cuda"))


def test_repeats_its_bits(device: Device) -> None:
    dy, ids = normal((50_000, 40)), draws(50_000, 300)
    assert len({run_vjp(dy, ids, 300, device).tobytes() for _ in range(3)}) == 1


def test_layouts_and_out(device: Device) -> None:
    base = normal((60, 50))
    for dy in (base[::-1, ::3], base.T, np.broadcast_to(base[:1], base.shape), base[1:, 1:]):
        ids = draws(2 * len(dy), 11)[::2]
        assert np.array_equal(run_vjp(dy, ids, 11, device), run_vjp(np.ascontiguousarray(dy), ids.copy(), 11, device))
    ids = draws(60, 11)
    full, strided = to_device(np.full((11, 50), 7, F32), device), to_device(np.full((50, 22), 7, F32), device)
    for out in (full, strided[:, ::2].T):
        arguments = (to_device(base, device), to_device(ids, device), 11)
        assert embedding_vjp(*arguments, dtype=F32, out=out) is out
    assert np.array_equal(to_numpy(full), run_vjp(base, ids, 11, device))
    assert np.array_equal(to_numpy(strided)[:, ::2].T, to_numpy(full))
    rows = to_device(np.zeros((60, 100), F32), device)
    assert embedding(to_device(base, device), to_device(ids, device), out=rows[:, ::2]) is not None
    assert np.array_equal(to_numpy(rows)[:, ::2], base[ids])


@given(data=st.data(), dtype=st.sampled_from(COMPUTED))
def test_any_problem(device: Device, data: st.DataObject, dtype: np.dtype) -> None:
    rows, width = data.draw(st.integers(1, 300)), data.draw(st.integers(0, 20))
    ids = np.array(data.draw(st.lists(st.integers(0, rows - 1), max_size=90)), np.int64)
    table = normal((rows, width), dtype)
    assert run(table, ids, device).tobytes() == table[ids].tobytes()
    check_vjp(normal((ids.size, width), dtype, 1), ids, rows, device)


def test_special_values(device: Device) -> None:
    dy = np.array([[np.inf, 1], [np.nan, 2], [-np.inf, 3], [np.inf, -0.0]], F32)
    got = run_vjp(dy, np.array([0, 1, 2, 2]), 4, device)
    assert got[0, 0] == np.inf
    assert np.isnan(got[1:3, 0]).all()
    assert got[:, 1].tolist() == [1, 2, 3, 0]
    assert got[3].tolist() == [0, 0]


def test_ids_out_of_range(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    table, dy, ids = normal((5, 6), BF16), normal((4, 6)), np.array([1, 5, -1, 1])
    if device.type == "cpu":
        with pytest.raises(IndexError, match=r"ids in 0\.\.4, got 5 at \(1,\)"):
            run(table, ids, device)
        with pytest.raises(IndexError, match="ids"):
            run_vjp(dy, ids, 5, device)
        return
    got = run(table, ids, device)
    assert np.isnan(got[1:3].astype(F32)).all()
    assert got[[0, 3]].tobytes() == table[[1, 1]].tobytes()
    check(run_vjp(dy, ids, 5, device), oracle.embedding_vjp(dy[[0, 3]], ids[[0, 3]], 5), "embedding")
    monkeypatch.setenv("NVFP_DEBUG", "1")
    with pytest.raises(IndexError, match="ids"):
        run(table, ids, device)


def test_what_does_not_fit(device: Device) -> None:
    table, ids = to_device(normal((5, 6)), device), to_device(np.zeros(4, np.int64), device)
    with pytest.raises(TypeError, match="integer ids"):
        embedding(table, to_device(np.zeros(4, F32), device))
    with pytest.raises(ValueError, match=r"a table \[R, H\]"):
        embedding(table[0], ids)
    with pytest.raises(ValueError, match="out as float32"):
        embedding(table, ids, out=table)
    with pytest.raises(ValueError, match=r"dy \[\.\.\., H\]"):
        embedding_vjp(table, ids, 5, dtype=F32)
    with pytest.raises(ValueError, match="rows and ids"):
        embedding_vjp(table[:4], ids, -1, dtype=F32)
    with pytest.raises(TypeError, match="an output of"):
        embedding_vjp(table[:4], ids, 5, dtype=np.dtype(np.float64))
