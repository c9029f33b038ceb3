"""Activations as primitives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.deferred import deferred
from nvfp.arrays.functions._common import array
from nvfp.autograd.tape import record
from nvfp.errors import ArgumentError, message
from nvfp.kernels import activation as kernel
from nvfp.kernels.activation import Clamp
from nvfp.nn.functional._pending import activated, activation_gradient
from nvfp.nn.functional.linear import takes_quantized_gradient


def activation(
    x: Array, kind: str = "gelu", *, params: Mapping[str, float] | None = None, defer: bool = False
) -> Array:
    """Return ``act(x)`` elementwise, or ``act(a) b`` of the halves a, b of the last axis for a gated kind.

    Args:
        x: any shape, float32/bfloat16/float16; a quantized one counts as float32. [..., 2N] for a gated kind.
        kind: ``"gelu"`` (tanh form), ``"relu"``, ``"silu"``, ``"qgelu"`` or ``"srelu"``; gated: ``"glu"``,
            ``"geglu"``, ``"reglu"``, ``"swiglu"``, ``"qgeglu"``, ``"sreglu"`` or ``"clamped_swiglu"``
            (formulas: `nvfp.kernels.activation`).
        params: of ``"clamped_swiglu"``: ``limit`` (7.0), ``alpha`` (1.702) and ``glu_linear_offset`` (1.0), as TE.
        defer: for a GEMM of the same module alone: a `Deferred`; so is the gradient for a quantized one that made x.

    Returns:
        Shape and dtype of ``x``, [..., N] for a gated kind; computed in float32, rounded once.

    Raises:
        ArgumentError: an unknown kind, or parameters that it does not have.
        ShapeError: an odd last axis for a gated kind.
        DTypeError: another dtype, or no array.

    Example:
        >>> import nvfp as nf
        >>> activation(nf.asarray([-1.0, 2.0], device="cpu"), "relu").tolist()
        [0.0, 2.0]
        >>> activation(nf.asarray([3.0, 2.0], device="cpu"), "reglu").tolist()
        [6.0]
        >>> y = activation(nf.asarray([9.0, -9.0], device="cpu"), "clamped_swiglu", params={"limit": 2.0})
        >>> round(y.item(), 3)
        -1.936
    """
    x = array("activation", x)
    numbers = None if params is None else clamp("activation", kind, params)
    node = record(kind, (x,), _vjp, saved=(x, kind, numbers, defer and takes_quantized_gradient(x)))
    if defer:
        return deferred(activated(x.raw, kind, numbers), node)
    return wrap(kernel.activation(x.raw, kind, params=numbers), node=node)


def clamp(op: str, kind: str, params: Mapping[str, float]) -> Clamp | None:
    """Return what ``activation_params`` mean; None where there are none.

    Args:
        op: the public name, for messages.
        kind: a kind of activation.
        params: numbers by TE's names; what is absent has its default.

    Raises:
        ArgumentError: other names, numbers out of range, or a kind without parameters.
    """
    if not isinstance(params, Mapping) or not set(params) <= set(Clamp._fields):
        expected = f"activation_params out of {', '.join(Clamp._fields)}"
        raise ArgumentError(message(op, expected, repr(params), "pass a dict of these"))
    found = Clamp(**params) if params else None
    kernel.check_params(op, kind, found)
    return found


def _vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    x, kind, params, defer = saved
    if defer:
        return (deferred(activation_gradient(x.raw, dy.raw, kind, params)),)
    return (wrap(kernel.activation_vjp(x.raw, dy.raw, kind, params=params)),)
