"""Dropout (and the residual addition after it) as a primitive."""

from __future__ import annotations

from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import array
from nvfp.autograd.tape import record
from nvfp.kernels import dropout as kernel
from nvfp.nn._dropout import Draw


def dropout(x: Array, p: float, draw: Draw, *, residual: Array | None = None) -> Array:
    """Return ``keep ? x / (1 - p) : 0``, plus ``residual``.

    Args:
        x: any shape, float32/bfloat16/float16; a quantized one counts as float32.
        p: chance of being dropped, 0 to 1.
        draw: which mask: ``state.draw(x.raw)`` of the module's `DropoutState`.
        residual: Array of the shape and dtype of ``x`` that is added.

    Returns:
        Shape and dtype of ``x``. The gradient has the same mask, and the outermost backward pass that runs
        through here advances the module's step at its end.

    Raises:
        DTypeError: another dtype, a residual of another one, or no array.
        ShapeError: a residual of another shape.
        ArgumentError: p out of range.

    Numerics: float32 product with fl32(1 / (1 - p)), rounded; the residual is added in float32 and rounded.
        The same bits as dropout and an addition apart, and on CPU and CUDA.

    Example:
        >>> import nvfp as nf
        >>> from nvfp.nn._dropout import DropoutState
        >>> x = nf.ones((1000,), device="cpu")
        >>> y = dropout(x, 0.25, DropoutState().draw(x.raw))
        >>> sorted(set(y.tolist())) == [0.0, nf.asarray(4 / 3, dtype=nf.float32, device="cpu").item()]
        True
    """
    x = array("dropout", x)
    residual = None if residual is None else array("dropout", residual)
    place: dict[str, Any] = {"key": draw.key, "ordinal": draw.ordinal}
    y, used = kernel.dropout(x.raw, p, step=draw.step, residual=None if residual is None else residual.raw, **place)
    return wrap(y, node=record("dropout", (x, residual), _vjp, saved=(p, place, used, draw)))


def _vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    p, place, used, draw = saved
    draw.finish()
    dx = wrap(kernel.dropout_vjp(dy.raw, p, step=used, **place)) if needs[0] else None
    return dx, dy if needs[1] else None
