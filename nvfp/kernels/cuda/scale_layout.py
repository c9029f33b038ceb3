"""CUDA twin of `nvfp.kernels.scale_layout`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.dtypes.scale_layout import k_major128_shape, tiles128x4_size
from nvfp.kernels.cuda._launch import grid_for, launch
from nvfp.kernels.cuda._layout import element_strides
from nvfp.kernels.cuda._loader import Instance, kernel
from nvfp.kernels.cuda._tiles import THREADS, write_k_major, write_tiles
from nvfp.kernels.cuda._xp import cp

UINT8, FLOAT32 = np.dtype(np.uint8), np.dtype(np.float32)


def scale_layout(scale: Any, layout: str, *, inverse_shape: tuple[int, int] | None, out: Any | None) -> Any:
    """See `nvfp.kernels.scale_layout.scale_layout`."""
    if layout == "plain":
        assert inverse_shape is not None, "the contract checked it"
        rows, columns = inverse_shape
        matrix = cp.empty(inverse_shape, UINT8) if out is None else out
        args = (scale, matrix, rows, columns, *element_strides(matrix), *element_strides(scale))
        launch(kernel("scale_layout.cu", "scale_from_tiles"), grid_for(rows * columns, THREADS), (THREADS,), args)
        return matrix
    rows, columns = scale.shape
    if layout == "k_major128":
        filled = cp.empty(k_major128_shape((rows, columns)), FLOAT32) if out is None else out
        write_k_major(scale, filled)
        return filled
    tiles = cp.empty((tiles128x4_size((rows, columns)),), UINT8) if out is None else out
    write_tiles(scale, tiles, rows)
    return tiles


def instances() -> list[Instance]:
    """The kernels that CI compiles."""
    names = ("scale_to_tiles", "scale_from_tiles")
    return [Instance("scale_layout.cu", name) for name in names]
