"""Arrays of more than 2**31 elements: what an index of 32 bits would get wrong shows at their far end.

Each test needs a few GiB and runs on the GPU only (the CPU would take minutes for each).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.kernels.cpu._philox import fill_words
from nvfp.kernels.cuda.reduce import layout_of
from nvfp.kernels.random import random
from tests.devices import to_numpy

MANY = 2**31 + 4096
ROWS, COLUMNS = 2**17 + 3, 2**14  # a matrix of that many elements
gpu = pytest.mark.gpu


@pytest.fixture(autouse=True)
def freed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give the memory back: the next test wants it in other pieces."""
    yield
    if request.node.get_closest_marker("gpu"):
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()


def marked(n: int, dtype: Any, places: dict[int, float]) -> Any:
    """Zeros on the GPU with a few other numbers."""
    import cupy

    raw = cupy.zeros(n, np.uint8)
    for place, value in places.items():
        raw[place] = value
    return nf.from_dlpack(raw).astype(dtype)


def far(x: Any, count: int = 8) -> np.ndarray:
    """The last elements, on the host."""
    return np.asarray(x[-count:])


def test_a_reduction_of_too_many_blocks_is_done_over_rows() -> None:
    assert layout_of((2**31, 2, 2), (4, 2, 1), (1,)) is None
    assert layout_of((2**28, 2, 2), (4, 2, 1), (1,)) is not None


@gpu
def test_elementwise() -> None:
    x = marked(MANY, nf.uint8, {0: 3, 2**31 - 1: 4, 2**31: 5, MANY - 1: 6})
    y = x + x
    assert [int(y[i]) for i in (0, 2**31 - 1, 2**31, MANY - 1, 7)] == [6, 8, 10, 12, 0]
    assert far(nf.where(x > 0, x, nf.full((1,), 9, dtype=nf.uint8))).tolist() == [9] * 7 + [6]
    assert far(x[::-1] + 1).tolist() == [1] * 7 + [4]
    table, row = nf.reshape(x, (-1, 4096)), nf.arange(4096).astype(nf.uint8)
    z = table + row
    right = (np.arange(4096) % 256).astype(np.uint8)
    right[0] += 5  # x[2**31] is the first of the last row
    assert np.array_equal(np.asarray(z[-1])[:-1], right[:-1])
    assert int(z[-1, -1]) == 255 + 6 - 256


@gpu
def test_reduce() -> None:
    x = marked(MANY, nf.uint8, {2**31 + 5: 7, MANY - 1: 2})
    assert int(x.sum()) == 9 and int(x.max()) == 7 and int(nf.argmax(x)) == 2**31 + 5
    assert float(nf.ones((MANY,), dtype=nf.bfloat16).mean()) == 1.0
    table = nf.reshape(x, (-1, 4096))
    assert np.asarray(table.sum(axis=1))[-1] == 9 and np.asarray(table.sum(axis=0))[-1] == 2
    assert int(nf.argmax(table, axis=0)[5]) == 2**19


@gpu
def test_reduce_of_a_long_batch_of_columns() -> None:
    x = nf.reshape(marked(4 * (2**31 + 8), nf.uint8, {4 * (2**31 + 8) - 1: 5}), (-1, 2, 2))
    assert far(nf.max(x, axis=1), 1).tolist() == [[0, 5]]


@gpu
def test_cast_and_copy() -> None:
    x = marked(MANY, nf.uint8, {2**31: 5, MANY - 1: 6})
    y = x.astype(nf.bfloat16)
    assert float(y[2**31]) == 5.0 and far(y).tolist() == [0] * 7 + [6]
    codes = y.astype(nf.float8_e4m3fn)
    assert far(codes.astype(nf.float32)).tolist() == [0] * 7 + [6]
    assert far(nf.reshape(x, (-1, 4096)).mT.copy().mT.copy().ravel()).tolist() == [0] * 7 + [6]


@gpu
def test_transpose() -> None:
    places = {ROWS * COLUMNS - 1: 9, (ROWS - 2) * COLUMNS + 1: 8}
    x = nf.reshape(marked(ROWS * COLUMNS, nf.uint8, places), (ROWS, COLUMNS))
    y = x.T.copy()
    assert int(y[-1, -1]) == 9 and int(y[1, ROWS - 2]) == 8 and int(y.sum()) == 17


@gpu
@pytest.mark.parametrize(
    "format",
    [nf.mxfp8, nf.nvfp4, nf.fp8_e4m3, nf.fp8_e4m3_b128, nf.nvfp4.replace(block=(16, 16)), nf.mxfp6_e2m3,
     nf.nvfp4.replace(per_row_tensor_scale=True)], ids=str,
)  # fmt: skip
@pytest.mark.parametrize("axis", [1, 0])
def test_quantize_and_dequantize(format: Any, axis: int) -> None:
    line = nf.random.default_rng(0).normal(size=(128, COLUMNS), dtype=nf.bfloat16)
    rows = 2**17 + 128
    x = nf.reshape(nf.broadcast_to(line, (rows // 128, 128, COLUMNS)), (rows, COLUMNS), copy=True)
    q, part = nf.quantize(x, format, axis=axis), nf.quantize(line, format, axis=axis)
    assert q.size > 2**31
    tail = q[-128:]
    assert np.array_equal(np.asarray(tail.codes), np.asarray(part.codes))
    assert np.array_equal(np.asarray(tail), np.asarray(part))
    halves = nf.dequantize(q, nf.bfloat16)[-128:], nf.dequantize(part, nf.bfloat16)
    assert np.array_equal(*map(np.asarray, halves))


@gpu
def test_take_and_embedding() -> None:
    table = nf.reshape(marked(ROWS * COLUMNS, nf.uint8, {ROWS * COLUMNS - 1: 9}), (ROWS, COLUMNS)).astype(nf.bfloat16)
    ids = nf.asarray([0, ROWS - 1, -1])
    assert [float(v) for v in nf.take(table, ids, axis=0)[:, -1]] == [0, 9, 9]
    from nvfp.kernels.embedding import embedding

    picked = embedding(table.raw, nf.asarray([ROWS - 1, 0]).raw)
    assert to_numpy(picked)[:, -1].astype(np.float32).tolist() == [9, 0]
    many = embedding(table.raw[-1:], nf.zeros((ROWS,), dtype=nf.int64).raw)
    assert to_numpy(many[-1])[-1] == 9 and to_numpy(many[0])[-1] == 9
    assert float(table[nf.asarray([ROWS - 1]), nf.asarray([COLUMNS - 1])][0]) == 9


@gpu
def test_random() -> None:
    bits = random("bits", (MANY,), dtype=np.dtype(np.uint32), key=5, ordinal=0, device="cuda")
    words = np.empty((4, 4), np.uint32)
    fill_words(words, np.uint64(MANY // 4 - 4), np.uint32(0), np.uint32(0), np.uint64(5))
    assert np.array_equal(to_numpy(bits[-16:]), words.ravel())
    del bits
    drawn = nf.random.default_rng(1).uniform(size=(MANY,), dtype=nf.bfloat16)
    assert not np.array_equal(far(drawn, 4096), np.asarray(drawn[:4096])) and np.unique(far(drawn, 4096)).size > 100


@gpu
def test_matmul() -> None:
    x = nf.reshape(marked(ROWS * COLUMNS, nf.uint8, {ROWS * COLUMNS - 1: 9}), (ROWS, COLUMNS)).astype(nf.bfloat16)
    y = x @ nf.ones((COLUMNS, 8), dtype=nf.bfloat16)
    assert np.asarray(y.astype(nf.float32))[[0, ROWS // 2, -1], -1].tolist() == [0, 0, 9]
    q = x.astype(nf.mxfp8) @ nf.ones((8, COLUMNS), dtype=nf.bfloat16).astype(nf.mxfp8).T
    assert np.asarray(q)[[0, ROWS // 2, -1], -1].tolist() == [0, 0, 9]
