"""`nvtx`: which ranges open and close, and that nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import nvfp as nf
from nvfp.autograd import walk
from nvfp.device import cuda_problem
from nvfp.errors import DeviceError, DTypeError, StateError
from nvfp.inspect import profiling
from nvfp.kernels import _dispatch
from nvfp.nn import module as modules


class Ranges:
    """Takes the place of NVTX: the names in order of opening, with their depth."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []
        self.depth = 0

    def push(self, name: str) -> None:
        self.seen.append((self.depth, name))
        self.depth += 1

    def pop(self) -> None:
        self.depth -= 1


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranges]:
    found = Ranges()
    monkeypatch.setattr(profiling, "_library", lambda: (found.push, found.pop))
    yield found
    assert found.depth == 0 and profiling._depth == 0 and not profiling._names
    assert _dispatch._load is __import__("importlib").import_module
    assert modules._span is None and walk._span is None
    assert all(type(found).__name__ == "module" for found in _dispatch._modules.values())


def step(model: Any) -> nf.Array:
    x = nf.ones((4, 32))
    x.requires_grad = True
    with nf.autocast(recipe=nf.recipes.Float8CurrentScaling()):
        y = model(x)
    y.sum().backward()
    return x.grad


def test_ranges_by_module_rule_and_stem(device: Any, ranges: Ranges) -> None:
    model = nf.nn.Sequential(nf.nn.Linear(32, 16), nf.nn.Linear(16, 8))
    step(model)
    assert not ranges.seen
    with nf.inspect.nvtx(model):
        step(model)
    names = [name for _, name in ranges.seen]
    whole, first = names.index("Sequential"), names.index("0")  # on CUDA `ones` launches before
    assert ranges.seen[whole][0] == 0 and ranges.seen[first][0] == 1 and whole < first
    assert (2, "quantize") in ranges.seen and (2, "gemm") in ranges.seen
    inside = {name.partition(" ")[0] for depth, name in ranges.seen if depth == 1}  # "gemm known": a plan found again
    assert names.count("linear backward") == 2 and {"quantize", "gemm"} <= inside, ranges.seen
    count = len(ranges.seen)
    step(model)
    assert len(ranges.seen) == count


def test_blocks_nest_and_close_on_errors(ranges: Ranges) -> None:
    model = nf.nn.Linear(32, 16)
    with nf.inspect.nvtx():
        with nf.inspect.nvtx(model):
            step(model)
        before = len(ranges.seen)
        with pytest.raises(nf.errors.ShapeError):
            model(nf.ones((4, 31)))
    assert len(ranges.seen) > before > 5 and ranges.seen[0][1] == "Linear"


def test_results_are_the_same(device: Any, ranges: Ranges) -> None:
    model = nf.nn.Linear(32, 16)
    plain = step(model)
    with nf.inspect.nvtx():
        assert nf.array_equal(step(model), plain)


def test_refusals() -> None:
    with pytest.raises(DTypeError, match=r"\[nvtx\] expected a Module or None"):
        nf.inspect.nvtx(3)  # type: ignore[arg-type]
    if cuda_problem() is not None:
        with pytest.raises(DeviceError, match="a CUDA device to profile"), nf.inspect.nvtx():
            pass
        assert profiling._depth == 0


def test_entered_once(ranges: Ranges) -> None:
    block = nf.inspect.nvtx()
    with block, pytest.raises(StateError, match="not entered"):
        block.__enter__()


def test_switch(monkeypatch: pytest.MonkeyPatch, ranges: Ranges) -> None:
    """``NVFP_NVTX`` turns ranges on; where there are none it warns, and nothing raises."""
    monkeypatch.delenv("NVFP_NVTX", raising=False)
    profiling.from_switch()
    assert profiling._depth == 0
    monkeypatch.setenv("NVFP_NVTX", "1")
    profiling.from_switch()
    nf.zeros((2,)).sum()
    profiling.turn_off()

    def absent() -> Any:
        raise DeviceError("no GPU")

    monkeypatch.setattr(profiling, "_library", absent)
    with pytest.warns(RuntimeWarning, match="NVFP_NVTX is set, but there are no ranges: no GPU"):
        profiling.from_switch()


@pytest.mark.gpu
def test_real_ranges_open_and_close() -> None:
    model = nf.nn.Linear(32, 16)
    plain = step(model)
    with nf.inspect.nvtx(model):
        assert nf.array_equal(step(model), plain)
