"""The graphs before the library itself, which validates them for a named chip without having one."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from nvfp.kernels.cudnn import binding, plan
from tests.kernels.cudnn.emulator import FakeCudnn
from tests.kernels.cudnn.test_plan import record

cudnn = pytest.importorskip("cudnn", reason="nvidia-cudnn-frontend is not installed")

SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"mask_type": "causal"},
    {"mask_type": "causal_bottom_right", "keys": 93},
    {"mask_type": "padding", "mask": (2, 1)},
    {"mask_type": "padding_causal", "mask": (2, 1), "dropout": 0.1},
    {"mask_type": "arbitrary", "mask": (1, 4), "queries": 77, "keys": 93},
    {"mask_type": "causal", "window": (16, 0)},
    {"window": (16, 8), "keys": 93},
    {"groups": 2, "depth": 72, "value_depth": 8},
    {"depth": 256, "value_depth": 256, "dtype": "float16"},
    {"depth": 192, "value_depth": 128},
    {"dropout": 0.5},
    {"stats": False, "queries": 1},
)


class _Validator:
    """The library, with graphs of compute capability 9.0 that are validated and not built."""

    def __getattr__(self, name: str) -> Any:
        return getattr(cudnn, name)

    def create_handle(self) -> Any:
        return object()

    def destroy_handle(self, handle: Any) -> None:
        return None

    def set_stream(self, *, handle: Any, stream: int) -> None:
        return None

    def pygraph(self, *, handle: Any, **types: Any) -> Any:
        return cudnn.pygraph(sm_version=90, sm_count=132, **types)


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_the_library_takes_the_graphs(
    library: FakeCudnn, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    built = []

    def build(graph: binding.Graph, _: Any) -> int:
        graph._graph.validate()
        built.append(graph)
        return 0

    real = _Validator()
    monkeypatch.setattr(binding, "_cudnn", lambda: real)
    monkeypatch.setattr(binding, "_local", threading.local())
    monkeypatch.setattr(binding.Graph, "_build", build)
    made = plan.plan_for(record(**changes))
    assert isinstance(made, plan.Plan), made
    assert len(built) == 1 + made.record.stats


def test_what_the_rules_refuse_the_library_refuses(library: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule of `support` that a release makes needless shows here."""
    real = _Validator()
    monkeypatch.setattr(binding, "_cudnn", lambda: real)
    monkeypatch.setattr(binding, "_local", threading.local())
    monkeypatch.setattr(binding.Graph, "_build", lambda graph, _: graph._graph.validate() or 0)
    monkeypatch.setattr(plan, "refusal", lambda record, compute: None)
    for changes in (
        {"queries": 1, "keys": 1},
        {"mask_type": "causal_bottom_right", "keys": 60},
        {"mask_type": "causal_bottom_right", "keys": 80, "dropout": 0.1},
        {"mask_type": "padding_causal_bottom_right", "keys": 80, "mask": (2, 1)},
        {"mask_type": "causal", "keys": 60, "window": (4, 0)},
    ):
        assert isinstance(plan.plan_for(record(**changes)), plan.Refusal), changes
