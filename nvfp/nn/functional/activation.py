"""Activations as primitives."""

from __future__ import annotations

from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.deferred import deferred
from nvfp.arrays.functions._common import array
from nvfp.autograd.tape import record
from nvfp.kernels import activation as kernel
from nvfp.nn.functional._pending import activated, activation_gradient
from nvfp.nn.functional.linear import takes_quantized_gradient


def activation(x: Array, kind: str = "gelu", *, defer: bool = False) -> Array:
    """Return ``act(x)`` elementwise, or ``act(a) b`` of the halves a, b of the last axis for a gated kind.

    Args:
        x: any shape, float32/bfloat16/float16; a quantized one counts as float32. [..., 2N] for a gated kind.
        kind: ``"gelu"`` (tanh form), ``"relu"``, ``"silu"``, ``"qgelu"`` or ``"srelu"``; gated: ``"glu"``,
            ``"geglu"``, ``"reglu"``, ``"swiglu"``, ``"qgeglu"`` or ``"sreglu"``
            (formulas: `nvfp.kernels.activation`).
        defer: for a GEMM of the same module alone: a `Deferred`; so is the gradient for a quantized one that made x.

    Returns:
        Shape and dtype of ``x``, [..., N] for a gated kind; computed in float32, rounded once.

    Raises:
        ArgumentError: an unknown kind.
        ShapeError: an odd last axis for a gated kind.
        DTypeError: another dtype, or no array.

    Example:
        >>> import nvfp as nf
        >>> activation(nf.asarray([-1.0, 2.0], device="cpu"), "relu").tolist()
        [0.0, 2.0]
        >>> activation(nf.asarray([3.0, 2.0], device="cpu"), "reglu").tolist()
        [6.0]
    """
    x = array("activation", x)
    node = record(kind, (x,), _vjp, saved=(x, kind, defer and takes_quantized_gradient(x)))
    return deferred(activated(x.raw, kind), node) if defer else wrap(kernel.activation(x.raw, kind), node=node)


def _vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    x, kind, defer = saved
    if defer:
        return (deferred(activation_gradient(x.raw, dy.raw, kind)),)
    return (wrap(kernel.activation_vjp(x.raw, dy.raw, kind)),)
