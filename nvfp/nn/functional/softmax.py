"""Softmax with scale, mask and causal limit as a primitive."""

from __future__ import annotations

from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import array
from nvfp.autograd.tape import Output, record
from nvfp.kernels import softmax as kernel


def softmax(x: Array, *, scale: float = 1.0, mask: Array | None = None, causal: str | None = None) -> Array:
    """Return the softmax of ``scale x`` over the last axis.

    Args:
        x: [..., R, C], float32/bfloat16/float16; a quantized one counts as float32.
        scale: multiplies x first.
        mask: bool, broadcastable to x; True hides.
        causal: None, ``"top_left"`` (row r sees the columns up to r) or ``"bottom_right"`` (up to ``r + C - R``).

    Returns:
        Shape and dtype of ``x``; a row that sees nothing is 0, and so is its gradient.

    Raises:
        DTypeError: x of another dtype, a mask that is not bool, or no array.
        ShapeError: a mask that does not broadcast, or a causal x of one axis.
        ArgumentError: another ``causal``, or a scale that float32 does not hold.

    Numerics: float32 throughout, maximum subtracted first, one rounding. The gradient is computed from the rounded
        result.

    Example:
        >>> import nvfp as nf
        >>> from nvfp.nn.functional.softmax import softmax
        >>> softmax(nf.zeros((2, 2), device="cpu"), causal="top_left").tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """
    x = array("softmax", x)
    hidden = None if mask is None else array("softmax", mask).raw
    raw, _ = kernel.softmax(x.raw, scale=scale, mask=hidden, causal=causal)
    y = wrap(raw)
    if x._node is not None:
        y._node = record("softmax", (x,), _vjp, saved=(Output(y), scale))
    return y


def _vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    y, scale = saved
    return (wrap(kernel.softmax_vjp(y.raw, dy.raw, scale=scale)),)
