"""`reduce` on the CPU: balanced trees for float sums and products, NumPy's own loops for the rest.

The tree over n elements pairs neighbours, level by level; an odd one passes on. Its nodes over aligned blocks of
a power of two are the same wherever the array is cut, so pieces are reduced apart and combined by the same
tree. Rows are summed by Numba; columns and products by NumPy, one call per level.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from nvfp.kernels.cpu._njit import inline, njit
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.reduce import Reduction, reduced_count

_PIECE = 1 << 16  # elements of a piece: fits into the second-level cache
_COLUMNS = 1 << 11  # columns of a piece: long rows, yet enough of them
_EMPTY: dict[str, Any] = {"sum": 0, "sumsq": 0, "prod": 1, "mean": np.nan, "all": True, "any": False}
_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add, "mean": np.add, "sumsq": np.add, "prod": np.multiply,
    "max": np.maximum, "min": np.minimum, "all": np.logical_and, "any": np.logical_or,
}  # fmt: skip


def reduce(
    op: Reduction,
    x: Any,
    *,
    axes: tuple[int, ...],
    shape: tuple[int, ...],
    dtype: np.dtype,
    compute: np.dtype,
    out: Any | None = None,
) -> Any:
    """Compute `kernels.reduce` over ``axes``; ``compute`` is the dtype that accumulates."""
    if out is None:
        out = np.empty(shape, dtype)
    if out.size == 0:
        return out
    count = reduced_count(x.shape, axes)
    if count == 0:
        out[...] = _EMPTY[op]
        return out
    kept = tuple(n for a, n in enumerate(x.shape) if a not in axes)
    with np.errstate(all="ignore"):  # IEEE results, no warnings
        value = _accumulate(op, x, axes, compute)
        if op == "mean":
            value = value / (compute.type(count) if compute.kind in "fc" else np.float64(count))
        out.reshape(kept)[...] = value
    return out


def _accumulate(op: str, x: np.ndarray, axes: tuple[int, ...], compute: np.dtype) -> Any:
    """The reduced values, of the remaining shape, before a mean's division."""
    if op in ("argmax", "argmin"):
        return _position(np.argmax if op == "argmax" else np.argmin, x, axes, compute)
    ufunc = _UFUNCS[op]
    if op in ("all", "any"):
        return ufunc.reduce(x != 0, axis=axes)
    if op in ("max", "min"):
        return ufunc.reduce(x.astype(compute, copy=False), axis=axes)
    if compute.kind == "f":
        return _tree(x, axes, compute, op == "sumsq", ufunc)
    if op == "sumsq":
        x = np.square(x.astype(compute))
    return ufunc.reduce(x, axis=axes, dtype=compute)


def _position(find: Callable[..., Any], x: np.ndarray, axes: tuple[int, ...], compute: np.dtype) -> Any:
    kept = tuple(a for a in range(x.ndim) if a not in axes)
    shape = tuple(x.shape[a] for a in kept)
    rows = x.astype(compute, copy=False).transpose(kept + axes).reshape(*shape, reduced_count(x.shape, axes))
    return find(rows, axis=-1)


def _tree(x: np.ndarray, axes: tuple[int, ...], compute: np.dtype, square: bool, ufunc: np.ufunc) -> np.ndarray:
    """Float sums and products as balanced trees, of the remaining shape."""
    kept = [a for a in range(x.ndim) if a not in axes]
    step = min((abs(x.strides[a]) for a in axes if x.shape[a] > 1), default=0)
    before = [a for a in kept if abs(x.strides[a]) >= step]  # outside of the reduced axes in memory
    behind = [a for a in kept if abs(x.strides[a]) < step]
    lengths = [[x.shape[a] for a in group] for group in (before, axes, behind)]
    cube = x.transpose(*before, *axes, *behind).reshape([prod(group) for group in lengths])
    while cube.shape[1] > 1 or square or cube.dtype != compute:
        cube = _stage(cube, compute, square, ufunc)
        square = False
    flat = cube.reshape((*lengths[0], *lengths[2]))
    order = before + behind
    return flat.transpose([order.index(a) for a in kept])


def _stage(cube: np.ndarray, compute: np.dtype, square: bool, ufunc: np.ufunc) -> np.ndarray:
    """Reduce aligned segments of axis 1 of [batch, n, columns]; returns [batch, segments, columns]."""
    batch, n, columns = cube.shape
    wide = min(columns, _COLUMNS)
    segment = 1 << max(5, (_PIECE // wide).bit_length() - 1)
    segments = -(-n // segment)
    rows = max(1, _PIECE // (wide * min(n, segment)))
    out = np.empty((batch, segments, columns), compute)
    pieces = list(itertools.product(range(0, batch, rows), range(segments), range(0, columns, wide)))

    def work(start: int, stop: int) -> None:
        with np.errstate(all="ignore"):  # the setting belongs to the thread
            for b, s, c in pieces[start:stop]:
                part = cube[b : b + rows, s * segment : (s + 1) * segment, c : c + wide]
                block = np.square(part, dtype=compute) if square else part.astype(compute, copy=False)
                if ufunc is np.multiply or columns > 1:
                    out[b : b + rows, s, c : c + wide] = _fold(block, ufunc)
                else:
                    out[b : b + rows, s, 0] = _sums(block[:, :, 0])

    run_chunks(work, len(pieces), 4)
    return out


def _fold(block: np.ndarray, ufunc: np.ufunc) -> np.ndarray:
    """Tree over axis 1 of [batch, n, columns]."""
    while (n := block.shape[1]) > 1:
        half = np.empty((block.shape[0], (n + 1) // 2, block.shape[2]), block.dtype)
        ufunc(block[:, 0 : n - 1 : 2], block[:, 1::2], out=half[:, : n // 2])
        if n & 1:
            half[:, -1] = block[:, -1]
        block = half
    return block[:, 0]


def _sums(rows: np.ndarray) -> np.ndarray:
    """Tree over the last axis of [rows, n]."""
    out = np.empty(len(rows), rows.dtype)
    rows = np.ascontiguousarray(rows)
    _sum_rows(rows if rows.flags.writeable else rows.copy(), out)  # Numba would compile anew for read-only arrays
    return out


def sum_flat(x: np.ndarray) -> Any:
    """The tree over all elements of a contiguous array, as a scalar of its dtype."""
    flat = x.reshape(-1)
    return x.dtype.type(_sum_flat(flat if flat.flags.writeable else flat.copy()))


@njit
def _sum_flat(x: np.ndarray) -> Any:
    """Tree over a vector, level by level."""
    n = x.size
    part = np.empty((n + 1) // 2 + 1, x.dtype)
    for j in range(n // 2):
        part[j] = x[2 * j] + x[2 * j + 1]
    if n & 1:
        part[n // 2] = x[n - 1]
    return _fold_few(part, (n + 1) // 2)


@njit
def _sum_rows(x: np.ndarray, out: np.ndarray) -> None:
    """``out[i]`` = tree over ``x[i, :]``, in blocks of 256; ``stack`` keeps one node per level (binary counter)."""
    n = x.shape[1]
    blocks = (n + 255) // 256
    part = np.empty(40, x.dtype)
    stack = np.empty(64, x.dtype)
    for i in range(x.shape[0]):
        row = x[i]
        for block in range(blocks):
            base = 256 * block
            size = min(256, n - base)
            nodes = size // 8
            for j in range(nodes):
                k = base + 8 * j
                left = (row[k] + row[k + 1]) + (row[k + 2] + row[k + 3])
                part[j] = left + ((row[k + 4] + row[k + 5]) + (row[k + 6] + row[k + 7]))
            if size % 8:
                for j in range(size % 8):
                    part[nodes + j] = row[base + 8 * nodes + j]
                part[nodes] = _fold_few(part[nodes:], size % 8)
                nodes += 1
            node, level, count = _fold_few(part, nodes), 0, block
            while count & 1:
                node = stack[level] + node
                level, count = level + 1, count >> 1
            stack[level] = node
        level, count = 0, blocks
        while not count & 1:
            level, count = level + 1, count >> 1
        node, level, count = stack[level], level + 1, count >> 1
        while count:
            if count & 1:
                node = stack[level] + node
            level, count = level + 1, count >> 1
        out[i] = node


@inline
def _fold_few(part: np.ndarray, n: int) -> Any:
    """Tree over ``part[:n]``, in place."""
    while n > 1:
        half = n // 2
        for j in range(half):
            part[j] = part[2 * j] + part[2 * j + 1]
        if n & 1:
            part[half] = part[n - 1]
            half += 1
        n = half
    return part[0]
