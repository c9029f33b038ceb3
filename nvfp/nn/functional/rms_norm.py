"""Root-mean-square normalisation as a primitive."""

from __future__ import annotations

from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import array
from nvfp.autograd.tape import record
from nvfp.kernels import rms_norm as kernel


def rms_norm(x: Array, weight: Array, *, eps: float = 1e-5, zero_centered_gamma: bool = False) -> Array:
    """Return ``x / sqrt(mean(x^2) + eps) * g`` over the last axis.

    Args:
        x: [..., H], float32/bfloat16/float16; a quantized one counts as float32.
        weight: g [H], in any of these dtypes.
        eps: at least 0.
        zero_centered_gamma: g is ``1 + weight``.

    Returns:
        Shape and dtype of ``x``; gradients in the dtypes of the inputs.

    Raises:
        DTypeError: another dtype, or no array.
        ShapeError: a weight that is not [H].
        ArgumentError: an eps below 0.

    Numerics: float32 statistics, one rounding; see `nvfp.kernels.rms_norm`.

    Example:
        >>> import nvfp as nf
        >>> rms_norm(nf.asarray([1.0, -1.0], device="cpu"), nf.ones((2,), device="cpu"), eps=0.0).tolist()
        [1.0, -1.0]
    """
    x, weight = array("rms_norm", x), array("rms_norm", weight)
    y, rstd = kernel.rms_norm(x.raw, weight.raw, eps=eps, zero_centered_gamma=zero_centered_gamma)
    return wrap(y, node=record("rms_norm", (x, weight), _vjp, saved=(x, weight, rstd, zero_centered_gamma)))


def _vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    x, weight, rstd, zero_centered = saved
    found = kernel.rms_norm_vjp(
        dy.raw, x.raw, weight.raw, rstd, zero_centered_gamma=zero_centered, needs=(needs[0], needs[1])
    )
    return tuple([None if raw is None else wrap(raw) for raw in found])
