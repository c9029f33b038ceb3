"""Layer normalisation as a primitive."""

from __future__ import annotations

from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import array
from nvfp.autograd.tape import record
from nvfp.kernels import layer_norm as kernel


def layer_norm(
    x: Array, weight: Array, bias: Array | None = None, *, eps: float = 1e-5, zero_centered_gamma: bool = False
) -> Array:
    """Return ``(x - mean) / sqrt(var + eps) * g + bias`` over the last axis, with the biased variance.

    Args:
        x: [..., H], float32/bfloat16/float16; a quantized one counts as float32.
        weight: g [H], in any of these dtypes.
        bias: [H] in the dtype of ``weight``, or None.
        eps: at least 0.
        zero_centered_gamma: g is ``1 + weight``.

    Returns:
        Shape and dtype of ``x``; gradients in the dtypes of the inputs.

    Raises:
        DTypeError: another dtype, weight and bias that differ, or no array.
        ShapeError: parameters that are not [H].
        ArgumentError: an eps below 0.

    Numerics: float32 statistics over differences to the mean, one rounding; see `nvfp.kernels.layer_norm`.

    Example:
        >>> import nvfp as nf
        >>> layer_norm(nf.asarray([1.0, 3.0], device="cpu"), nf.ones((2,), device="cpu"), eps=0.0).tolist()
        [-1.0, 1.0]
    """
    x, weight = array("layer_norm", x), array("layer_norm", weight)
    bias = None if bias is None else array("layer_norm", bias)
    b = None if bias is None else bias.raw
    y, mean, rstd = kernel.layer_norm(x.raw, weight.raw, b, eps=eps, zero_centered_gamma=zero_centered_gamma)
    saved = (x, weight, mean, rstd, zero_centered_gamma)
    return wrap(y, node=record("layer_norm", (x, weight, bias), _vjp, saved=saved))


def _vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    x, weight, mean, rstd, zero_centered = saved
    found = kernel.layer_norm_vjp(
        dy.raw, x.raw, weight.raw, mean, rstd, zero_centered_gamma=zero_centered, needs=(needs[0], needs[1], needs[2])
    )
    return tuple([None if raw is None else wrap(raw) for raw in found])
