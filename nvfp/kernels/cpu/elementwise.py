"""`elementwise` on the CPU: NumPy's loops over tiles that stay in the cache, on several threads.

Where dtypes already fit (float32, float64, int64) a ufunc writes straight into the output. Otherwise each
tile is widened, computed and rounded before the next one, so no temporary array has full size, and a
broadcast operand is widened in its own small shape.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cache
from math import prod
from typing import Any

import numpy as np

from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.elementwise_table import OPS

_TILE = 1 << 15  # elements: a few tiles of float32 fit into the second-level cache
_DIRECT = 1 << 17  # elements of a tile that needs no temporaries: worth a thread
_BOOL = np.dtype(np.bool_)
_Loop = tuple[Callable[..., Any], tuple[np.dtype, ...], np.dtype]


def elementwise(
    op: str,
    *args: Any,
    dtype: np.dtype,
    compute: np.dtype,
    shape: tuple[int, ...],
    out: Any | None = None,
) -> Any:
    """Compute `kernels.elementwise`; ``compute`` is the dtype of the computation, scalars have it."""
    loop = _loop(op, compute)
    if out is None:
        out = np.empty(shape, dtype)
    else:
        args = tuple(a.copy() if _crosses(a, out) else a for a in args)
    if out.size <= _TILE:
        with np.errstate(all="ignore"):  # IEEE results, no warnings
            _apply(loop, args, out)
        return out
    pieces, target = _aligned(args, out)
    function, takes, gives = loop
    direct = isinstance(function, np.ufunc) and (*(a.dtype for a in args), out.dtype) == (*takes, gives)
    tiles = list(_tiles(target.shape, _DIRECT if direct else _TILE))

    def work(start: int, stop: int) -> None:
        with np.errstate(all="ignore"):  # the setting belongs to the thread
            for tile in tiles[start:stop]:
                _apply(loop, tuple(a[tile] if a.ndim else a for a in pieces), target[tile])

    run_chunks(work, len(tiles), 1 if direct else _DIRECT // _TILE)
    return out


def _crosses(a: Any, out: np.ndarray) -> bool:
    """Whether ``a`` overlaps ``out`` other than by being the same view."""
    if isinstance(a, np.generic) or not np.may_share_memory(a, out):
        return False
    same = a.shape == out.shape and a.strides == out.strides
    return not (same and a.__array_interface__["data"] == out.__array_interface__["data"])


def _aligned(args: tuple[Any, ...], out: np.ndarray) -> tuple[tuple[Any, ...], np.ndarray]:
    """Views with as many axes as ``out``, flat where all are contiguous; 0-d stays 0-d."""
    if all(a.shape == out.shape and a.flags.c_contiguous for a in (*args, out) if a.ndim):
        return tuple(a.reshape(-1) if a.ndim else a for a in args), out.reshape(-1)
    return tuple(np.broadcast_to(a, out.shape) if a.ndim else a for a in args), out


def _tiles(shape: tuple[int, ...], size: int) -> Iterator[tuple[Any, ...]]:
    """Index tuples of pieces of at most ``size`` elements that cover ``shape``."""
    cut = next(k for k in range(len(shape)) if prod(shape[k + 1 :]) <= size)
    step = size // prod(shape[cut + 1 :])
    for lead in itertools.product(*map(range, shape[:cut])):
        for start in range(0, shape[cut], step):
            yield (*lead, slice(start, start + step))


@cache
def _loop(op: str, compute: np.dtype) -> _Loop:
    """The NumPy function of an op, the dtypes that it takes, and the one that it gives."""
    row = OPS[op]
    function = row.integer if row.integer is not None and compute.kind in "biu" else row.numpy
    takes = tuple(_BOOL if row.mask and i == 0 else compute for i in range(row.arity))
    gives = _BOOL if row.result == "bool" else compute
    if row.result == "real" and compute.kind == "c":
        gives = np.dtype(f"f{compute.itemsize // 2}")
    return function, takes, gives


def _apply(loop: _Loop, args: tuple[Any, ...], out: np.ndarray) -> None:
    """Compute one tile; ``args`` and ``out`` have any dtypes and strides."""
    function, takes, gives = loop
    ready = [a if a.dtype == t else _widened(a, t) for a, t in zip(args, takes)]
    if out.dtype == gives:
        function(*ready, out=out)
    else:
        result = np.empty(out.shape, gives)
        function(*ready, out=result)
        out[...] = result


def _widened(a: Any, dtype: np.dtype) -> Any:
    """``a`` as ``dtype``, with broadcast axes kept at length 1."""
    if a.ndim and 0 in a.strides:
        a = a[tuple(slice(0, 1) if s == 0 and n else slice(None) for s, n in zip(a.strides, a.shape))]
    return a.astype(dtype)
