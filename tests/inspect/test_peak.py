"""`peak_memory`: what it counts on each device, nesting, and errors. No run waits for a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp import config
from nvfp.device import Device, cuda_problem
from nvfp.errors import ArgumentError, DeviceError, NotBuiltError, StateError
from nvfp.inspect import _pools, _process, peak_memory

MIB = 1 << 20


@pytest.fixture
def pooled(device: Device) -> Device:
    """The device under test, unless this run has switched CuPy's pools off."""
    if device.type == "cuda" and config.flag("NVFP_TEST_PLAIN_MALLOC"):
        pytest.skip("no CUDA device: memory pools are switched off")
    return device


def test_the_peak_is_what_was_live_at_one_time(pooled: Device) -> None:
    shape = (16 * MIB,)
    with peak_memory(pooled) as peak:
        for _ in range(4):  # one after the other: never more than one and what makes it
            x = nf.ones(shape, dtype=nf.float32, device=pooled)
            del x
    grown = peak.bytes - peak.start
    assert peak.device == pooled and peak.source in repr(peak)
    if pooled.type == "cuda":
        assert 64 * MIB <= grown < 65 * MIB
    elif not peak.source.endswith("start"):
        assert 60 * MIB < grown < 220 * MIB


def test_the_figure_can_be_read_inside_and_stays_after(pooled: Device) -> None:
    with peak_memory(pooled) as peak:
        x = nf.ones((8 * MIB,), dtype=nf.float32, device=pooled)
        inside = peak.bytes
    after = peak.bytes
    y = nf.ones((32 * MIB,), dtype=nf.float32, device=pooled)
    assert after >= inside >= 32 * MIB and inside >= peak.start
    assert peak.bytes == after and x.shape != y.shape


def test_blocks_nest(pooled: Device) -> None:
    with peak_memory(pooled) as outer:
        x = nf.ones((24 * MIB,), dtype=nf.float32, device=pooled)
        del x
        with peak_memory(pooled) as inner:
            y = nf.ones((4 * MIB,), dtype=nf.float32, device=pooled)
        del y
    assert outer.bytes >= inner.bytes
    if pooled.type == "cuda":
        assert abs(outer.bytes - inner.bytes - 80 * MIB) < MIB


def test_an_exception_ends_the_count(pooled: Device) -> None:
    peak = peak_memory(pooled)
    with pytest.raises(KeyError), peak:
        raise KeyError("x")
    assert peak.bytes >= peak.start
    assert not _process._active


def test_the_default_device_is_measured(pooled: Device) -> None:
    assert peak_memory().device == pooled


def test_errors_are_typed() -> None:
    peak = peak_memory("cpu")
    assert "not entered" in repr(peak)
    for read in ("bytes", "start", "source"):
        with pytest.raises(StateError, match=r"\[peak_memory\] expected a block that was entered, got none"):
            getattr(peak, read)
    with peak, pytest.raises(StateError, match="make a new one per block"):
        peak.__enter__()
    with pytest.raises(ArgumentError, match="'cpu', 'cuda' or 'cuda:N'"):
        peak_memory("tpu")
    if cuda_problem() is not None:
        with pytest.raises(DeviceError, match=r"\[peak_memory\] expected a usable device"):
            peak_memory("cuda")


def test_a_system_that_cannot_start_anew_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_process, "_RESET", tmp_path / "none" / "clear_refs")
    with peak_memory("cpu") as peak:
        pass
    assert peak.source == "resident set of the whole process, since its start"
    assert peak.bytes >= peak.start > MIB


def test_a_system_without_status_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_process, "_STATUS", tmp_path / "none")
    with peak_memory("cpu") as peak:
        pass
    assert peak.bytes > 10 * MIB
    monkeypatch.setattr(_process.sys, "platform", "win32")
    with pytest.raises(NotBuiltError, match=r"\[peak_memory\] expected a system that tells"):
        peak_memory("cpu").__enter__()
    assert not _process._active


def test_the_pool_meter_adds_and_subtracts() -> None:
    """The arithmetic of the hook, without a GPU."""
    meter = _pools.PoolMeter(0)
    for sign, size in ((1, 1024), (1, 512), (-1, 1024), (1, 768)):
        (meter.allocated if sign > 0 else meter.freed)(0, size)
    meter.allocated(1, 1 << 30)  # another device
    assert meter.peak() == 1536 and meter._live == 1280


@pytest.mark.gpu
def test_the_pool_of_a_graph_counts(pooled_gpu: Any) -> None:
    def step(x: nf.Array) -> nf.Array:
        big = nf.concat([x] * 16)  # a temporary of the graph's own pool
        return nf.sum(big + 1.0)

    graph = nf.cuda_graph(step)
    x = nf.ones((MIB,), dtype=nf.float32, device="cuda")
    with peak_memory("cuda") as eager:
        step(x)
    with peak_memory("cuda") as first:
        graph(x)
        graph(x)
    with peak_memory("cuda") as later:  # the replay allocates nothing, and uses its pool
        for _ in range(3):
            out = graph(x)
    assert np.asarray(out) == 2 * 16 * MIB
    assert eager.bytes - eager.start >= 128 * MIB
    assert first.bytes - first.start >= 128 * MIB
    assert later.bytes >= later.start >= first.start + 128 * MIB


@pytest.mark.gpu
def test_the_hook_does_not_synchronise(pooled_gpu: Any) -> None:
    """The count goes on inside a stream capture, where a synchronisation is an error."""
    graph = nf.cuda_graph(lambda x: x * 2.0 + 1.0)
    x = nf.ones((1024,), device="cuda")
    with peak_memory("cuda") as peak:
        for _ in range(3):
            y = graph(x)
            assert peak.bytes > 0
    assert np.asarray(y)[0] == 3.0


@pytest.mark.gpu
def test_an_allocator_without_hooks_is_refused() -> None:
    import cupy

    before = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(None)
    try:
        with pytest.raises(DeviceError, match=r"\[peak_memory\] expected a CuPy memory pool"):
            peak_memory("cuda").__enter__()
    finally:
        cupy.cuda.set_allocator(before)


@pytest.fixture
def pooled_gpu() -> None:
    if config.flag("NVFP_TEST_PLAIN_MALLOC"):
        pytest.skip("no CUDA device: memory pools are switched off")
