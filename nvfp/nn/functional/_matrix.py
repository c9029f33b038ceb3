"""Leading axes folded away: fused functions work on matrices, whatever the strides."""

from __future__ import annotations

import math
from typing import Any

from nvfp.kernels._dense import contiguous


def matrix(raw: Any) -> Any:
    """Return [..., K] as [M, K]; where strides ask for a copy, nvfp's kernel makes it (CuPy's is slow)."""
    return raw if raw.ndim == 2 else contiguous(raw).reshape((math.prod(raw.shape[:-1]), raw.shape[-1]))
