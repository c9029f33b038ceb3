"""`activation` and `activation_vjp`: elementwise activation functions and their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nvfp.errors import ArgumentError, message
from nvfp.kernels._check import check_out
from nvfp.kernels._dense import check_computed, check_like, contiguous, deliver, plain_out
from nvfp.kernels._dispatch import backend


@dataclass(frozen=True)
class Kind:
    """One activation: its number in the CUDA sources and its formulas."""

    code: int
    formula: str
    gradient: str


# u = sqrt(2/pi) (x + 0.044715 x^3), s = sigmoid of the stated argument.
KINDS: dict[str, Kind] = {
    "gelu": Kind(0, "x s(2u)  [= x/2 (1 + tanh u)]", "s + x s (1 - s) 2 u'"),
    "relu": Kind(1, "max(x, 0)", "1 where x > 0, else 0"),
    "silu": Kind(2, "x s(x)", "s (1 + x (1 - s))"),
}


def activation(x: Any, kind: str = "gelu", *, out: Any | None = None) -> Any:
    """Return ``act(x)``, element by element.

    ``gelu``: ``x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`` (the tanh form); ``relu``: ``max(x, 0)``;
    ``silu``: ``x / (1 + exp(-x))``.

    Args:
        x: raw array of float32, bfloat16 or float16; any shape and strides.
        kind: a key of `KINDS`.
        out: array of the shape and dtype of ``x``, any strides; may be ``x`` itself.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        DTypeError: another dtype.
        ArgumentError: an unknown kind; the message lists the kinds.
        ShapeError: an ``out`` that does not fit.

    Numerics:
        Computed in float32 and rounded once. ``1 + tanh u`` is taken as ``2 sigmoid(2u)``, so small values
        for negative ``x`` keep their relative precision. NaN stays NaN; gelu and silu of -inf are NaN
        (-inf times 0), as in torch. CPU and CUDA run the same float32 operations and give the same bits.

    Source:
        TE numerics B8.

    Example:
        >>> import numpy as np
        >>> activation(np.array([-1.0, 0.0, 2.0], np.float32), "relu").tolist()
        [0.0, 0.0, 2.0]
    """
    _check("activation", x, kind)
    check_out("activation", out, x.shape, x.dtype)
    y = backend("activation", x, out).activation(contiguous(x), kind, out=plain_out(out))
    return deliver(y, out)


def activation_vjp(x: Any, dy: Any, kind: str = "gelu", *, out: Any | None = None) -> Any:
    """Return ``dx = act'(x) * dy``, element by element.

    Args:
        x: the input of `activation`.
        dy: gradient of its result, of the shape and dtype of ``x``; any strides.
        kind: a key of `KINDS`.
        out: array of the shape and dtype of ``x``, any strides; may be ``x`` or ``dy``.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        DTypeError: another dtype, or two that differ.
        ShapeError: shapes that differ, or an ``out`` that does not fit.
        ArgumentError: an unknown kind.

    Numerics:
        Computed in float32 and rounded once. The derivative is exactly 0 or 1 far from 0, also at -inf and
        +inf. relu has derivative 0 at 0 and passes no ``dy`` there, not even inf or NaN; a NaN ``x`` gives
        NaN. CPU and CUDA give the same bits.

    Source:
        TE numerics B8.

    Example:
        >>> import numpy as np
        >>> x = np.array([-1.0, 0.0, 2.0], np.float32)
        >>> activation_vjp(x, np.full(3, 5.0, np.float32), "relu").tolist()
        [0.0, 0.0, 5.0]
    """
    _check("activation_vjp", x, kind)
    check_like("activation_vjp", "dy", dy, x)
    check_out("activation_vjp", out, x.shape, x.dtype)
    twin = backend("activation", x, dy, out)
    return deliver(twin.activation_vjp(contiguous(x), contiguous(dy), kind, out=plain_out(out)), out)


def _check(op: str, x: Any, kind: str) -> None:
    check_computed(op, "x", x)
    if kind not in KINDS:
        raise ArgumentError(message(op, f"a kind out of {', '.join(KINDS)}", repr(kind), "choose one of these"))
