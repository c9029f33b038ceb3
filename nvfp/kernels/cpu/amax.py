"""CPU twin of `kernels.amax`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.cpu._amax import amax_bits
from nvfp.kernels.cpu._blocks import SKIP_NAN, SKIP_NONFINITE


def amax(x: Any, *, finite: bool, out: Any | None) -> Any:
    """See `nvfp.kernels.amax.amax`."""
    bits = amax_bits(x, SKIP_NONFINITE if finite else SKIP_NAN)
    found = np.array(bits, np.uint32).view(np.float32)
    return found if out is None else np.fmax(out, found, out=out)  # a NaN in the state does not stay there
