"""Results that a GEMM behind may compute while it quantizes: norms, activations and gradients of activations."""

from __future__ import annotations

from functools import partial
from typing import Any

from nvfp.arrays.array import Array, device_of, wrap
from nvfp.arrays.creation import empty_raw
from nvfp.arrays.deferred import Pending, Taken
from nvfp.dtypes.dense import float32
from nvfp.kernels import activation as act, layer_norm as centered, rms_norm as plain_norm
from nvfp.kernels._norm import row_count
from nvfp.kernels.activation import Clamp
from nvfp.kernels.input_fn import Activated, ActivationGradient, Normalized
from nvfp.nn.functional._matrix import matrix


class Statistics:
    """What a norm's gradient needs of its rows, once the norm is computed.

    Attributes:
        mean: float32 [rows] (layer_norm).
        rstd: float32 [rows].
    """

    __slots__ = ("mean", "rstd")

    def __init__(self) -> None:
        self.mean: Any = None
        self.rstd: Any = None


def normalized(
    kind: Any, x: Any, weight: Any, bias: Any | None, *, eps: float, zero_centered_gamma: bool, into: Statistics
) -> Pending:
    """Return a norm of ``x`` that is not computed yet.

    Args:
        kind: ``"layer_norm"`` or ``"rms_norm"``.
        x: raw array [..., H].
        weight: [H].
        bias: [H] or None.
        eps: added to the variance or mean square.
        zero_centered_gamma: ``weight`` counts from 1.
        into: takes the statistics.
    """
    options: dict[str, Any] = {"eps": eps, "zero_centered_gamma": zero_centered_gamma}

    def plain() -> Any:
        if kind == "rms_norm":
            y, into.rstd = plain_norm.rms_norm(x, weight, **options)
        else:
            y, into.mean, into.rstd = centered.layer_norm(x, weight, bias, **options)
        return y

    def taken() -> Taken:
        place = device_of(x)
        into.rstd = empty_raw((row_count(x),), float32, place)
        if kind == "layer_norm":
            into.mean = empty_raw((row_count(x),), float32, place)
        return matrix(x), Normalized(kind, weight, bias, mean=into.mean, rstd=into.rstd, **options)

    return Pending(plain, taken, x.shape, x, rows=True)


def activated(x: Any, kind: str, params: Clamp | None = None) -> Pending:
    """Return an activation of ``x`` that is checked and not computed yet."""
    shape = act.check_kind("activation", x, kind, params)
    plain = partial(act.activation, x, kind, params=params)
    return Pending(plain, lambda: (matrix(x), Activated(kind, params)), shape, x)


def activation_gradient(x: Any, dy: Any, kind: str, params: Clamp | None = None) -> Pending:
    """Return the gradient of an activation's input that is not computed yet."""
    return Pending(
        lambda: act.activation_vjp(x, dy, kind, params=params),
        lambda: (matrix(dy), ActivationGradient(kind, matrix(x), params)),
        x.shape,
        x,
    )


def added(have: Any, x: Array) -> Any | None:
    """The raw gradient that a norm's backward adds to its own, or None where its kernel cannot."""
    fits = type(have) is Array and have.dtype == x.dtype and have.shape == x.shape
    return have.raw if fits else None


def total(have: Any, raw: Any, fused: bool) -> Array | None:
    """The gradient of a norm's input, with what has reached it before."""
    found = None if raw is None else wrap(raw)
    if have is None or fused or found is None:
        return found
    return have.__array_namespace__().add(have, found)  # type: ignore[no-any-return]
