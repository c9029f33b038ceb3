"""Root-mean-square normalisation as a primitive."""

from __future__ import annotations

from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.deferred import deferred
from nvfp.arrays.functions._common import array
from nvfp.autograd.tape import ADDING, record
from nvfp.kernels import rms_norm as kernel
from nvfp.kernels._norm import check_eps, check_norm
from nvfp.nn.functional._pending import Statistics, added, normalized, total


def rms_norm(
    x: Array, weight: Array, *, eps: float = 1e-5, zero_centered_gamma: bool = False, defer: bool = False
) -> Array:
    """Return ``x / sqrt(mean(x^2) + eps) * g`` over the last axis.

    Args:
        x: [..., H], float32/bfloat16/float16; a quantized one counts as float32.
        weight: g [H], in any of these dtypes.
        eps: at least 0.
        zero_centered_gamma: g is ``1 + weight``.
        defer: for a GEMM of the same module alone: a `Deferred`.

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
    if defer:
        check_norm("rms_norm", x.raw, weight.raw)
        eps, zero_centered_gamma = check_eps("rms_norm", eps), bool(zero_centered_gamma)
    statistics = Statistics()
    options: dict[str, Any] = {"eps": eps, "zero_centered_gamma": zero_centered_gamma}
    pending = normalized("rms_norm", x.raw, weight.raw, None, into=statistics, **options)
    node = record("rms_norm", (x, weight), _vjp, saved=(x, weight, statistics, zero_centered_gamma))
    return deferred(pending, node) if defer else wrap(pending.value(), node=node)


def _vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...], have: Any = None) -> tuple[Array | None, ...]:
    x, weight, statistics, zero_centered = saved
    add = added(have, x)
    dx, dweight = kernel.rms_norm_vjp(
        dy.raw, x.raw, weight.raw, statistics.rstd,
        zero_centered_gamma=zero_centered, needs=(needs[0], needs[1]), add=add,
    )  # fmt: skip
    return total(have, dx, add is not None), None if dweight is None else wrap(dweight)


ADDING.add(_vjp)
