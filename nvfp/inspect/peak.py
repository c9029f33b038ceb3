"""`peak_memory`: the most memory that was held at one time while a block of code ran."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from nvfp.device import Device, check_usable, default_device
from nvfp.errors import StateError, message
from nvfp.inspect._pools import PoolMeter
from nvfp.inspect._process import ProcessMeter


class Meter(Protocol):
    """What counts on one kind of device."""

    source: str
    start: int

    def begin(self) -> None:
        """Start counting; raise before anything is changed if that cannot be done here."""

    def end(self) -> None:
        """Stop counting."""

    def peak(self) -> int:
        """Most bytes so far."""


class peak_memory:
    """Measure the most memory held at one time while the block runs.

    On CUDA it is ``max over time of sum(bytes of live blocks)`` of CuPy's memory pools: what arrays
    occupy (in the pool's units of 512 bytes), what was live at the entry included. A hook counts every
    allocation and release of any pool by this thread, those of `nf.cuda_graph`'s own pool too; of a
    graph captured before the entry the whole pool counts, since a replay uses it. The CUDA context,
    code and libraries' own workspaces are outside the pools and not counted.

    On the CPU nobody counts arrays; told is the largest resident set of the *whole process* (Python,
    libraries and compiled kernels included), over the block where the system lets us start anew
    (Linux), else since the start of the process. `source` says which it is.

    Args:
        device: a Device or its name; the default device unless given.

    Attributes:
        device: what is measured.
        bytes: the peak so far, an int; may be read inside the block and after it.
        start: bytes held at the entry.
        source: what the figures count, in words.

    Raises:
        DeviceError: the device cannot be used here, or its allocator is no pool (at the entry).
        StateError: read before the block was entered, or entered twice.
        NotBuiltError: the CPU of a system that tells no resident set (at the entry).

    Numerics: no synchronisation, no launch; some microseconds of host time per allocation on CUDA.
        Blocks may nest, each with its own object. Memory that another thread allocates or frees on
        CUDA is not seen.

    Example:
        >>> import nvfp as nf
        >>> with peak_memory("cpu") as peak:
        ...     x = nf.ones((1000, 1000), device="cpu")
        >>> peak.bytes >= peak.start > x.nbytes
        True
    """

    def __init__(self, device: Device | str | None = None) -> None:
        self.device = default_device() if device is None else check_usable(device, "peak_memory")
        self._meter: Meter | None = None
        self._result: int | None = None

    def __enter__(self) -> peak_memory:
        if self._meter is not None:
            raise StateError(
                message("peak_memory", "an object that was not entered", "one that was", "make a new one per block")
            )
        meter: Meter = ProcessMeter() if self.device.type == "cpu" else PoolMeter(self.device.index)
        meter.begin()
        self._meter = meter
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        meter = self._entered()
        self._result = meter.peak()
        meter.end()

    @property
    def bytes(self) -> int:
        """The peak so far; final after the block."""
        meter = self._entered()
        return meter.peak() if self._result is None else self._result

    @property
    def start(self) -> int:
        """Bytes held at the entry."""
        return self._entered().start

    @property
    def source(self) -> str:
        """What the figures count, in words."""
        return self._entered().source

    def _entered(self) -> Meter:
        if self._meter is None:
            raise StateError(
                message("peak_memory", "a block that was entered", "none", "write: with nf.inspect.peak_memory() as p:")
            )
        return self._meter

    def __repr__(self) -> str:
        if self._meter is None:
            return f"peak_memory({self.device}, not entered)"
        return f"peak_memory({self.device}, {self.bytes:,} bytes: {self.source})"
