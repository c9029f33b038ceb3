"""The scale layouts that tensor cores read.

``tiles128x4``, for 8-bit scales: tiles of 128 rows x 4 columns, 512 bytes each. With ``T = ceil(columns / 4)`` tiles
per tile row, the byte of scale (r, c) lies at

    ((r // 128) * T + c // 4) * 512 + (r % 32) * 16 + ((r % 128) // 32) * 4 + c % 4

``k_major128``, for float32 scales of 128-value blocks: [rows, blocks] is stored [blocks, rows rounded up to 4], so that
a GEMM reads one step of K at a time; 128 x 128 blocks [block rows, blocks] are stored [block rows, blocks rounded up
to 4], the layout of the transposed matrix.

Padding is zero and is never read as data. Source: NVIDIA cuBLAS, block-scaling factors layouts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nvfp.errors import DTypeError, ShapeError, message

TILE_ROWS, TILE_COLUMNS = 128, 4
TILE = TILE_ROWS * TILE_COLUMNS


def tile_offset(r: int, c: int, columns: int) -> int:
    """Return the offset of scale (r, c) of a matrix with ``columns`` columns.

    Example:
        >>> [tile_offset(*rc, 8) for rc in ((0, 0), (37, 2), (127, 3), (200, 5), (128, 0))]
        [0, 86, 511, 1673, 1024]
    """
    tile = (r // TILE_ROWS) * -(-columns // TILE_COLUMNS) + c // TILE_COLUMNS
    return tile * TILE + (r % 32) * 16 + (r % TILE_ROWS) // 32 * 4 + c % TILE_COLUMNS


def tiles128x4_size(shape: tuple[int, int]) -> int:
    """Return the bytes of the buffer for a [rows, columns] scale matrix: 512 per tile."""
    return -(-shape[0] // TILE_ROWS) * -(-shape[1] // TILE_COLUMNS) * TILE


def to_tiles128x4(scale: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    """Return the tiled buffer of a scale matrix.

    Args:
        scale: uint8 scale codes, shape ``[rows, columns]``.

    Returns:
        Flat uint8 buffer of `tiles128x4_size` bytes, zero outside the matrix.

    Raises:
        DTypeError: scales that are not uint8.
        ShapeError: scales that are not a matrix.

    Example:
        >>> import numpy as np
        >>> tiles = to_tiles128x4(np.arange(6, dtype=np.uint8).reshape(2, 3))
        >>> tiles.size, tiles[:4].tolist(), tiles[16:20].tolist()
        (512, [0, 1, 2, 0], [3, 4, 5, 0])
    """
    matrix = np.asarray(scale)
    if matrix.dtype != np.uint8:
        raise DTypeError(message("scale_layout", "uint8 scale codes", matrix.dtype, "use an 8-bit scale format"))
    if matrix.ndim != 2:
        raise ShapeError(message("scale_layout", "a [rows, columns] matrix", matrix.shape, "reshape to two axes"))
    rows, columns = (-(-n // t) for n, t in zip(matrix.shape, (TILE_ROWS, TILE_COLUMNS), strict=True))
    filled = np.zeros((rows * TILE_ROWS, columns * TILE_COLUMNS), np.uint8)
    filled[: matrix.shape[0], : matrix.shape[1]] = matrix
    return filled.reshape(rows, 4, 32, columns, 4).transpose(0, 3, 2, 1, 4).reshape(-1)


def from_tiles128x4(flat: npt.ArrayLike, shape: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Return the [rows, columns] scale matrix of a tiled buffer: the inverse of `to_tiles128x4`.

    Args:
        flat: uint8 buffer of `tiles128x4_size` bytes.
        shape: (rows, columns) of the matrix.

    Raises:
        ShapeError: a buffer of another size.

    Example:
        >>> import numpy as np
        >>> scale = np.arange(6, dtype=np.uint8).reshape(2, 3)
        >>> from_tiles128x4(to_tiles128x4(scale), (2, 3)).tolist()
        [[0, 1, 2], [3, 4, 5]]
    """
    tiles = np.asarray(flat, np.uint8).reshape(-1)
    if tiles.size != tiles128x4_size(shape):
        expected = f"{tiles128x4_size(shape)} bytes for scales of shape {shape}"
        raise ShapeError(message("scale_layout", expected, tiles.size, "pass the shape of the scale matrix"))
    rows, columns = (-(-n // t) for n, t in zip(shape, (TILE_ROWS, TILE_COLUMNS), strict=True))
    filled = tiles.reshape(rows, columns, 32, 4, 4).transpose(0, 3, 2, 1, 4)
    matrix = filled.reshape(rows * TILE_ROWS, columns * TILE_COLUMNS)
    return np.ascontiguousarray(matrix[: shape[0], : shape[1]])


def k_major128_shape(shape: tuple[int, ...], *, square: bool = False) -> tuple[int, ...]:
    """Return the shape that plain scales of ``shape`` have in layout ``k_major128``.

    Example:
        >>> k_major128_shape((10, 3)), k_major128_shape((10, 3), square=True)
        ((3, 12), (10, 4))
    """
    rows, blocks = shape
    return (rows, -(-blocks // 4) * 4) if square else (blocks, -(-rows // 4) * 4)


def to_k_major128(scale: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return a [rows, columns] scale matrix as [columns, rows rounded up to 4], zeros beside it.

    Example:
        >>> to_k_major128([[1.0, 2.0], [3.0, 4.0]]).tolist()
        [[1.0, 3.0, 0.0, 0.0], [2.0, 4.0, 0.0, 0.0]]
    """
    matrix = np.asarray(scale, np.float32)
    filled = np.zeros(k_major128_shape(matrix.shape), np.float32)
    filled[:, : matrix.shape[0]] = matrix.T
    return filled


def from_k_major128(scale: Any, rows: int) -> Any:
    """Return the [rows, columns] matrix of `to_k_major128` as a view of ``scale`` (a NumPy or CuPy array).

    Example:
        >>> from_k_major128(to_k_major128([[1.0, 2.0], [3.0, 4.0]]), 2).tolist()
        [[1.0, 2.0], [3.0, 4.0]]
    """
    return scale[:, :rows].T
