"""How blocks lie on an array, without a case per shape.

Each axis i gets a block length ``L[i]``: 1 where it is not blocked, the whole axis where one scale serves the
tensor. Filled up with zeros, the array is viewed as ``[n0, L0, n1, L1, ...]``; a block maximum is then a
maximum over the L axes, and a value per block is repeated ``L[i]`` times along axis i.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ShapeError, message


def block_lengths(shape: tuple[int, ...], fmt: QuantDType, axis: int) -> tuple[int, ...]:
    """Return the block length of every axis of an array of ``shape``: 1 where it is not blocked.

    Args:
        shape: logical shape.
        fmt: the quantized dtype; a pair ``block=(across, along)`` lies on the last two axes.
        axis: the block axis (``along``); per-tensor formats ignore it.

    Raises:
        ShapeError: an axis that the array lacks, or not one of the last two where blocks are two-dimensional.

    Example:
        >>> from nvfp.dtypes.formats import nvfp4
        >>> block_lengths((2, 48, 64), nvfp4, 1), block_lengths((2, 48, 64), nvfp4.replace(block=(16, 16)), 1)
        ((1, 16, 1), (1, 16, 16))
    """
    block = fmt.block_shape
    if block is None:
        return tuple(shape)
    across, along = block
    ndim = len(shape)
    if not -ndim <= axis < ndim:
        need = f"an axis of a {ndim}-d array for {fmt.name}"
        raise ShapeError(message("quantize", need, axis, "pass one of its axes"))
    axis %= ndim
    lengths = [1] * ndim
    lengths[axis] = along
    if across > 1:
        if ndim < 2 or axis < ndim - 2:
            need, got = f"one of the last two axes for blocks of {block}", f"axis {axis} of a {ndim}-d array"
            raise ShapeError(message("quantize", need, got, "move that axis to the end"))
        lengths[2 * ndim - 3 - axis] = across  # the other one of ndim - 1 and ndim - 2
    return tuple(lengths)


def grid_shape(shape: tuple[int, ...], lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Return the number of blocks along every axis, a last one that is not full included.

    One block of length 0 is the whole of an empty axis (one scale per tensor, also of an empty one).

    Example:
        >>> grid_shape((40, 72), (1, 16))
        (40, 5)
    """
    return tuple(-(-n // length) if length else 1 for n, length in zip(shape, lengths, strict=True))


def block_amax(
    magnitudes: npt.NDArray[np.float32], lengths: tuple[int, ...], *, finite: bool
) -> npt.NDArray[np.float32]:
    """Return the largest magnitude of every block, NaN (and with ``finite`` inf) skipped; 0 of nothing.

    Example:
        >>> block_amax(np.float32([1, 2, np.nan, 4, 5]), (2,), finite=False).tolist()
        [2.0, 4.0, 5.0]
    """
    skip = ~np.isfinite(magnitudes) if finite else np.isnan(magnitudes)
    blocks = split(np.where(skip, np.float32(0), magnitudes), lengths)
    return np.asarray(blocks.max(axis=_inner_axes(lengths), initial=0), np.float32)


def block_any(flags: npt.NDArray[np.bool_], lengths: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """Return whether any flag of each block is set.

    Example:
        >>> block_any(np.array([False, True, False]), (2,)).tolist()
        [True, False]
    """
    return np.asarray(split(flags, lengths).any(axis=_inner_axes(lengths)))


def expand(per_block: np.ndarray, lengths: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Repeat one value per block for each of its elements, cut to ``shape``.

    Example:
        >>> expand(np.array([1, 2]), (2,), (3,)).tolist()
        [1, 1, 2]
    """
    for axis, length in enumerate(lengths):
        per_block = np.repeat(per_block, length, axis=axis)
    return per_block[tuple(slice(n) for n in shape)]


def split(array: np.ndarray, lengths: tuple[int, ...]) -> np.ndarray:
    """Return the array filled up with zeros, as ``[n0, L0, n1, L1, ...]``."""
    grid = grid_shape(array.shape, lengths)
    filled = np.zeros([g * length for g, length in zip(grid, lengths, strict=True)], array.dtype)
    filled[tuple(slice(n) for n in array.shape)] = array
    return filled.reshape([size for pair in zip(grid, lengths, strict=True) for size in pair])


def _inner_axes(lengths: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(range(1, 2 * len(lengths), 2))
