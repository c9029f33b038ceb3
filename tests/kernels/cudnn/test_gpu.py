"""What only a GPU shows: capture in a graph, several streams, threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nvfp.device import Device, cuda_problem
from nvfp.errors import KernelError
from nvfp.kernels.cudnn import binding, plan
from nvfp.kernels.cudnn.record import record_of
from nvfp.kernels.cudnn.run import attention, attention_vjp, unsupported
from tests.devices import to_device, to_numpy
from tests.kernels.cudnn.test_attention import masks, operands, step_word

pytestmark = pytest.mark.gpu
CUDA = Device("cuda")


@pytest.fixture(autouse=True)
def _frontend() -> None:
    if cuda_problem() is None and (problem := binding.problem()) is not None:
        pytest.skip(f"no CUDA device: {problem}")


def step_of(mask_type: str, dropout: float) -> tuple[Callable[[], tuple[Any, ...]], Any]:
    """A function that runs forward and backward, and the step word that it reads."""
    q, k, v, dout = (to_device(x, CUDA) for x in operands(128, 128, groups=2))
    mask = to_device(masks("left", 2, 4, 128, 128), CUDA) if mask_type.startswith("padding") else None
    word = step_word(CUDA, 3)
    record = record_of(q, k, v, mask_type=mask_type, mask=mask, dropout=dropout)

    def step() -> tuple[Any, ...]:
        out, saved = attention(record, q, k, v, mask=mask, key=1, ordinal=2, step=word if dropout else None)
        return out, *attention_vjp(record, dout, q, k, v, out, saved)[:3]

    assert unsupported(record) is None
    return step, word


def bits(arrays: tuple[Any, ...]) -> list[bytes]:
    return [to_numpy(x).tobytes() for x in arrays]


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("mask_type", ["causal", "padding_causal"])
def test_a_replayed_graph_equals_eager(mask_type: str, dropout: float) -> None:
    import cupy as cp

    step, word = step_of(mask_type, dropout)
    wanted = [bits(step())]
    word[...] = 4
    wanted.append(bits(step()))
    assert (wanted[0] != wanted[1]) == (dropout > 0)
    stream, pool = cp.cuda.Stream(non_blocking=True), cp.cuda.MemoryPool()
    cp.cuda.Device().synchronize()
    with stream, cp.cuda.using_allocator(pool.malloc):
        step()
        stream.begin_capture()
        try:
            results = step()
        finally:
            graph = stream.end_capture()
    for value, expected in ((3, wanted[0]), (4, wanted[1]), (3, wanted[0])):
        word[...] = value
        cp.cuda.Device().synchronize()
        for _ in range(2):
            graph.launch(stream)
        stream.synchronize()
        assert bits(results) == expected


def test_a_capture_builds_no_plan() -> None:
    import cupy as cp

    q, k, v, _ = (to_device(x, CUDA) for x in operands(40, 48))
    record = record_of(q, k, v)
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        try:
            with pytest.raises(KernelError, match="before the capture"):
                unsupported(record)
        finally:
            stream.end_capture()
    assert unsupported(record) is None


def test_threads_and_streams_share_a_plan() -> None:
    import cupy as cp

    step, _ = step_of("causal", 0.0)
    wanted, built = bits(step()), plan.plan_stats().size
    cp.cuda.Device().synchronize()
    found: list[list[bytes]] = []

    def work() -> None:
        with cp.cuda.Device(0), cp.cuda.Stream(non_blocking=True) as stream:
            for _ in range(10):
                results = step()
            stream.synchronize()
            found.append(bits(results))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(f == wanted for f in found) and plan.plan_stats().size == built


def test_nothing_waits_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host time of a big problem is far below its GPU time: the call returns while the GPU works."""
    import time

    import cupy as cp

    q = to_device(np.zeros((8, 4096, 16, 128), np.float16), CUDA)
    record = record_of(q, q, q)
    out, saved = attention(record, q, q, q)
    attention_vjp(record, out, q, q, q, out, saved)
    cp.cuda.Device().synchronize()
    start = time.perf_counter()
    for _ in range(5):
        out, saved = attention(record, q, q, q)
        attention_vjp(record, out, q, q, q, out, saved)
    host = time.perf_counter() - start
    cp.cuda.Device().synchronize()
    assert host < 0.5 * (time.perf_counter() - start)
