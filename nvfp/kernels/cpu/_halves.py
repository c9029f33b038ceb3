"""Contiguous bfloat16 and float16 as float32 and back, vectorized (NumPy's own loops take 2 to 6 times as long)."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from nvfp.kernels.cpu._encode import bfloat_float, float_bfloat, float_half, half_float
from nvfp.kernels.cpu._njit import njit

_FLOAT32 = np.dtype(np.float32)
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@njit
def _widen(x: np.ndarray, y: np.ndarray, half: bool) -> None:
    if half:
        for i in range(y.size):
            y[i] = half_float(x[i])
    else:
        for i in range(y.size):
            y[i] = bfloat_float(x[i])


@njit
def _narrow(x: np.ndarray, y: np.ndarray, half: bool) -> None:
    if half:
        for i in range(y.size):
            y[i] = float_half(x[i])
    else:
        for i in range(y.size):
            y[i] = float_bfloat(x[i])


def widen(x: np.ndarray) -> np.ndarray:
    """Return float32, bfloat16 or float16 ``x`` as contiguous, writeable float32 (itself if it is that); exact.

    Writeable, because Numba would compile each kernel again for read-only arrays.
    """
    x = np.require(x, requirements=("C", "W"))
    if x.dtype == _FLOAT32:
        return x
    y = np.empty(x.shape, np.float32)
    _widen(x.view(np.uint16).reshape(-1), y.reshape(-1), x.dtype != _BFLOAT16)
    return y


def narrow(values: np.ndarray, out: np.ndarray) -> None:
    """Round C-contiguous float32 ``values`` to nearest even into C-contiguous ``out`` of the same shape."""
    if out.dtype == _FLOAT32:
        out[...] = values
    else:
        _narrow(values.reshape(-1), out.view(np.uint16).reshape(-1), out.dtype != _BFLOAT16)
