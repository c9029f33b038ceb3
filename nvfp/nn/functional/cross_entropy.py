"""Softmax cross-entropy with ignored targets and label smoothing."""

from __future__ import annotations

import math
from typing import Any, Literal

from nvfp.arrays.array import Array, wrap
from nvfp.autograd.tape import record
from nvfp.kernels import cross_entropy as kernel


def cross_entropy(
    logits: Array,
    targets: Array,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Array:
    """Return the cross-entropy of targets under softmax(logits).

    With ``s`` the smoothing: ``loss_t = (1-s) nll_t + (s/V) sum_i -log p_ti``.

    Args:
        logits: [..., V], float32/bfloat16/float16.
        targets: integers [...].
        ignore_index: rows with this target give 0 and no gradient.
        label_smoothing: s in 0..1.
        reduction: ``"mean"`` over the rows that count, ``"sum"`` or ``"none"``.

    Returns:
        float32: a scalar, or [...] for ``"none"``. If every target is ignored the mean is 0.

    Raises:
        IndexError: on the CPU, a target out of range. On CUDA its loss is NaN and it gets no gradient.

    Numerics: float32 throughout, maximum subtracted first.

    Example:
        >>> import nvfp as nf
        >>> logits = nf.asarray([[0.0, 0.0]], device="cpu")
        >>> round(cross_entropy(logits, nf.asarray([1], device="cpu")).item(), 6)
        0.693147
    """
    rows = math.prod(logits.shape[:-1])
    flat, ids = logits.raw.reshape((rows, logits.shape[-1])), targets.raw.reshape((rows,))
    options: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    loss, lse, weight = kernel.cross_entropy(flat, ids, reduction=reduction, **options)
    node = record("cross_entropy", (logits,), _vjp, saved=(logits, targets, lse, weight, options))
    return wrap(loss.reshape(targets.shape) if reduction == "none" else loss, node=node)


def _vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    logits, targets, lse, weight, options = saved
    shape = logits.shape
    flat = logits.raw.reshape((math.prod(shape[:-1]), shape[-1]))
    ids = targets.raw.reshape((flat.shape[0],))
    dloss = dy.raw.reshape((-1,)) if dy.ndim else dy.raw
    return (wrap(kernel.cross_entropy_vjp(flat, ids, lse, weight, dloss, **options).reshape(shape)),)
