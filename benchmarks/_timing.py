"""How a call is timed: CUDA events with a cold L2 on the GPU, a monotonic clock on the host.

The time of a GPU call starts when the GPU reaches it: the GPU is kept busy with reading other memory while
the host enqueues the call, so that no host time lies between the two events. That reading also empties L2,
and it leaves no dirty lines that the timed call would have to write back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Call = Callable[[], object]

_SCRATCH = 256 << 20  # bytes, several times any L2
_READ_SECONDS = 50e-6  # at least, for reading them once
_READ = r"""
extern "C" __global__ void read(const uint4* from, unsigned n, unsigned* to) {
  unsigned mix = 1;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    uint4 v = from[i];
    mix ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (mix == 0x9e3779b9u) *to = mix;  // never: the loads must only seem to matter
}
"""


@dataclass(frozen=True)
class Timing:
    """Seconds per call: median, and the 10 % and 90 % points."""

    median: float
    low: float
    high: float


def _timing(seconds: list[float]) -> Timing:
    s = sorted(seconds)
    edge = len(s) // 10
    return Timing(float(np.median(s)), s[edge], s[-1 - edge])


@cache
def _reader() -> Call:
    """Return a call that reads `_SCRATCH` bytes of device memory."""
    import cupy as cp

    scratch, sink = cp.zeros(_SCRATCH, np.uint8), cp.zeros(1, np.uint32)
    kernel, n = cp.RawKernel(_READ, "read"), np.uint32(_SCRATCH // 16)
    return lambda: kernel((2048,), (256,), (scratch, n, sink))


def forget_scratch() -> None:
    """Give the memory back that `time_gpu` reads between calls."""
    _reader.cache_clear()


def time_gpu(call: Call, *, setup: Call | None = None, seconds: float = 0.2, least: int = 10, most: int = 50) -> Timing:
    """Time a call on the current stream.

    Args:
        call: enqueues the work.
        setup: enqueues what must happen before each call and is not timed.
        seconds: about how long to measure, within ``least`` and ``most`` repeats.
        least: fewest repeats.
        most: most repeats.
    """
    import cupy as cp

    read = _reader()

    def once(reads: int) -> tuple[Any, Any]:
        if setup is not None:
            setup()
        for _ in range(reads):
            read()
        start, stop = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        call()
        stop.record()
        return start, stop

    host = math.inf
    for _ in range(3):  # the first compiles and allocates
        once(1)
        cp.cuda.runtime.deviceSynchronize()
        began = time.perf_counter()
        call()
        host = min(host, time.perf_counter() - began)
        cp.cuda.runtime.deviceSynchronize()
    reads = 1 + min(64, math.ceil(2 * host / _READ_SECONDS))
    pairs = [once(reads)]
    cp.cuda.runtime.deviceSynchronize()
    alone = cp.cuda.get_elapsed_time(*pairs[0]) / 1e3
    pairs += [once(reads) for _ in range(_repeats(alone, seconds, least, most))]
    cp.cuda.runtime.deviceSynchronize()
    return _timing([cp.cuda.get_elapsed_time(a, b) / 1e3 for a, b in pairs[1:]])


def time_in_a_row(call: Call, *, steps: int, groups: int, idle: float = 0.0) -> Timing:
    """Time groups of calls of which the host may enqueue the next before the GPU has done the last one.

    Args:
        call: enqueues the work.
        steps: calls of a group, between two events.
        groups: how many; the median counts.
        idle: seconds of rest before each group. Products on random data draw more power than the card may take for
            long: after some milliseconds the clock falls, by a quarter on an H200. A rest shows what short bursts do.
    """
    import cupy as cp

    for _ in range(3):  # the first compile and allocate
        call()
    cp.cuda.runtime.deviceSynchronize()
    found = []
    for _ in range(groups):
        time.sleep(idle)
        call()  # the clock rises again
        start, stop = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        for _ in range(steps):
            call()
        stop.record()
        stop.synchronize()
        found.append(cp.cuda.get_elapsed_time(start, stop) / 1e3 / steps)
    return _timing(found)


def time_cpu(call: Call, *, setup: Call | None = None, seconds: float = 0.5, least: int = 3, most: int = 15) -> Timing:
    """Time a call that has done its work when it returns (arguments as for `time_gpu`)."""

    def once() -> float:
        if setup is not None:
            setup()
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    once()  # compiles
    alone = once()
    return _timing([once() for _ in range(_repeats(alone, seconds, least, most))])


def _repeats(alone: float, seconds: float, least: int, most: int) -> int:
    return max(least, min(most, int(seconds / max(alone, 1e-9))))


def time_host(call: Call, synchronize: Call, *, batches: int = 10, seconds: float = 0.02) -> Timing:
    """Time what a small call costs the host: batches of up to 100 calls in ``seconds`` that do not wait for the GPU."""

    def batch(calls: int) -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls

    batch(3)  # compiles
    calls = _repeats(batch(10), seconds, 5, 100)
    found = [batch(calls) for _ in range(batches)]
    synchronize()
    return _timing(found)


def copy_rate_gpu() -> float:
    """Bytes per second, read plus written, of a large device-to-device copy."""
    import cupy as cp

    n = 1 << 30
    a, b = cp.ones(n, np.uint8), cp.empty(n, np.uint8)
    return 2 * n / time_gpu(lambda: b.data.copy_from_device_async(a.data, n)).median


def copy_rate_cpu(threads: int) -> float:
    """Bytes per second, read plus written, of a large copy by ``threads`` threads."""
    n = 8 << 20
    a, b = np.ones((threads, n), np.float32), np.zeros((threads, n), np.float32)
    with ThreadPoolExecutor(threads) as pool:
        return 2 * a.nbytes / time_cpu(lambda: list(pool.map(np.copyto, b, a))).low


def matmul_rate_cpu() -> float:
    """FLOP per second of NumPy's float32 product of two 1024 x 1024 matrices."""
    n = 1024
    a = np.random.default_rng(0).standard_normal((n, n), np.float32)
    out = np.empty_like(a)
    return 2 * n**3 / time_cpu(lambda: np.matmul(a, a, out=out)).low
