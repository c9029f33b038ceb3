"""The exact scale layout: one scale at a time by the formula."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nvfp.dtypes.scale_layout import tile_offset, tiles128x4_size


def scale_layout(
    scale: npt.ArrayLike, layout: str, *, inverse_shape: tuple[int, int] | None = None
) -> npt.NDArray[np.uint8] | npt.NDArray[np.float32]:
    """The bytes that `kernels.scale_layout.scale_layout` must give."""
    if layout == "k_major128":
        rows, columns = np.shape(scale)
        laid = np.zeros((columns, -(-rows // 4) * 4), np.float32)
        for r, c in np.ndindex(rows, columns):
            laid[c, r] = np.asarray(scale)[r, c]
        return laid
    source = np.asarray(scale, np.uint8)
    if layout == "plain":
        assert inverse_shape is not None
        matrix = np.zeros(inverse_shape, np.uint8)
        for r, c in np.ndindex(matrix.shape):
            matrix[r, c] = source[tile_offset(r, c, inverse_shape[1])]
        return matrix
    rows, columns = source.shape
    flat = np.zeros(tiles128x4_size((rows, columns)), np.uint8)
    for r, c in np.ndindex(source.shape):
        flat[tile_offset(r, c, columns)] = source[r, c]
    return flat
