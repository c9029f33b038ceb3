"""The largest magnitude of a tensor as float32 bits, in the ways that amax and quantize need it."""

from __future__ import annotations

import numpy as np

from nvfp.kernels.cpu._blocks import block_amax
from nvfp.kernels.cpu._strided import Panel, flattest, for_panels, large_panels, panels_of, rows_of

_FLOAT32, _UINT32 = np.dtype(np.float32), np.dtype(np.uint32)


def amax_bits(x: np.ndarray, limit: np.uint32) -> np.uint32:
    """Return the float32 bits of the largest magnitude whose bits do not exceed ``limit`` (0 of nothing)."""
    if x.size == 0:
        return np.uint32(0)
    source = rows_of(flattest(x), -1)
    todo = panels_of(source, size=large_panels(x.size))
    most = []

    def work(panel: Panel, scratch: np.ndarray, found: np.ndarray) -> None:
        values, at, pitch = source.load(panel, scratch)
        block_amax(values, at, pitch, panel.rows, panel.columns, panel.rows, panel.columns, limit, found)
        most.append(found[0])

    for_panels(work, todo, _FLOAT32, _UINT32)
    return np.uint32(max(most))
