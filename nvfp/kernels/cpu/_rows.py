"""Maximum and sums of float32 rows inside CPU kernels, written so that LLVM vectorizes them."""

from __future__ import annotations

import numpy as np

from nvfp.kernels.cpu._njit import bits_float, float_bits, inline, njit


@inline
def _ordered(x: np.float32) -> np.int32:
    """An integer that is ordered as the float is (NaN above inf), and its own inverse."""
    b = np.int32(float_bits(x))
    return np.int32(b ^ ((b >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@inline
def row_max(row: np.ndarray) -> np.float32:
    """The largest value of a row: NaN (without a sign) above inf; -inf or a negative NaN if there is nothing else."""
    top = np.int32(-2147483648)
    for v in range(row.size):  # integer maxima vectorize, float ones do not
        key = _ordered(row[v])
        top = key if key > top else top
    x: np.float32 = bits_float(np.uint32(top ^ ((top >> np.int32(31)) & np.int32(0x7FFFFFFF))))
    return x


@inline
def row_sum(x: np.ndarray) -> float:
    """The sum of a row in float64, in 8 sums that vectorize."""
    whole = x.size // 8 * 8
    a = b = c = d = e = f = g = h = 0.0
    for i in range(0, whole, 8):
        a += x[i]
        b += x[i + 1]
        c += x[i + 2]
        d += x[i + 3]
        e += x[i + 4]
        f += x[i + 5]
        g += x[i + 6]
        h += x[i + 7]
    for i in range(whole, x.size):
        a += x[i]
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@inline
def row_dot(x: np.ndarray, y: np.ndarray) -> float:
    """The sum of products of two rows, likewise."""
    whole = x.size // 8 * 8
    a = b = c = d = e = f = g = h = 0.0
    for i in range(0, whole, 8):
        a += float(x[i]) * float(y[i])
        b += float(x[i + 1]) * float(y[i + 1])
        c += float(x[i + 2]) * float(y[i + 2])
        d += float(x[i + 3]) * float(y[i + 3])
        e += float(x[i + 4]) * float(y[i + 4])
        f += float(x[i + 5]) * float(y[i + 5])
        g += float(x[i + 6]) * float(y[i + 6])
        h += float(x[i + 7]) * float(y[i + 7])
    for i in range(whole, x.size):
        a += float(x[i]) * float(y[i])
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@njit
def add_rows(x: np.ndarray, total: np.ndarray) -> None:
    """Add rows x [M, N] to a row, from the first to the last."""
    for m in range(x.shape[0]):
        row = x[m]
        for n in range(total.size):
            total[n] += row[n]
