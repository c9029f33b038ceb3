"""Launching kernels on the current CuPy stream, with a count, and grid sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from nvfp.kernels.cuda._loader import Kernel
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
    kernel.function()(grid, block, args, shared)
    _launched = next(_ticket)


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
