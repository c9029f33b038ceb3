"""Input functions of `quantize`: what is applied to its source, in the pass that quantizes.

A record says which function and carries the further arrays that it reads or writes. `apply` is its definition: the
unfused function of `kernels.activation`, `kernels.layer_norm` or `kernels.rms_norm`, rounded to the source's dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from nvfp.errors import ArgumentError, message
from nvfp.kernels._norm import check_normalized
from nvfp.kernels._prepared import understood
from nvfp.kernels.activation import KINDS, Clamp, activation, activation_vjp, check_gradient, check_kind
from nvfp.kernels.cast import cast
from nvfp.kernels.layer_norm import layer_norm
from nvfp.kernels.rms_norm import rms_norm

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Activated:
    """The activation of the source: [..., F], or of a gated kind [..., 2F] -> [..., F].

    Attributes:
        kind: a key of `kernels.activation.KINDS`.
        params: of ``clamped_swiglu``, or None.
    """

    kind: str
    params: Clamp | None = None


@dataclass(frozen=True, eq=False, slots=True)
class ActivationGradient:
    """The gradient of an activation's input; the source is dy, that of its result.

    Attributes:
        kind: a key of `kernels.activation.KINDS`.
        x: the input of the activation: [..., F], for a gated kind [..., 2F] as the result.
        params: of ``clamped_swiglu``, or None.
    """

    kind: str
    x: Any
    params: Clamp | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Normalized:
    """The source [..., H], normalized over its last axis.

    Attributes:
        kind: which function.
        weight: [H].
        bias: [H] or None; layer_norm's alone.
        eps: added to the variance or mean square.
        zero_centered_gamma: ``weight`` counts from 1.
        mean: contiguous float32 [rows] that takes layer_norm's means, or None where they are not wanted.
        rstd: contiguous float32 [rows] that takes the inverse deviations, or None.
    """

    kind: Literal["layer_norm", "rms_norm"]
    weight: Any
    bias: Any | None = None
    eps: float = 1e-5
    zero_centered_gamma: bool = False
    mean: Any | None = None
    rstd: Any | None = None


InputFn = Activated | ActivationGradient | Normalized
INPUTS: tuple[type, ...] = (Activated, ActivationGradient, Normalized)
understood(Activated, lambda f: (f.kind, f.params))
understood(ActivationGradient, lambda f: (f.kind, f.x, f.params))
understood(Normalized, lambda f: (f.kind, f.weight, f.bias, f.eps, f.zero_centered_gamma, f.mean, f.rstd))


def check_input(op: str, x: Any, f: Any) -> None:
    """Raise unless ``f`` is an input function that fits ``x``."""
    if type(f) not in INPUTS:
        names = ", ".join(t.__name__ for t in INPUTS)
        raise ArgumentError(message(op, f"input_fn as one of {names}", repr(f), "see kernels.input_fn"))
    if isinstance(f, Activated):
        check_kind(op, x, f.kind, f.params)
    elif isinstance(f, ActivationGradient):
        check_gradient(op, f.x, x, f.kind, f.params)
    else:
        check_normalized(op, x, f)


def result_shape(shape: Shape, f: InputFn) -> Shape:
    """Return the shape of ``f``'s result for a source of ``shape``.

    Example:
        >>> result_shape((4, 64), Activated("swiglu")), result_shape((4, 64), Activated("gelu"))
        ((4, 32), (4, 64))
    """
    if isinstance(f, Normalized) or not shape or f.kind not in KINDS or not KINDS[f.kind].gated:
        return shape
    last = shape[-1]
    return (*shape[:-1], last // 2 if isinstance(f, Activated) else 2 * last)


def arrays_of(f: InputFn) -> tuple[Any, ...]:
    """Return the arrays that ``f`` reads beside its source, or writes."""
    if isinstance(f, Activated):
        return ()
    if isinstance(f, ActivationGradient):
        return (f.x,)
    return tuple(a for a in (f.weight, f.bias, f.mean, f.rstd) if a is not None)


def apply(x: Any, f: InputFn) -> Any:
    """Return ``f`` of ``x``, in the dtype of ``x``; a norm's statistics go where ``f`` says.

    Args:
        x: raw array, float32, bfloat16 or float16, any strides.
        f: an input function.

    Raises:
        What `activation`, `activation_vjp`, `layer_norm` and `rms_norm` raise.

    Example:
        >>> import numpy as np
        >>> apply(np.array([-1.0, 2.0], np.float32), Activated("relu")).tolist()
        [0.0, 2.0]
    """
    if isinstance(f, Activated):
        return activation(x, f.kind, params=f.params)
    if isinstance(f, ActivationGradient):
        return activation_vjp(f.x, x, f.kind, params=f.params)
    mean: Any | None = None
    if f.kind == "layer_norm":
        y, mean, rstd = layer_norm(x, f.weight, f.bias, eps=f.eps, zero_centered_gamma=f.zero_centered_gamma)
    else:
        y, rstd = rms_norm(x, f.weight, eps=f.eps, zero_centered_gamma=f.zero_centered_gamma)
    for statistic, out in ((mean, f.mean), (rstd, f.rstd)):
        if out is not None:
            cast(statistic, out.dtype, out=out)
    return y
