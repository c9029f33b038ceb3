"""What a thread's CUDA calls do while it records: allocations, memsets and launches, by where their addresses lie."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np


class Place(NamedTuple):
    """An address: the number of an array that the call was given, or behind those of an allocation, and bytes."""

    region: int
    offset: int


class Launched(NamedTuple):
    """A launch; an address among ``args`` is a `Place`, everything else a constant."""

    kernel: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: tuple[Any, ...]
    shared: int


class Cleared(NamedTuple):
    """A memset to zero."""

    place: Place
    nbytes: int


class Recorder:
    """The record of one call.

    Attributes:
        steps: memsets and launches in order.
        made: what it allocated, in order; held, so that no address is given twice.
        spoilt: whether it did what cannot be done again by address alone.
    """

    def __init__(self, given: list[tuple[int, int, int]], pinned: bool) -> None:
        self.steps: list[Launched | Cleared] = []
        self.made: list[Any] = []
        self.spoilt = False
        self._given = given  # address, first byte, end
        self._made: list[tuple[int, int]] = []
        self._pinned = pinned

    def allocated(self, array: Any, address: int, nbytes: int) -> None:
        """Note an allocation."""
        self.made.append(array)
        self._made.append((address, address + nbytes))

    def cleared(self, address: int, nbytes: int) -> None:
        """Note a memset."""
        place = self.place(address)
        if place is None:
            self.spoilt = True
        else:
            self.steps.append(Cleared(place, nbytes))

    def launched(self, kernel: Any, grid: Any, block: Any, args: list[Any], shared: int) -> None:
        """Note a launch; addresses of arrays come as ``(address,)``."""
        found: list[Any] = []
        for arg in args:
            if type(arg) is tuple:
                found.append(self.place(arg[0]))
                self.spoilt |= found[-1] is None
            else:
                found.append(np.int64(arg) if type(arg) is int else np.int64(0) if arg is None else arg)
                self.spoilt |= self._names_memory(found[-1])
        self.steps.append(Launched(kernel, tuple(grid), tuple(block), tuple(found), shared))

    def place(self, address: int) -> Place | None:
        """Where an address lies, or None where that is unknown or not the only answer."""
        for i, (first, end) in enumerate(self._made):
            if first <= address < max(end, first + 1):
                return Place(len(self._given) + i, address - first)
        inside = []
        for i, (at, first, end) in enumerate(self._given):
            if at == address:
                return Place(i, 0)
            if first <= address < end:
                inside.append(Place(i, address - at))
        return inside[0] if len(inside) == 1 else None

    def _names_memory(self, constant: Any) -> bool:
        """Whether a constant holds an address that another call would have elsewhere."""
        if constant.dtype.itemsize < 8:
            return False
        raw = constant.tobytes()
        words = np.frombuffer(raw[: len(raw) // 8 * 8], np.int64).tolist()
        known = self._made if self._pinned else self._made + [(first, end) for _, first, end in self._given]
        return any(first <= word < end for word in words if word for first, end in known)


class _Thread(threading.local):
    recorder: Recorder | None = None

    def __init__(self) -> None:
        self.devices: set[int] = set()  # on which this thread has launched


thread = _Thread()


def spoil() -> None:
    """Say that a call does what no record holds (a library's kernels, a copy from the host)."""
    if thread.recorder is not None:
        thread.recorder.spoilt = True
