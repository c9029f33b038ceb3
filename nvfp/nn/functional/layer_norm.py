"""Layer normalisation as a primitive."""

from __future__ import annotations

from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.deferred import deferred
from nvfp.arrays.functions._common import array
from nvfp.autograd.tape import ADDING, record
from nvfp.kernels import layer_norm as kernel
from nvfp.kernels._norm import check_eps, check_norm
from nvfp.nn.functional._pending import Statistics, added, normalized, total


def layer_norm(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    eps: float = 1e-5,
    zero_centered_gamma: bool = False,
    defer: bool = False,
) -> Array:
    """Return ``(x - mean) / sqrt(var + eps) * g + bias`` over the last axis, with the biased variance.

    Args:
        x: [..., H], float32/bfloat16/float16; a quantized one counts as float32.
        weight: g [H], in any of these dtypes.
        bias: [H] in the dtype of ``weight``, or None.
        eps: at least 0.
        zero_centered_gamma: g is ``1 + weight``.
        defer: for a GEMM of the same module alone: a `Deferred`.

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
    if defer:
        check_norm("layer_norm", x.raw, weight.raw, b)
        eps, zero_centered_gamma = check_eps("layer_norm", eps), bool(zero_centered_gamma)
    statistics = Statistics()
    options: dict[str, Any] = {"eps": eps, "zero_centered_gamma": zero_centered_gamma}
    pending = normalized("layer_norm", x.raw, weight.raw, b, into=statistics, **options)
    node = record("layer_norm", (x, weight, bias), _vjp, saved=(x, weight, statistics, zero_centered_gamma))
    return deferred(pending, node) if defer else wrap(pending.value(), node=node)


def _vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...], have: Any = None) -> tuple[Array | None, ...]:
    x, weight, statistics, zero_centered = saved
    add = added(have, x)
    dx, dweight, dbias = kernel.layer_norm_vjp(
        dy.raw, x.raw, weight.raw, statistics.mean, statistics.rstd,
        zero_centered_gamma=zero_centered, needs=(needs[0], needs[1], needs[2]), add=add,
    )  # fmt: skip
    return total(have, dx, add is not None), *(None if raw is None else wrap(raw) for raw in (dweight, dbias))


ADDING.add(_vjp)
