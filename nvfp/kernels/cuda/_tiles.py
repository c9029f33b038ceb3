"""Block scales into the tiled layout, shared by `scale_layout` and `quantize`."""

from __future__ import annotations

from typing import Any

from nvfp.kernels.cuda._launch import grid_for, launch
from nvfp.kernels.cuda._layout import element_strides
from nvfp.kernels.cuda._loader import kernel

THREADS = 256


def write_tiles(scale: Any, tiles: Any, rows: int, *, repeat: int = 1) -> None:
    """Write the matrix ``scale`` into the whole flat buffer ``tiles``.

    Args:
        scale: uint8 [ceil(rows / repeat), columns], any strides.
        tiles: uint8 buffer of the tiled layout of [rows, columns].
        rows: rows of the layout.
        repeat: how many of them share a row of ``scale``.
    """
    n: int = tiles.size
    strides = (*element_strides(scale), repeat, *element_strides(tiles))
    args = (scale, tiles, rows, scale.shape[1], *strides, n)
    launch(kernel("scale_layout.cu", "scale_to_tiles"), grid_for(n, THREADS), (THREADS,), args)
