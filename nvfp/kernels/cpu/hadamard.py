"""CPU twin of `kernels.hadamard`: panels with the rotated axis last, groups of 16 in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.dtypes.rotation import BFLOAT16, GROUP, SIGNS, rotated_length
from nvfp.kernels.cpu._amax import amax_bits
from nvfp.kernels.cpu._blocks import SKIP_NONFINITE
from nvfp.kernels.cpu._njit import njit
from nvfp.kernels.cpu._strided import Panel, Rows, fold, for_panels, panels, rows_of

_FLOAT32 = np.dtype(np.float32)
_SIGNS = np.asarray(SIGNS, np.float32)
_QUARTER, _ZERO = np.float32(0.25), np.float32(0)


@njit
def _rotate(x: Any, at: int, pitch: int, rows: int, columns: int, signs: Any, before: bool, y: Any, wide: int) -> None:
    """Write rows of ``wide`` rotated values; the stages run over whole rows, so that LLVM vectorizes them."""
    groups = wide // 16
    for r in range(rows):
        s, t = x[at + r * pitch : at + r * pitch + columns], y[r * wide : r * wide + wide]
        for i in range(columns):
            t[i] = s[i]
        for i in range(columns, wide):
            t[i] = _ZERO
        for g in range(groups):
            v = t[16 * g : 16 * g + 16]
            if before:
                for i in range(16):
                    v[i] *= signs[i]
            for i in range(0, 16, 2):
                a, b = v[i], v[i + 1]
                v[i], v[i + 1] = a + b, a - b
            for i in range(0, 16, 4):
                for k in range(2):
                    a, b = v[i + k], v[i + k + 2]
                    v[i + k], v[i + k + 2] = a + b, a - b
            for i in range(0, 16, 8):
                for k in range(4):
                    a, b = v[i + k], v[i + k + 4]
                    v[i + k], v[i + k + 4] = a + b, a - b
            for k in range(8):
                a, b = v[k], v[k + 8]
                v[k], v[k + 8] = (a + b) * _QUARTER, (a - b) * _QUARTER
            if not before:
                for i in range(16):
                    v[i] *= signs[i]


def hadamard(x: Any, *, axis: int, inverse: bool, amax_out: Any | None, out: Any | None) -> Any:
    """See `nvfp.kernels.hadamard.hadamard`."""
    wide = rotated_length(x.shape[axis])
    y = np.empty((*x.shape[:axis], wide, *x.shape[axis + 1 :]), BFLOAT16) if out is None else out
    if y.size == 0:
        return y
    folded = fold(np.moveaxis(y, axis, -1))
    if folded is None:
        np.copyto(y, hadamard(x, axis=axis, inverse=inverse, amax_out=amax_out, out=None))
        return y
    source, target = rows_of(x, axis), Rows(folded)
    stripes = source.pitch is None or target.pitch is None

    def work(panel: Panel, values: np.ndarray, rotated: np.ndarray) -> None:
        row, height, column, length = panel
        inside = min(length, source.n - column)
        place = source.load(Panel(row, height, column, inside), values)
        _rotate(*place, height, inside, _SIGNS, not inverse, rotated, length)
        target.store(panel, rotated)

    rows = source.d1 * source.d2
    for_panels(work, panels(1, rows, wide, along=GROUP, stripes=stripes), _FLOAT32, _FLOAT32)
    if amax_out is not None:
        np.fmax(amax_out, amax_bits(y, SKIP_NONFINITE).view(np.float32), out=amax_out)
    return y
