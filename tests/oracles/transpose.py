"""The exact transpose: NumPy's, and for packed 4-bit codes unpack, swap, pack."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nvfp.dtypes.packing import pack, unpack


def transpose(x: npt.ArrayLike, *, packed: bool = False, columns: int | None = None) -> np.ndarray:
    """The array that `kernels.transpose.transpose` must give."""
    array = np.asarray(x)
    if not packed:
        return np.ascontiguousarray(array.swapaxes(-1, -2))
    codes = unpack(array, 2 * array.shape[-1] if columns is None else columns)
    return pack(codes.swapaxes(-1, -2))
