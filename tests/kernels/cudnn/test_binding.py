"""The short way into cuDNN behind `pygraph.execute`: addresses in the order of the graph's numbers."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from nvfp.kernels.cudnn.binding import _raw


class _Lowered:
    def __init__(self) -> None:
        self.calls: list[tuple[list[int], int, int, int]] = []

    def _execute_with_raw_ptrs(self, table: int, count: int, workspace: int, handle: int, index: int) -> None:
        self.calls.append((list((ctypes.c_uint64 * count).from_address(table)), workspace, handle, index))


def graph(**changed: Any) -> Any:
    plans = [SimpleNamespace(cpp_index=3)]
    whole = {
        "_lowered_graph": _Lowered(), "_variant_pack_uids": lambda: [1, 5, 9], "selected_engine": None, "_plans": plans,
        "_plan_index": 0, "_materialize_backend_plan": lambda index: plans[index], **changed,
    }  # fmt: skip
    return SimpleNamespace(**whole)


HANDLE = SimpleNamespace(backend_handle=77)


def test_addresses_go_in_the_graphs_order() -> None:
    made = graph()
    run = _raw(made, {9: 0, 1: 0, 5: 0}, HANDLE)
    assert run is not None
    run({9: 90, 1: 10, 5: 50}, 4096, HANDLE)
    run({5: 51, 9: 91, 1: 2**63}, 0, HANDLE)
    assert made._lowered_graph.calls == [([10, 50, 90], 4096, 77, 3), ([2**63, 51, 91], 0, 77, 3)]


@pytest.mark.parametrize(
    "changed",
    [
        {"_variant_pack_uids": lambda: None},
        {"_variant_pack_uids": lambda: [1, 5]},
        {"selected_engine": object()},
        {"_lowered_graph": None},
    ],
)
def test_other_graphs_take_the_public_way(changed: dict[str, Any]) -> None:
    assert _raw(graph(**changed), {1: 0, 5: 0, 9: 0}, HANDLE) is None
    assert _raw(SimpleNamespace(), {1: 0}, HANDLE) is None
    assert _raw(graph(), {1: 0, 5: 0, 9: 0}, 7) is None
