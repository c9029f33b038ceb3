"""`cross_entropy` and `cross_entropy_vjp`: softmax cross-entropy over integer targets."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.kernels._check import FLOAT32, check_choice, check_out
from nvfp.kernels._dense import check_computed, check_range, contiguous, deliver, indices, plain_out
from nvfp.kernels._dispatch import backend
from nvfp.kernels._prepared import prepared

REDUCTIONS = ("mean", "sum", "none")


@partial(prepared, looks=True)
def cross_entropy(
    logits: Any,
    targets: Any,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> tuple[Any, Any, Any]:
    """Return the cross-entropy loss and what its gradient needs.

    ``loss[t] = (1 - s) (lse[t] - logits[t, targets[t]]) + s/V sum_v (lse[t] - logits[t, v])`` with
    ``lse[t] = log sum_v exp(logits[t, v])`` and ``s = label_smoothing``; 0 where ``targets[t]`` is
    ``ignore_index``. ``"mean"`` divides the sum by the number of targets that are not ignored.

    Args:
        logits: raw array [..., V] of float32, bfloat16 or float16; any strides.
        targets: integers [...], any strides, in ``0..V-1`` or equal to ``ignore_index``.
        ignore_index: targets of this value (it may be negative, or a class) do not count.
        label_smoothing: weight s of the uniform distribution, in [0, 1].
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Returns:
        ``(loss, lse, weight)``, all float32. ``loss``: a word, or [...] for ``"none"``. ``lse``: [...], 0 for
        ignored targets. ``weight``: word, what each row's gradient is multiplied by: 1/valid for
        ``"mean"`` (0 if none is valid), else 1.

    Raises:
        DTypeError: logits of another dtype, or targets that are no integers.
        ShapeError: shapes that do not fit, or no class (V = 0).
        ArgumentError: an unknown ``reduction``, or ``label_smoothing`` outside [0, 1].
        BlockIndexError: (an IndexError) a target out of range, on the CPU. On CUDA such a row's loss is NaN
            and its gradient 0; ``NVFP_DEBUG=1`` checks there too.

    Numerics:
        Differences to the row's largest logit, in float32; sums of exp in float32 (CUDA, per thread and then
        in a fixed tree) or float64 (CPU); rows summed in float64. If all targets are ignored the loss is 0.
        A logit of -inf has probability 0; if it is the target (or s > 0) the loss is inf. A row with +inf or
        NaN, or of -inf only, gives NaN. The two devices agree within tolerance; each repeats its bits.

    Source:
        TE numerics B8.

    Example:
        >>> import numpy as np
        >>> logits = np.log(np.array([[3.0, 1.0], [1.0, 1.0]], np.float32))
        >>> loss, lse, weight = cross_entropy(logits, np.array([0, -100]))
        >>> round(float(loss), 5), float(weight)
        (0.28768, 1.0)
    """
    _check("cross_entropy", logits, targets, ignore_index, label_smoothing)
    check_choice("cross_entropy", "reduction", reduction, REDUCTIONS)
    shape, vocabulary = targets.shape, logits.shape[-1]
    rows = contiguous(logits).reshape(-1, vocabulary)
    ids = indices("cross_entropy", "targets", targets).reshape(-1)
    check_range("cross_entropy", "targets", ids, vocabulary, ignore_index)
    loss, lse, weight = backend("cross_entropy", logits, targets).cross_entropy(
        rows, ids, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
    )
    return loss.reshape(shape) if reduction == "none" else loss, lse.reshape(shape), weight


@partial(prepared, looks=True)
def cross_entropy_rows(
    logits: Any, targets: Any, losses: Any, lse: Any, *, ignore_index: int = -100, label_smoothing: float = 0.0
) -> None:
    """Write the loss and the log-sum-exp of each row: `cross_entropy` of a part of the rows, before any reduction.

    Args:
        logits: raw array [T, V], C-contiguous; as for `cross_entropy`.
        targets: int32 or int64 [T], C-contiguous.
        losses: float32 [T], C-contiguous; receives the losses.
        lse: float32 [T], likewise; receives the log-sum-exp.
        ignore_index: as for `cross_entropy`.
        label_smoothing: as for `cross_entropy`.

    Raises:
        DTypeError: as `cross_entropy`.
        ShapeError: as `cross_entropy`, or results that are no float32 [T].
        ArgumentError: as `cross_entropy`.
        BlockIndexError: as `cross_entropy`.

    Numerics: those of `cross_entropy`, row by row: the bits do not depend on which rows come together.

    Example:
        >>> import numpy as np
        >>> losses, lse = np.empty(1, np.float32), np.empty(1, np.float32)
        >>> cross_entropy_rows(np.zeros((1, 2), np.float32), np.array([0]), losses, lse)
        >>> round(float(losses[0]), 5)
        0.69315
    """
    op = "cross_entropy_rows"
    _check(op, logits, targets, ignore_index, label_smoothing)
    for name, x in (("losses", losses), ("lse", lse)):
        if x.shape != targets.shape or x.dtype != FLOAT32:
            raise ShapeError(message(op, f"{name} as float32 {targets.shape}", f"{x.dtype} {x.shape}", "make it so"))
    check_range(op, "targets", targets, logits.shape[-1], ignore_index)
    backend("cross_entropy", logits, targets, losses, lse).cross_entropy_rows(
        logits, targets, losses, lse, ignore_index=ignore_index, label_smoothing=label_smoothing
    )


@prepared
def cross_entropy_reduce(
    losses: Any, targets: Any, *, ignore_index: int = -100, reduction: str = "mean"
) -> tuple[Any, Any]:
    """Return the reduced loss of rows whose losses are known, and what each row's gradient is multiplied by.

    Args:
        losses: float32 [T], C-contiguous, 0 where ignored.
        targets: int32 or int64 [T], C-contiguous.
        ignore_index: as for `cross_entropy`.
        reduction: as for `cross_entropy`.

    Returns:
        ``(loss, weight)``, as the first and the last result of `cross_entropy`; for ``"none"`` the losses themselves.

    Raises:
        ArgumentError: an unknown ``reduction``.

    Numerics: those of `cross_entropy`, bit for bit.

    Example:
        >>> import numpy as np
        >>> loss, weight = cross_entropy_reduce(np.array([1.0, 0.0, 2.0], np.float32), np.array([5, -100, 6]))
        >>> float(loss), float(weight)
        (1.5, 0.5)
    """
    check_choice("cross_entropy_reduce", "reduction", reduction, REDUCTIONS)
    result: tuple[Any, Any] = backend("cross_entropy", losses, targets).cross_entropy_reduce(
        losses, targets, ignore_index=ignore_index, reduction=reduction
    )
    return result


@partial(prepared, looks=True)
def cross_entropy_vjp(
    logits: Any,
    targets: Any,
    lse: Any,
    weight: Any,
    dloss: Any,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    out: Any | None = None,
) -> Any:
    """Return the gradient of `cross_entropy` for its logits.

    ``dlogits[t, v] = (exp(logits[t, v] - lse[t]) - s/V - (1 - s) [v = targets[t]]) * dloss[t] * weight``,
    0 where the target is ignored (or, on CUDA, out of range).

    Args:
        logits: as given to `cross_entropy`, [..., V].
        targets: as given to `cross_entropy`, [...].
        lse: float32 [...], from `cross_entropy`.
        weight: float32 word, from `cross_entropy`.
        dloss: gradient of the loss, float32: a word, or [...] for ``reduction="none"``.
        ignore_index: as given to `cross_entropy`.
        label_smoothing: as given to `cross_entropy`.
        out: array of the shape and dtype of ``logits``, any strides; may be ``logits`` (in place).

    Returns:
        [..., V], of the dtype of ``logits``.

    Raises:
        DTypeError: logits, targets, ``lse``, ``weight`` or ``dloss`` of another dtype.
        ShapeError: shapes that do not fit.
        ArgumentError: ``label_smoothing`` outside [0, 1].
        BlockIndexError: a target out of range, on the CPU (on CUDA under ``NVFP_DEBUG=1``).

    Numerics:
        float32, rounded once. ``lse`` is one float32 per row, so probabilities are as exact as
        ``ulp(|lse|)`` allows. The two devices agree within tolerance.

    Source:
        TE numerics B8.

    Example:
        >>> import numpy as np
        >>> logits, targets = np.log(np.array([[3.0, 1.0]], np.float32)), np.array([0])
        >>> loss, lse, weight = cross_entropy(logits, targets)
        >>> cross_entropy_vjp(logits, targets, lse, weight, np.ones((), np.float32)).round(6).tolist()
        [[-0.25, 0.25]]
    """
    op = "cross_entropy_vjp"
    _check(op, logits, targets, ignore_index, label_smoothing)
    check_out(op, out, logits.shape, logits.dtype)
    for name, value, shapes in (
        ("lse", lse, (targets.shape,)),
        ("weight", weight, ((),)),
        ("dloss", dloss, ((), targets.shape)),
    ):
        if value.shape not in shapes or value.dtype != FLOAT32:
            wanted, got = " or ".join(str(s) for s in shapes), f"{value.dtype} {value.shape}"
            error = ShapeError if value.dtype == FLOAT32 else DTypeError
            raise error(message(op, f"{name} as float32 {wanted}", got, "pass what cross_entropy gave"))
    vocabulary = logits.shape[-1]
    rows = contiguous(logits).reshape(-1, vocabulary)
    ids = indices(op, "targets", targets).reshape(-1)
    check_range(op, "targets", ids, vocabulary, ignore_index)
    target = plain_out(out)
    dlogits = backend("cross_entropy", logits, targets, lse, weight, dloss, out).cross_entropy_vjp(
        rows, ids, contiguous(lse).reshape(-1), weight, contiguous(dloss).reshape(-1),
        ignore_index=ignore_index, label_smoothing=label_smoothing,
        out=None if target is None else target.reshape(rows.shape),
    )  # fmt: skip
    return out if target is not None else deliver(dlogits.reshape(logits.shape), out)


def _check(op: str, logits: Any, targets: Any, ignore_index: int, label_smoothing: float) -> None:
    check_computed(op, "logits", logits)
    if logits.ndim == 0 or logits.shape[:-1] != targets.shape:
        got = f"{logits.shape} and {targets.shape}"
        raise ShapeError(message(op, "logits [..., V] and targets [...]", got, "drop or add axes"))
    if logits.shape[-1] == 0:
        raise ShapeError(message(op, "at least one class", logits.shape, "pass logits [..., V] with V > 0"))
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int | np.integer):
        raise DTypeError(message(op, "ignore_index in whole numbers", repr(ignore_index), "pass e.g. -100"))
    if not isinstance(label_smoothing, int | float | np.floating) or not 0.0 <= label_smoothing <= 1.0:
        raise ArgumentError(message(op, "label_smoothing in [0, 1]", label_smoothing, "choose e.g. 0.1"))
