"""`amax`: the largest magnitude of a tensor, as a device word."""

from __future__ import annotations

from typing import Any

from nvfp.kernels._check import check_float, check_word
from nvfp.kernels._dispatch import backend
from nvfp.kernels._prepared import prepared


@prepared
def amax(x: Any, *, finite: bool = False, out: Any | None = None) -> Any:
    """Return ``max |x|`` as a float32 word (an array of shape ``()``).

    Args:
        x: raw array of float32, bfloat16, float16 or float64; any shape and strides.
        finite: skip infinities too. This is the amax of formats whose non-finite blocks become NaN
            blocks (MX, NVFP4); per-tensor FP8 lets an infinity through.
        out: word that is replaced by ``max(out, amax)`` and returned: the open slot of an amax
            history. A NaN in it stays.

    Returns:
        The word; 0 for an empty array.

    Raises:
        DTypeError: ``x`` is not a float array, or ``out`` not a float32 word.

    Numerics:
        Exact. NaN elements are skipped. float64 input is first rounded to float32 with round-to-odd,
        as `quantize` does. CPU and CUDA give the same bits.

    Source:
        TE numerics B1, B2.

    Example:
        >>> import numpy as np
        >>> amax(np.array([1.0, -3.0, np.nan], np.float32))
        array(3., dtype=float32)
    """
    check_float("amax", x)
    if out is not None:
        check_word("amax", "out", out)
    return backend("amax", x, out).amax(x, finite=finite, out=out)
