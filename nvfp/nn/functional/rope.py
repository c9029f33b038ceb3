"""Rotary position embedding as a primitive."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.convert import asarray
from nvfp.arrays.functions._common import array
from nvfp.arrays.functions.shape import reshape, swapaxes
from nvfp.autograd.tape import record
from nvfp.device import Device
from nvfp.errors import DTypeError, ShapeError, message
from nvfp.kernels import rope as kernel
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.embedding import embedding


def rope(x: Array, freqs: Array, *, interleaved: bool = False, start_positions: Array | None = None) -> Array:
    """Rotate pairs of the first R elements of every head by the angles of their position.

    Args:
        x: [B, L, H, D], float32/bfloat16/float16, any strides; a quantized one counts as float32.
        freqs: float32 angles [L', R] or, as TE makes them, [L', 1, 1, R]; L' >= L, R even and at most D. It gets
            no gradient.
        interleaved: pairs are (2i, 2i + 1) instead of (i, i + R/2).
        start_positions: integers [B], the position of each entry's first token; 0 unless given. A position behind L'
            raises on the CPU and gives NaN on CUDA.

    Returns:
        Shape and dtype of ``x``; elements R to D - 1 as they were.

    Raises:
        DTypeError: another dtype of x, freqs or start_positions, or no array.
        ShapeError: shapes that do not fit.
        BlockIndexError: (an IndexError) a position that has no angles, on the CPU.

    Numerics: float32, one rounding; see `nvfp.kernels.rope`. The gradient is the transposed rotation.

    Example:
        >>> import nvfp as nf
        >>> x = nf.asarray([[[[1.0, 0.0]]]], device="cpu")
        >>> rope(x, nf.asarray([[0.0, 0.0]], device="cpu")).tolist()
        [[[[1.0, 0.0]]]]
        >>> starts = nf.asarray([1], device="cpu")
        >>> freqs = nf.asarray([[0.0, 0.0], [3.14159, 3.14159]], device="cpu")
        >>> rope(x, freqs, start_positions=starts)[0, 0, 0, 0].item()
        -1.0
    """
    x, freqs = array("rope", x), array("rope", freqs)
    if freqs.ndim == 4 and freqs.shape[1:3] == (1, 1):
        angles = freqs.raw[:, 0, 0]
    elif freqs.ndim == 2:
        angles = freqs.raw
    else:
        raise ShapeError(message("rope", "freqs [L', R] or [L', 1, 1, R]", freqs.shape, "drop the other axes"))
    if start_positions is not None:
        return rope_of_rows(x, _rows(x, angles, array("rope", start_positions)), interleaved=interleaved)
    y = kernel.rope(x.raw, angles, interleaved=interleaved)
    return wrap(y, node=record("rope", (x,), _vjp, saved=(freqs, angles, interleaved)))


def rope_of_rows(x: Array, angles: Array, *, interleaved: bool = False) -> Array:
    """Rotate each token by angles of its own: `rope` for tokens at any positions.

    Args:
        x: [B, L, H, D].
        angles: float32 [B L, R], in the order of the tokens.
        interleaved: as in `rope`.

    Returns:
        Shape and dtype of ``x``.

    Raises:
        DTypeError, ShapeError: as `rope`.

    Example:
        >>> import nvfp as nf
        >>> rope_of_rows(nf.ones((2, 1, 1, 2), device="cpu"), nf.zeros((2, 2), device="cpu")).shape
        (2, 1, 1, 2)
    """
    if x.shape[1] == 1:  # a view will do
        return swapaxes(rope(swapaxes(x, 0, 1), angles, interleaved=interleaved), 0, 1)
    flat = reshape(x, (1, x.shape[0] * x.shape[1], *x.shape[2:]))
    return reshape(rope(flat, angles, interleaved=interleaved), x.shape)


def _rows(x: Array, angles: Any, starts: Array) -> Array:
    """The angles of every token, [B L, R]."""
    if x.ndim != 4 or starts.shape != x.shape[:1]:
        got = f"{starts.shape} for x {x.shape}"
        raise ShapeError(message("rope", "start_positions [B] for x [B, L, H, D]", got, "pass one for each entry"))
    if starts.dtype.kind not in "iu":
        raise DTypeError(message("rope", "integer start_positions", starts.dtype, "cast them"))
    places = elementwise("add", starts.raw.reshape(-1, 1), _steps(x.shape[1], x.device))
    return wrap(embedding(angles, places.reshape(-1)))


@lru_cache(maxsize=16)
def _steps(length: int, device: Device) -> Any:
    """0 to L - 1, kept: a second call copies nothing."""
    return asarray(np.arange(length, dtype=np.int64).reshape(1, length), device=device).raw


def _vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    _, angles, interleaved = saved  # freqs is saved for the check of its version
    return (wrap(kernel.rope(dy.raw, angles, interleaved=interleaved, inverse=True)),)
