"""Layout arithmetic, against NumPy's own addressing."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from nvfp.kernels.cublaslt.layout import (
    Order,
    alignment,
    batch_strides,
    contiguous_strides,
    element_strides,
    matrix_order,
    merge_batch,
    round_up,
)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 9), st.integers(0, 9))
def test_an_order_is_found_where_there_is_one(rows: int, columns: int, row_stride: int, column_stride: int) -> None:
    wanted = [r * row_stride + c * column_stride for r in range(rows) for c in range(columns)]

    def addresses(order: Order) -> list[int]:
        step_r, step_c = (1, order.ld) if order.transposed else (order.ld, 1)
        return [r * step_r + c * step_c for r in range(rows) for c in range(columns)]

    allowed = [Order(False, ld) for ld in range(columns, 10)] + [Order(True, ld) for ld in range(rows, 10)]
    order = matrix_order(rows, columns, row_stride, column_stride)
    if order is None:
        assert all(addresses(o) != wanted for o in allowed)
    else:
        assert order in allowed and addresses(order) == wanted


def test_plain_orders() -> None:
    assert matrix_order(3, 4, 4, 1) == Order(False, 4)
    assert matrix_order(3, 4, 1, 3) == Order(True, 3)
    assert matrix_order(1, 4, 99, 1) == Order(False, 4)
    assert matrix_order(3, 1, 7, 99) == Order(False, 7)
    assert matrix_order(3, 4, 3, 1) is None  # rows overlap
    assert matrix_order(3, 4, 8, 2) is None


def test_strides_that_cut_elements_or_run_backwards() -> None:
    assert element_strides((8, 2), 2) == (4, 1)
    assert element_strides((8, -2), 2) is None
    assert element_strides((9, 2), 2) is None


@pytest.mark.parametrize(("address", "found"), [(0, 256), (512, 256), (256 + 128, 16), (48, 16), (8, 8), (7, 1)])
def test_alignment(address: int, found: int) -> None:
    assert alignment(address) == found


def test_small_functions() -> None:
    assert [round_up(v, 16) for v in (0, 1, 16, 17)] == [0, 16, 16, 32]
    assert contiguous_strides(()) == () and contiguous_strides((5,)) == (1,)
    assert batch_strides((1, 3), (30, 10), (4, 2, 3)) == (0, 0, 10)


@given(st.data())
def test_a_merged_batch_visits_the_same_matrices(data: st.DataObject) -> None:
    batch = tuple(data.draw(st.lists(st.integers(1, 4), max_size=4)))
    sides = []
    for _ in range(3):
        full = contiguous_strides((*batch, 10))[: len(batch)]
        order = data.draw(st.permutations(range(len(batch))))
        keep = [data.draw(st.booleans()) for _ in batch]
        sides.append(tuple(full[i] if k else 0 for i, k in zip(order, keep, strict=True)))
    merged = merge_batch(batch, *sides)
    visited = sorted(
        tuple(at[s] + i * merged.strides[s] for s in range(3)) for at in merged.offsets for i in range(merged.size)
    )
    wanted = sorted(tuple(int(np.dot(at, side)) for side in sides) for at in np.ndindex(*batch))
    assert visited == wanted
