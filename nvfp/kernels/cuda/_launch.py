"""Launching kernels on the current CuPy stream, with a count, and grid sizes."""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._loader import Kernel
from nvfp.kernels.cuda._recorder import Place, thread
from nvfp.kernels.cuda._xp import cp

Grid = tuple[int, ...]
_ticket = itertools.count(1)  # next() is atomic, += is not
_launched = 0


def launch(kernel: Kernel, grid: Grid, block: Grid, args: tuple[Any, ...], shared: int = 0) -> None:
    """Launch a kernel on the current device and stream; an empty grid launches nothing.

    Args:
        kernel: from `nvfp.kernels.cuda._loader.kernel`.
        grid: blocks per dimension (1 to 3 ints).
        block: threads per dimension (1 to 3 ints).
        args: CuPy arrays (their address), Python ints (64 bits: addresses) and NumPy scalars of the exact C type.
        shared: bytes of dynamic shared memory (at most 48 KiB).
    """
    global _launched
    if 0 in grid:
        return
    if thread.recorder is not None:
        noted = [arg if _constant(arg) else (_memory.address(arg),) for arg in args]
        thread.recorder.launched(kernel, grid, block, noted, shared)
    kernel.function()(grid, block, args, shared)
    _launched = next(_ticket)
    thread.devices.add(cp.cuda.runtime.getDevice())


def _constant(arg: Any) -> bool:
    """Whether a kernel's argument is a value rather than the address of an array."""
    if arg is None or isinstance(arg, int | np.generic):
        return True
    return isinstance(arg, np.ndarray) and arg.dtype.type is np.void


class Prepared:
    """A launch on one device of which only addresses are missing.

    The arguments lie in a buffer: addresses first, constants behind them, then the table that points at each. A buffer
    serves one launch at a time; the driver has read it when a launch returns.
    """

    __slots__ = ("_constants", "_dims", "_free", "_function", "_kept", "_pack")

    def __init__(self, kernel: Kernel, grid: Grid, block: Grid, args: tuple[Any, ...], shared: int = 0) -> None:
        """Decide a launch.

        Args:
            kernel: as for `launch`, as all but ``args``.
            grid: blocks.
            block: threads.
            args: a `Place` for every address, else the value with its C type.
            shared: bytes of dynamic shared memory.
        """
        self._kept = kernel.function()
        self._function: int = self._kept.ptr
        self._dims = (*(*grid, 1, 1)[:3], *(*block, 1, 1)[:3], shared)
        self._constants = tuple([None if type(arg) is Place else arg.tobytes() for arg in args])
        self._pack = struct.Struct(f"{self._constants.count(None)}Q").pack_into
        self._free: list[tuple[Any, int]] = []

    def run(self, addresses: list[int], stream: int) -> None:
        """Launch with these addresses, one for each `Place`."""
        global _launched
        try:
            buffer = self._free.pop()  # atomic: another thread gets another one
        except IndexError:
            buffer = self._buffer()
        self._pack(buffer[0], 0, *addresses)
        cp.cuda.driver.launchKernel(self._function, *self._dims, stream, buffer[1], 0)
        self._free.append(buffer)
        _launched = next(_ticket)

    def _buffer(self) -> tuple[Any, int]:
        """A buffer with all constants in place, and the address of its table."""
        at, end = [], 8 * self._constants.count(None)
        addresses = itertools.count(0, 8)
        for constant in self._constants:
            if constant is None:
                at.append(next(addresses))
            else:
                end = -(-end // 16) * 16
                at.append(end)
                end += len(constant)
        table = -(-end // 16) * 16
        memory = ctypes.create_string_buffer(table + 8 * len(at) + 16)
        start = -(-ctypes.addressof(memory) // 16) * 16
        view = memoryview(memory).cast("B")[start - ctypes.addressof(memory) :]
        for constant, offset in zip(self._constants, at, strict=True):
            if constant is not None:
                view[offset : offset + len(constant)] = constant
        struct.pack_into(f"{len(at)}Q", view, table, *[start + offset for offset in at])
        return view, start + table


def launches() -> int:
    """Return how many kernels this process has launched through `launch` (graph replays not counted)."""
    return _launched


class Count:
    """The launches inside a `count_launches` block; ``n`` is final when the block ends."""

    n: int = 0


@contextmanager
def count_launches() -> Iterator[Count]:
    """Count the launches of a ``with`` block.

    Example:
        >>> with count_launches() as count:
        ...     pass
        >>> count.n
        0
    """
    count, before = Count(), launches()
    try:
        yield count
    finally:
        count.n = launches() - before


@cache
def _multiprocessors(device: int) -> int:
    return int(cp.cuda.runtime.deviceGetAttribute(16, device))  # cudaDevAttrMultiProcessorCount


def multiprocessors() -> int:
    """Return the number of multiprocessors of the current device."""
    return _multiprocessors(cp.cuda.runtime.getDevice())


def grid_for(items: int, block: int, *, per_thread: int = 1, per_sm: int = 16) -> Grid:
    """Return a one-dimensional grid for a grid-stride loop over ``items``.

    Args:
        items: number of work items; 0 gives an empty grid.
        block: threads per block.
        per_thread: items that one thread takes per turn.
        per_sm: most blocks per multiprocessor, so that small jobs stay small and large ones loop.
    """
    blocks = -(-items // (block * per_thread))
    return (blocks,) if blocks <= per_sm else (min(blocks, multiprocessors() * per_sm),)
