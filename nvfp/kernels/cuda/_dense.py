"""What launchers of dense kernels share."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from nvfp.kernels.cuda._memory import aligned

FLOAT32 = np.dtype(np.float32)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INT32 = np.dtype(np.int32)
INT64 = np.dtype(np.int64)


def row_vector(columns: int, itemsize: int, *arrays: Any) -> int:
    """Return how many elements of ``itemsize`` a thread moves at once in arrays with rows of ``columns``.

    16 bytes' worth if every row of every array starts at a multiple of 16 bytes, else 1.

    Args:
        columns: length of a row.
        itemsize: bytes of an element of the narrowest array.
        arrays: CuPy arrays, contiguous.
    """
    per_vector = 16 // itemsize
    return per_vector if columns % per_vector == 0 and all(map(aligned, arrays)) else 1


def by_value(table: np.ndarray) -> np.ndarray:
    """Return a one-element structured array as the untyped bytes that CuPy passes to a kernel by value."""
    return table.view(np.dtype((np.void, table.itemsize)))
