"""Stochastic depth as a primitive: whole samples are dropped."""

from __future__ import annotations

from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.creation import ones
from nvfp.arrays.functions._common import array
from nvfp.autograd.tape import record
from nvfp.errors import ArgumentError, ShapeError, message
from nvfp.kernels._dense import check_computed
from nvfp.kernels.dropout import dropout
from nvfp.kernels.elementwise import elementwise
from nvfp.nn._dropout import Draw


def drop_path(x: Array, p: float, draw: Draw, *, axis: int = 0) -> Array:
    """Return ``x * s`` with one ``s`` per index of ``axis``: 0 with chance p, else 1 / (1 - p).

    Args:
        x: at least one axis, float32/bfloat16/float16; a quantized one counts as float32.
        p: chance of being dropped, 0 to 1.
        draw: which mask: ``state.draw(x.raw)`` of the module's `DropoutState`.
        axis: the axis of samples; counted from the end if negative.

    Returns:
        Shape and dtype of ``x``. The gradient has the same mask, and the outermost backward pass that runs
        through here advances the module's step at its end.

    Raises:
        DTypeError: another dtype, or no array.
        ShapeError: no such axis.
        ArgumentError: p out of range, or an axis that is no integer.

    Numerics: ``s`` is what `nvfp.kernels.dropout.dropout` makes of float32 ones, one element per sample; float32
        product, rounded once. A dropped sample is multiplied by 0: -0 where it is negative, NaN where it is
        infinite or NaN, as in Transformer Engine. The same bits on CPU and CUDA.

    Source:
        Huang et al.: Deep Networks with Stochastic Depth (2016), scaled in training.

    Example:
        >>> import nvfp as nf
        >>> from nvfp.nn._dropout import DropoutState
        >>> x = nf.ones((1000, 2), device="cpu")
        >>> y = drop_path(x, 0.5, DropoutState().draw(x.raw))
        >>> sorted(set(y.tolist()[k][0] for k in range(1000))), bool((y[:, 0] == y[:, 1]).all())
        ([0.0, 2.0], True)
    """
    x = array("drop_path", x)
    raw = x.raw
    check_computed("drop_path", "x", raw)
    along = check_axis("drop_path", axis, x.ndim)
    shape = tuple(n if i == along else 1 for i, n in enumerate(x.shape))
    base = ones(shape, device=x.device).raw
    scale, _ = dropout(base, p, key=draw.key, ordinal=draw.ordinal, step=draw.step)
    return wrap(_scaled(raw, scale), node=record("drop_path", (x,), _vjp, saved=(scale, draw)))


def check_axis(op: str, axis: int, ndim: int) -> int:
    """Return the axis, counted from the front; raise unless an array of ``ndim`` axes has it."""
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise ArgumentError(message(op, "axis as an integer", repr(axis), "pass the axis of samples"))
    if not -ndim <= axis < ndim:
        raise ShapeError(message(op, f"an array that has axis {axis}", f"{ndim} axes", "pass the axis of samples"))
    return axis % ndim


def _scaled(raw: Any, scale: Any) -> Any:
    return elementwise("multiply", raw, scale, dtype=raw.dtype)


def _vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    scale, draw = saved
    draw.finish()
    return (wrap(_scaled(dy.raw, scale)) if needs[0] else None,)
