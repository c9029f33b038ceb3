"""`rope`: rotary position embedding, forward and backward."""

from __future__ import annotations

from typing import Any

from nvfp.errors import DTypeError, ShapeError, message
from nvfp.kernels._check import FLOAT32, check_out
from nvfp.kernels._dense import check_computed, contiguous
from nvfp.kernels._dispatch import backend
from nvfp.kernels._prepared import prepared


@prepared
def rope(x: Any, freqs: Any, *, interleaved: bool = False, inverse: bool = False, out: Any | None = None) -> Any:
    """Rotate pairs of the first R elements of the last axis by the angles of their position.

    With ``c = cos(freqs[l])`` and ``s = sin(freqs[l])`` at position l, for each pair (i, j)::

        y_i = x_i c_i - x_j s_i        y_j = x_j c_j + x_i s_j

    The pairs are (i, i + R/2), or (2i, 2i + 1) if ``interleaved``; elements R to D - 1 pass through.
    ``inverse=True`` applies the transposed matrix, ``y_i = x_i c_i + x_j s_j``, ``y_j = x_j c_j - x_i s_i``: the
    gradient always, and the rotation back where both angles of a pair are equal (TE's tables repeat them).

    Args:
        x: raw array [B, L, H, D] of float32, bfloat16 or float16, any strides (a slice of a fused QKV buffer too).
        freqs: float32 [L', R] on the device of ``x``, L' >= L, R even and at most D: angles in radians.
        interleaved: which elements make a pair.
        inverse: transposed, for the gradient.
        out: array of the shape and dtype of ``x``, any strides; may be ``x``.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        DTypeError: another dtype of ``x`` or ``freqs``.
        ShapeError: shapes that do not fit.

    Numerics:
        Computed in float32, ``fma(x_i, c_i, -(x_j s_i))``, and rounded once. Sine and cosine are nvfp's own
        (three-part reduction by pi/2, polynomials): absolute error below 2**-23.7 for angles up to 2**17 and
        2**-21.5 up to 2**22; larger angles give NaN. CPU and CUDA give the same bits.

    Source:
        TE numerics B8; Su et al.: RoFormer (2021).

    Example:
        >>> import numpy as np
        >>> x = np.array([1.0, 0.0, 5.0], np.float32).reshape(1, 1, 1, 3)
        >>> rope(x, np.full((1, 2), np.pi / 6, np.float32)).ravel().round(4).tolist()
        [0.8659999966621399, 0.5, 5.0]
    """
    check_computed("rope", "x", x)
    if x.ndim != 4:
        raise ShapeError(message("rope", "x [B, L, H, D]", x.shape, "reshape it to four axes"))
    if freqs.dtype != FLOAT32:
        raise DTypeError(message("rope", "float32 freqs", freqs.dtype, "compute angles in float32"))
    if freqs.ndim != 2 or freqs.shape[0] < x.shape[1] or freqs.shape[1] > x.shape[3] or freqs.shape[1] % 2:
        expected = f"freqs [L', R] with L' >= {x.shape[1]} and R <= {x.shape[3]} even"
        raise ShapeError(message("rope", expected, freqs.shape, "make angles for every position"))
    check_out("rope", out, x.shape, x.dtype)
    twin = backend("rope", x, freqs, out)
    return twin.rope(x, contiguous(freqs), interleaved=bool(interleaved), inverse=bool(inverse), out=out)
