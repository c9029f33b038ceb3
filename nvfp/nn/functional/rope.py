"""Rotary position embedding as a primitive."""

from __future__ import annotations

from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import array
from nvfp.autograd.tape import record
from nvfp.errors import ShapeError, message
from nvfp.kernels import rope as kernel


def rope(x: Array, freqs: Array, *, interleaved: bool = False) -> Array:
    """Rotate pairs of the first R elements of every head by the angles of their position.

    Args:
        x: [B, L, H, D], float32/bfloat16/float16, any strides; a quantized one counts as float32.
        freqs: float32 angles [L', R] or, as TE makes them, [L', 1, 1, R]; L' >= L, R even and at most D. It gets
            no gradient.
        interleaved: pairs are (2i, 2i + 1) instead of (i, i + R/2).

    Returns:
        Shape and dtype of ``x``; elements R to D - 1 as they were.

    Raises:
        DTypeError: another dtype of x or freqs, or no array.
        ShapeError: shapes that do not fit.

    Numerics: float32, one rounding; see `nvfp.kernels.rope`. The gradient is the transposed rotation.

    Example:
        >>> import nvfp as nf
        >>> x = nf.asarray([[[[1.0, 0.0]]]], device="cpu")
        >>> rope(x, nf.asarray([[0.0, 0.0]], device="cpu")).tolist()
        [[[[1.0, 0.0]]]]
    """
    x, freqs = array("rope", x), array("rope", freqs)
    if freqs.ndim == 4 and freqs.shape[1:3] == (1, 1):
        angles = freqs.raw[:, 0, 0]
    elif freqs.ndim == 2:
        angles = freqs.raw
    else:
        raise ShapeError(message("rope", "freqs [L', R] or [L', 1, 1, R]", freqs.shape, "drop the other axes"))
    y = kernel.rope(x.raw, angles, interleaved=interleaved)
    return wrap(y, node=record("rope", (x,), _vjp, saved=(freqs, angles, interleaved)))


def _vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    _, angles, interleaved = saved  # freqs is saved for the check of its version
    return (wrap(kernel.rope(dy.raw, angles, interleaved=interleaved, inverse=True)),)
