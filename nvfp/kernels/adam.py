"""`adam`: the Adam update of many parameters at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.kernels._check import FLOAT32, check_choice
from nvfp.kernels._dense import check_computed, contiguous, deliver
from nvfp.kernels._dispatch import backend

MODES = ("adamw", "adam_l2")
_INT32 = np.dtype(np.int32)


def adam(
    params: Sequence[Any],
    grads: Sequence[Any],
    exp_avg: Sequence[Any],
    exp_avg_sq: Sequence[Any],
    master: Sequence[Any | None],
    hyper: Any,
    step: Any,
    *,
    mode: str = "adamw",
) -> None:
    """Advance ``step`` by one and update parameters and moments in place.

    With ``t`` the new step and ``p`` the master copy where there is one, else the parameter::

        g = g + wd p                         (adam_l2 only)
        m = b1 m + (1 - b1) g
        v = b2 v + ((1 - b2) g) g
        u = (m r1) / (sqrt(v r2) + eps)      r1 = 1 / (1 - b1^t), r2 = 1 / (1 - b2^t)
        u = u + wd p                         (adamw only)
        p = p - lr u

    and the parameter becomes ``p`` rounded to its dtype.

    Args:
        params: raw arrays of float32, bfloat16 or float16, any shapes; written.
        grads: one per parameter, of its shape; float32, bfloat16 or float16.
        exp_avg: m, float32, one per parameter; written.
        exp_avg_sq: v, float32, one per parameter; written.
        master: float32 copy of each parameter (written), or None.
        hyper: float32 [5] on the device: lr, b1, b2, eps, wd.
        step: int32 word on the device; written.
        mode: ``"adamw"`` (decoupled weight decay) or ``"adam_l2"``.

    Raises:
        DTypeError: an array of another dtype.
        ShapeError: arrays of one parameter that differ in shape, lists of different lengths, or a wrong
            ``hyper`` or ``step``.
        ArgumentError: an unknown mode, or an array to be written that is read-only.

    Numerics:
        Every operation above is one float32 operation, in the order written, without fused multiply-adds.
        1 - b is float32; ``1 - b^t`` is taken from the float32 b in float64 (by repeated squaring, since pow
        differs between machines) and rounded to float32; r1 and r2 are float32 quotients. CPU and CUDA so
        give the same bits. Against TE's FusedAdam (built
        with approximate division and square root) a step differs by at most 2 ulp of the largest of
        |p before|, |p after| and |their difference|.

    Source:
        TE numerics B8.

    Example:
        >>> import numpy as np
        >>> p, m, v = (np.full(2, value, np.float32) for value in (1.0, 0.0, 0.0))
        >>> hyper = np.array([0.5, 0.9, 0.999, 0.0, 0.0], np.float32)
        >>> adam([p], [np.array([3.0, -4.0], np.float32)], [m], [v], [None], hyper, np.zeros((), np.int32))
        >>> p.round(6).tolist()
        [0.5, 1.5]
    """
    check_choice("adam", "mode", mode, MODES)
    _check_words(hyper, step)
    lists = {"params": params, "grads": grads, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq, "master": master}
    if len({len(values) for values in lists.values()}) != 1:
        got = ", ".join(f"{name} {len(values)}" for name, values in lists.items())
        raise ShapeError(message("adam", "lists of one length", got, "pass one entry per parameter"))
    for p, g, m, v, w in zip(params, grads, exp_avg, exp_avg_sq, master):
        _check_one(p, g, m, v, w)
    written = [contiguous(x) for values in (params, exp_avg, exp_avg_sq) for x in values]
    n = len(params)
    masters = [None if w is None else contiguous(w) for w in master]
    backend("adam", hyper, step, *params, *grads).adam(
        written[:n], [contiguous(g) for g in grads], written[n : 2 * n], written[2 * n :], masters,
        contiguous(hyper), step, mode=mode,
    )  # fmt: skip
    for given, used in zip((*params, *exp_avg, *exp_avg_sq, *master), (*written, *masters)):
        if used is not given:  # was not contiguous: the copy was updated
            deliver(used, given)


def _check_words(hyper: Any, step: Any) -> None:
    if hyper.shape != (5,) or hyper.dtype != FLOAT32:
        got = f"{hyper.dtype} {hyper.shape}"
        raise ShapeError(message("adam", "hyper as float32 (5,)", got, "pack lr, beta1, beta2, eps, weight_decay"))
    if step.shape != () or step.dtype != _INT32 or isinstance(step, np.generic):
        got = f"{step.dtype} {step.shape}"
        raise ShapeError(message("adam", "step as an int32 array of shape ()", got, "keep it as a 0-d device array"))
    _check_writeable("step", step)


def _check_writeable(name: str, x: Any) -> None:
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        raise ArgumentError(message("adam", f"a writeable {name}", "a read-only array", "pass the array itself"))


def _check_one(p: Any, g: Any, m: Any, v: Any, w: Any | None) -> None:
    check_computed("adam", "params", p)
    check_computed("adam", "grads", g)
    for name, x in (("grads", g), ("exp_avg", m), ("exp_avg_sq", v), ("master", w)):
        if x is None:
            continue
        if x.shape != p.shape:
            raise ShapeError(message("adam", f"{name} of shape {p.shape}", x.shape, "pass the parameter's own"))
        if name != "grads" and x.dtype != FLOAT32:
            raise DTypeError(message("adam", f"{name} of float32", x.dtype, "keep optimizer state in float32"))
    for name, x in (("parameter", p), ("exp_avg", m), ("exp_avg_sq", v), ("master", w)):
        _check_writeable(name, x)
