"""`activation` and `activation_vjp`: activation functions, plain and gated, and their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.kernels._check import check_out
from nvfp.kernels._dense import check_computed, contiguous, deliver, plain_out
from nvfp.kernels._dispatch import backend
from nvfp.kernels._prepared import prepared, understood


@dataclass(frozen=True)
class Kind:
    """One activation: the number of its function in the CUDA sources, its formulas, and whether it gates.

    A gated kind reads pairs: ``y = act(a) b`` with a and b the first and the second half of the last axis.
    """

    code: int
    formula: str
    gradient: str
    gated: bool = False


# u = sqrt(2/pi) (x + 0.044715 x^3), s = sigmoid of the stated argument, z = 1.702 x.
KINDS: dict[str, Kind] = {
    "gelu": Kind(0, "x s(2u)  [= x/2 (1 + tanh u)]", "s + x s (1 - s) 2 u'"),
    "relu": Kind(1, "max(x, 0)", "1 where x > 0, else 0"),
    "silu": Kind(2, "x s(x)", "s (1 + x (1 - s))"),
    "qgelu": Kind(3, "x s(z)", "s (1 + z (1 - s))"),
    "srelu": Kind(4, "max(x, 0)^2", "2 max(x, 0)"),
    "glu": Kind(5, "s(a) b", "s (1 - s) b; s", gated=True),
    "geglu": Kind(0, "gelu(a) b", "gelu'(a) b; gelu(a)", gated=True),
    "qgeglu": Kind(3, "qgelu(a) b", "qgelu'(a) b; qgelu(a)", gated=True),
    "reglu": Kind(1, "relu(a) b", "relu'(a) b; relu(a)", gated=True),
    "sreglu": Kind(4, "srelu(a) b", "srelu'(a) b; srelu(a)", gated=True),
    "swiglu": Kind(2, "silu(a) b", "silu'(a) b; silu(a)", gated=True),
    # c = min(a, limit), z = alpha c, d = min(max(b, -limit), limit) + offset; derivatives are 0 where something is cut.
    "clamped_swiglu": Kind(6, "c s(z) d", "s (1 + z (1 - s)) d; c s", gated=True),
}
_LARGEST = 3.4028234663852886e38  # of float32


class Clamp(NamedTuple):
    """The numbers of ``clamped_swiglu``, by Transformer Engine's names and defaults (those of gpt-oss).

    Attributes:
        limit: both halves are cut there: the first one above, the second one on both sides.
        alpha: factor inside the sigmoid.
        glu_linear_offset: added to the second half.
    """

    limit: float = 7.0
    alpha: float = 1.702
    glu_linear_offset: float = 1.0


CLAMP = Clamp()
understood(Clamp, tuple)


@prepared
def activation(x: Any, kind: str = "gelu", *, params: Clamp | None = None, out: Any | None = None) -> Any:
    """Return ``act(x)``; a gated kind returns ``act(a) b``, a and b the halves of the last axis.

    ``gelu``: ``x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`` (the tanh form); ``qgelu``: ``x sigmoid(1.702 x)``;
    ``relu``: ``max(x, 0)``; ``srelu``: ``max(x, 0)^2``; ``silu``: ``x sigmoid(x)``. Gated: ``geglu``, ``qgeglu``,
    ``reglu``, ``sreglu`` and ``swiglu`` (of silu) with these, ``glu`` with ``sigmoid``; ``clamped_swiglu``:
    ``c sigmoid(alpha c) (min(max(b, -limit), limit) + offset)`` with ``c = min(a, limit)``.

    Args:
        x: raw array of float32, bfloat16 or float16; any shape and strides. For a gated kind [..., 2N].
        kind: a key of `KINDS`.
        params: of ``clamped_swiglu``; `CLAMP` unless given.
        out: array of the shape and dtype of the result, any strides; may be ``x`` itself, for a gated kind it
            shares no memory with ``x``.

    Returns:
        An array of the shape and dtype of ``x``; for a gated kind [..., N].

    Raises:
        DTypeError: another dtype.
        ArgumentError: an unknown kind (the message lists the kinds), or ``params`` that are not its own.
        ShapeError: an odd last axis or none for a gated kind, or an ``out`` that does not fit.

    Numerics:
        Computed in float32 and rounded once. ``1 + tanh u`` is taken as ``2 sigmoid(2u)``, so small values
        for negative ``x`` keep their relative precision. NaN stays NaN; gelu, qgelu and silu of -inf are NaN
        (-inf times 0), as in torch. CPU and CUDA run the same float32 operations and give the same bits.

    Source:
        TE numerics B8. (torch.nn.functional.glu takes the other half as the gate; gpt-oss's own weights alternate
        the two.)

    Example:
        >>> import numpy as np
        >>> x = np.array([-1.0, 2.0, 3.0, 4.0], np.float32)
        >>> activation(x, "relu").tolist(), activation(x, "reglu").tolist()
        ([0.0, 2.0, 3.0, 4.0], [0.0, 8.0])
    """
    shape = check_kind("activation", x, kind, params)
    check_out("activation", out, shape, x.dtype)
    y = backend("activation", x, out).activation(contiguous(x), kind, params=params, out=plain_out(out))
    return deliver(y, out)


@prepared
def activation_vjp(x: Any, dy: Any, kind: str = "gelu", *, params: Clamp | None = None, out: Any | None = None) -> Any:
    """Return ``dx = act'(x) dy``; for a gated kind ``(act'(a) (dy b), act(a) dy)`` side by side.

    Args:
        x: the input of `activation`.
        dy: gradient of its result, of its shape and dtype; any strides.
        kind: a key of `KINDS`.
        params: of ``clamped_swiglu``; `CLAMP` unless given.
        out: array of the shape and dtype of ``x``, any strides; may be ``x``, for kinds that do not gate also ``dy``.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        DTypeError: another dtype, or two that differ.
        ShapeError: shapes that do not fit, or an ``out`` that does not.
        ArgumentError: an unknown kind, or ``params`` that are not its own.

    Numerics:
        Computed in float32 and rounded once. The derivative is exactly 0 or 1 far from 0 (srelu aside), also at
        -inf and +inf. relu and srelu have derivative 0 at 0 and pass no ``dy`` there, not even inf or NaN, nor does
        clamped_swiglu beyond its limit; a NaN ``x`` gives NaN. CPU and CUDA give the same bits.

    Source:
        TE numerics B8.

    Example:
        >>> import numpy as np
        >>> x = np.array([-1.0, 0.0, 2.0], np.float32)
        >>> activation_vjp(x, np.full(3, 5.0, np.float32), "relu").tolist()
        [0.0, 0.0, 5.0]
        >>> activation_vjp(np.array([2.0, 3.0], np.float32), np.full(1, 5.0, np.float32), "reglu").tolist()
        [15.0, 10.0]
    """
    check_gradient("activation_vjp", x, dy, kind, params)
    check_out("activation_vjp", out, x.shape, x.dtype)
    twin = backend("activation", x, dy, out)
    dx = twin.activation_vjp(contiguous(x), contiguous(dy), kind, params=params, out=plain_out(out))
    return deliver(dx, out)


def check_gradient(op: str, x: Any, dy: Any, kind: str, params: Clamp | None = None) -> None:
    """Raise unless ``dy`` is a gradient of what `activation` makes of ``x``."""
    shape = check_kind(op, x, kind, params)
    if dy.shape != shape:
        raise ShapeError(message(op, f"dy of shape {shape}", dy.shape, "pass the gradient of the result"))
    if dy.dtype != x.dtype:
        raise DTypeError(message(op, f"dy of {x.dtype}", dy.dtype, "cast dy first"))


def check_kind(op: str, x: Any, kind: str, params: Clamp | None = None) -> tuple[int, ...]:
    """Check input, kind and parameters and return the shape of the result."""
    check_computed(op, "x", x)
    found = KINDS.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise ArgumentError(message(op, f"a kind out of {', '.join(KINDS)}", repr(kind), "choose one of these"))
    check_params(op, kind, params)
    shape: tuple[int, ...] = x.shape
    if not found.gated:
        return shape
    if not shape or shape[-1] % 2:
        raise ShapeError(message(op, f"an even last axis for {kind}", shape, "put both halves side by side"))
    return (*shape[:-1], shape[-1] // 2)


def check_params(op: str, kind: str, params: Clamp | None) -> None:
    """Raise ArgumentError unless these are parameters that the kind takes."""
    if params is None:
        return
    if kind != "clamped_swiglu" or type(params) is not Clamp:
        expected, do = "a Clamp for clamped_swiglu, None for other kinds", "leave the parameters out"
        raise ArgumentError(message(op, expected, f"{params!r} for {kind}", do))
    numbers = all(isinstance(p, int | float) and not isinstance(p, bool) and abs(p) <= _LARGEST for p in params)
    if not numbers or params.limit <= 0:
        raise ArgumentError(message(op, "numbers of float32, limit > 0", repr(params), "pass e.g. limit=7.0"))
