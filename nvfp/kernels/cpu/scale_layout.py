"""CPU twin of `kernels.scale_layout`: NumPy's strided copies, as scales are few."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.dtypes.scale_layout import from_tiles128x4, to_k_major128, to_tiles128x4


def scale_layout(scale: Any, layout: str, *, inverse_shape: tuple[int, int] | None, out: Any | None) -> Any:
    """See `nvfp.kernels.scale_layout.scale_layout`."""
    moved: np.ndarray
    if layout == "k_major128":
        moved = to_k_major128(scale)
    else:
        moved = to_tiles128x4(scale) if inverse_shape is None else from_tiles128x4(scale, inverse_shape)
    if out is None:
        return moved
    np.copyto(out, moved)
    return out
