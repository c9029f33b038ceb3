"""Softmax cross-entropy with ignored targets and label smoothing."""

from __future__ import annotations

from typing import Any, Literal

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import array
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
        logits: [..., V], float32/bfloat16/float16; quantized ones count as float32.
        targets: integers [...].
        ignore_index: rows with this target give 0 and no gradient.
        label_smoothing: s in 0..1.
        reduction: ``"mean"`` over the rows that count, ``"sum"`` or ``"none"``.

    Returns:
        float32: a scalar, or [...] for ``"none"``. If every target is ignored the mean is 0.

    Raises:
        DTypeError: logits of another dtype, targets that are no integers, or no array.
        ShapeError: targets that do not have the leading shape of the logits.
        IndexError: on the CPU, a target out of range. On CUDA its loss is NaN and it gets no gradient.

    Numerics: float32 throughout, maximum subtracted first.

    Example:
        >>> import nvfp as nf
        >>> logits = nf.asarray([[0.0, 0.0]], device="cpu")
        >>> round(cross_entropy(logits, nf.asarray([1], device="cpu")).item(), 6)
        0.693147
    """
    logits, targets = array("cross_entropy", logits), array("cross_entropy", targets)
    options: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    loss, lse, weight = kernel.cross_entropy(logits.raw, targets.raw, reduction=reduction, **options)
    node = record("cross_entropy", (logits,), _vjp, saved=(logits, targets, lse, weight, options))
    return wrap(loss, node=node)


def _vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    logits, targets, lse, weight, options = saved
    return (wrap(kernel.cross_entropy_vjp(logits.raw, targets.raw, lse, weight, dy.raw, **options)),)
