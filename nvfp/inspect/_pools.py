"""Counts live bytes of CuPy's memory pools with a memory hook."""

from __future__ import annotations

from functools import cache
from typing import Any

from nvfp.arrays.graphs import graph_pools
from nvfp.errors import DeviceError, message
from nvfp.optional import need


class PoolMeter:
    """Live bytes of one CUDA device: what was live at the start, plus allocations, minus releases."""

    source = "CuPy memory pools, live blocks"

    def __init__(self, index: int) -> None:
        self.index = index
        self.start = self._live = self._peak = self._seen = 0
        self._hook: Any = None

    def begin(self) -> None:
        """Install the hook; raise DeviceError where the allocator is no pool and calls no hooks."""
        cp = need("cupy", extra="cuda13")
        self._hook = _hook_class()(self)
        self._hook.__enter__()
        try:
            with cp.cuda.Device(self.index):
                self._check(cp)
                self.start = self._live = self._peak = _live_bytes(cp)
        except BaseException:
            self.end()
            raise

    def _check(self, cp: Any) -> None:
        probe = cp.cuda.alloc(1)
        if not self._seen:
            do = "restore it with cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)"
            raise DeviceError(message("peak_memory", "a CuPy memory pool as the allocator", "another one", do))
        del probe

    def end(self) -> None:
        """Take the hook away."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.__exit__(None, None, None)

    def peak(self) -> int:
        """Most live bytes so far."""
        return self._peak

    def allocated(self, device: int, size: int) -> None:
        """Count a block that a pool has handed out."""
        if device == self.index:
            self._seen += 1
            self._live += size
            self._peak = max(self._peak, self._live)

    def freed(self, device: int, size: int) -> None:
        """Count a block that went back to its pool."""
        if device == self.index:
            self._live -= size


def _live_bytes(cp: Any) -> int:
    """Live bytes of the default pool and of the graphs' pools on the current device."""
    total = int(cp.get_default_memory_pool().used_bytes())
    for pool, captured in graph_pools():
        total += int(pool.total_bytes() if captured else pool.used_bytes())
    return total


@cache
def _hook_class() -> Any:
    """The subclass of CuPy's MemoryHook; made at the first use, since CuPy is optional."""
    base = need("cupy", extra="cuda13").cuda.MemoryHook

    class Hook(base):  # type: ignore[misc, valid-type]
        def __init__(self, meter: PoolMeter) -> None:
            self.meter = meter
            self.name = f"nvfp.peak_memory.{id(meter):x}"  # CuPy allows one hook per name

        def malloc_postprocess(self, **event: Any) -> None:
            if event["mem_ptr"]:  # 0: the allocation failed
                self.meter.allocated(event["device_id"], event["mem_size"])

        def free_postprocess(self, **event: Any) -> None:
            self.meter.freed(event["device_id"], event["mem_size"])

    return Hook
