"""Block scales into the layouts of tensor cores, shared by `scale_layout`, `quantize` and `gemm`."""

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


def write_k_major(scale: Any, out: Any) -> None:
    """Write the matrix ``scale`` transposed into ``out``, zeros beside it.

    Args:
        scale: float32 [rows, columns], any strides.
        out: float32 [columns, at least rows], any strides.
    """
    columns, length = out.shape
    args = (scale, out, scale.shape[0], columns, length, *element_strides(scale), *element_strides(out))
    launch(kernel("scale_layout.cu", "scale_to_k_major"), grid_for(columns * length, THREADS), (THREADS,), args)
