"""Two 4-bit codes per byte: logical arrays of nibbles to stored bytes and back.

Item ``2i`` of the packed axis lies in the low nibble of byte ``i``, item ``2i + 1`` in the high one; an odd
length ends with a high nibble of 0. Wider codes are stored one per byte and never packed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nvfp.errors import ArgumentError, DTypeError, ShapeError, message


def packed_length(length: int) -> int:
    """Return how many bytes hold ``length`` 4-bit codes: ``ceil(length / 2)``."""
    return -(-length // 2)


def pack(codes: npt.ArrayLike, axis: int = -1) -> npt.NDArray[np.uint8]:
    """Pack 4-bit codes two per byte along ``axis``, low nibble first.

    Args:
        codes: uint8 codes 0..15, shape ``[..., N, ...]``.
        axis: the axis to halve.

    Returns:
        uint8 bytes, shape ``[..., ceil(N / 2), ...]``, C-contiguous.

    Raises:
        DTypeError: codes that are not uint8.
        ArgumentError: a code above 15.
        ShapeError: no such axis.

    Example:
        >>> import numpy as np
        >>> [hex(b) for b in pack(np.uint8([7, 15, 6]))]
        ['0xf7', '0x6']
    """
    nibbles = _uint8(codes, "pack")
    if nibbles.size and nibbles.max() > 15:
        raise ArgumentError(message("pack", "4-bit codes 0..15", int(nibbles.max()), "pass unpacked 4-bit codes"))
    last = np.moveaxis(nibbles, _axis(axis, nibbles.ndim, "pack"), -1)
    bytes_ = np.zeros((*last.shape[:-1], packed_length(last.shape[-1])), np.uint8)
    bytes_ |= last[..., 0::2]
    bytes_[..., : last.shape[-1] // 2] |= last[..., 1::2] << 4
    return np.ascontiguousarray(np.moveaxis(bytes_, -1, axis))


def unpack(packed: npt.ArrayLike, length: int, axis: int = -1) -> npt.NDArray[np.uint8]:
    """Unpack bytes into ``length`` 4-bit codes along ``axis``: the inverse of `pack`.

    Args:
        packed: uint8 bytes, shape ``[..., ceil(length / 2), ...]``.
        length: number of codes along ``axis``.
        axis: the packed axis.

    Returns:
        uint8 codes 0..15, shape ``[..., length, ...]``, C-contiguous.

    Raises:
        DTypeError: bytes that are not uint8.
        ShapeError: no such axis, or a byte count other than ``ceil(length / 2)``.

    Example:
        >>> import numpy as np
        >>> unpack(np.uint8([0xF7, 0x06]), 3).tolist()
        [7, 15, 6]
    """
    bytes_ = _uint8(packed, "unpack")
    last = np.moveaxis(bytes_, _axis(axis, bytes_.ndim, "unpack"), -1)
    if last.shape[-1] != packed_length(length):
        expected = f"{packed_length(length)} bytes for {length} codes on axis {axis}"
        raise ShapeError(message("unpack", expected, last.shape[-1], "pass the logical length of the packed axis"))
    codes = np.empty((*last.shape[:-1], length), np.uint8)
    codes[..., 0::2] = last & 15
    codes[..., 1::2] = last[..., : length // 2] >> 4
    return np.ascontiguousarray(np.moveaxis(codes, -1, axis))


def _uint8(array: npt.ArrayLike, op: str) -> npt.NDArray[np.uint8]:
    found = np.asarray(array)
    if found.dtype != np.uint8:
        raise DTypeError(message(op, "a uint8 array", found.dtype, "pass codes.view(numpy.uint8)"))
    return found


def _axis(axis: int, ndim: int, op: str) -> int:
    if not -ndim <= axis < ndim:
        raise ShapeError(message(op, f"an axis of a {ndim}-d array", axis, f"pass {-ndim} <= axis < {ndim}"))
    return axis % ndim
