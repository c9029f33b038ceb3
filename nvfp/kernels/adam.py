"""`adam`: the Adam update of many parameters at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from nvfp.kernels._check import check_choice
from nvfp.kernels._dense import contiguous
from nvfp.kernels._dispatch import backend
from nvfp.kernels._prepared import prepared
from nvfp.kernels._update import all_contiguous, bring_back, check_lists, check_words

MODES = ("adamw", "adam_l2")
HYPER = ("lr", "beta1", "beta2", "eps", "weight_decay")


@partial(prepared, pinned=True)
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
    skip: Any | None = None,
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
        skip: float32 word on the device, or None. Unless it is 0 (NaN counts as set) nothing is written: parameters,
            moments, masters and ``step`` stay bit for bit as they are. What a loss scaler's found-inf flag is for
            (`kernels.multi_tensor.scale_tensors`), without waiting for the GPU, in a captured graph too.

    Raises:
        DTypeError: an array of another dtype, or ``skip`` that is no float32 array of shape ``()``.
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
    check_words("adam", hyper, HYPER, step, skip)
    state = {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq, "master": master}
    check_lists("adam", {"params": params, "grads": grads, **state})
    p, m, v, w = (all_contiguous(xs) for xs in (params, exp_avg, exp_avg_sq, master))
    backend("adam", hyper, step, skip, *params, *grads).adam(
        p, all_contiguous(grads), m, v, w, contiguous(hyper), step, mode=mode, skip=skip
    )
    for given, used in ((params, p), (exp_avg, m), (exp_avg_sq, v), (master, w)):
        bring_back(given, used)
