"""Philox4x32-10 in Numba: the words behind every random draw, dropout and stochastic rounding on the CPU.

``include/philox.cuh`` is the same on CUDA.
"""

from __future__ import annotations

import numpy as np

from nvfp.kernels.cpu._njit import inline, njit

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
Words = tuple[np.uint32, np.uint32, np.uint32, np.uint32]


@inline
def philox(c0: np.uint32, c1: np.uint32, c2: np.uint32, c3: np.uint32, k0: np.uint32, k1: np.uint32) -> Words:
    """The four words at counter ``(c0, c1, c2, c3)`` under key ``(k0, k1)`` (inside kernels)."""
    for _ in range(10):
        p0, p1 = _M0 * np.uint64(c0), _M1 * np.uint64(c2)
        c0, c1, c2, c3 = (
            np.uint32(p1 >> _HALF) ^ c1 ^ k0,
            np.uint32(p1 & _LOW),
            np.uint32(p0 >> _HALF) ^ c3 ^ k1,
            np.uint32(p0 & _LOW),
        )
        k0, k1 = np.uint32(k0 + _W0), np.uint32(k1 + _W1)
    return c0, c1, c2, c3


@njit
def fill_words(out: np.ndarray, first: np.uint64, stream: np.uint32, step: np.uint32, key: np.uint64) -> None:
    """Write the words of groups ``first``, ``first + 1``, ... into ``out`` [groups, 4] (uint32)."""
    k0, k1 = np.uint32(key & _LOW), np.uint32(key >> _HALF)
    for i in range(out.shape[0]):
        group = first + np.uint64(i)
        words = philox(np.uint32(group & _LOW), np.uint32(group >> _HALF), stream, step, k0, k1)
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = words
