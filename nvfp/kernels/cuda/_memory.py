"""Device memory: several outputs cut out of one allocation, and aligned addresses."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.cuda._recorder import thread
from nvfp.kernels.cuda._xp import cp

ALIGNMENT = 256  # of every piece of a slab, as of CuPy's own allocations
_UINT8 = np.dtype(np.uint8)


def view(slab: Any, at: int, shape: tuple[int, ...], dtype: np.dtype, strides: tuple[int, ...] | None = None) -> Any:
    """Return an array over the memory of ``slab`` from byte ``at`` on; strides in bytes (None: contiguous)."""
    return cp.ndarray(shape, dtype, slab.data + at, strides)


def allocate(nbytes: int) -> Any:
    """Return a pointer to new memory, which lives as long as an array over it."""
    return cp.cuda.alloc(nbytes)


def start(memory: Any) -> int:
    """Return the address of what `allocate` returned."""
    return memory.ptr  # type: ignore[no-any-return]


def pointer(array: Any) -> Any:
    """Return what `allocate` would have returned for the memory of an array."""
    return array.data


def over(memory: Any, at: int, shape: tuple[int, ...], dtype: np.dtype, strides: tuple[int, ...] | None) -> Any:
    """Return an array over what `allocate` returned, from byte ``at`` on.

    CuPy's constructor in two steps, without its way of looking for arguments: two thirds of the time.
    """
    kind = cp.ndarray
    array = kind.__new__(kind, _no_init=True)
    array._init(shape, dtype, memory + at if at else memory, strides)
    return array


def zero(slab: Any, at: int, nbytes: int) -> None:
    """Fill bytes of ``slab`` with zero on the current stream (a memset, no kernel)."""
    if thread.recorder is not None:
        thread.recorder.cleared(address(slab) + at, nbytes)
    (slab.data + at).memset_async(0, nbytes)


def fill_zero(at: int, nbytes: int, stream: int) -> None:
    """Fill bytes from an address on with zero on a stream."""
    cp.cuda.runtime.memsetAsync(at, 0, nbytes, stream)


class Slab:
    """One allocation for all outputs of a call: `reserve` pieces, then `cut` them.

    Example:
        >>> slab = Slab()
        >>> slab.reserve(10), slab.reserve(4), slab.size
        (0, 256, 512)
    """

    __slots__ = ("buffer", "size")

    def __init__(self) -> None:
        self.size = 0
        self.buffer: Any = None

    def reserve(self, nbytes: int) -> int:
        """Return the offset of a new piece."""
        at = self.size
        self.size += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return at

    def cut(self, at: int, shape: tuple[int, ...], dtype: np.dtype, strides: tuple[int, ...] | None = None) -> Any:
        """Return the piece at ``at`` as an array; the first call allocates."""
        if self.buffer is None:
            self.buffer = cp.empty((self.size,), _UINT8)
        return view(self.buffer, at, shape, dtype, strides)

    def clear(self, at: int, nbytes: int) -> None:
        """Zero a piece."""
        if self.buffer is None:
            self.buffer = cp.empty((self.size,), _UINT8)
        zero(self.buffer, at, nbytes)


def address(array: Any) -> int:
    """Return the device address of an array's first element."""
    return int(array.data.ptr)


def aligned(array: Any, nbytes: int = 16) -> bool:
    """Whether an array starts at a multiple of ``nbytes``."""
    return address(array) % nbytes == 0
