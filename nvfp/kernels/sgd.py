"""`sgd`: stochastic gradient descent of many parameters at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from nvfp.kernels._dense import contiguous
from nvfp.kernels._dispatch import backend
from nvfp.kernels._prepared import prepared
from nvfp.kernels._update import all_contiguous, bring_back, check_lists, check_words

HYPER = ("lr", "momentum", "dampening", "weight_decay")


@partial(prepared, pinned=True)
def sgd(
    params: Sequence[Any],
    grads: Sequence[Any],
    momentum: Sequence[Any | None],
    master: Sequence[Any | None],
    hyper: Any,
    step: Any,
    *,
    nesterov: bool = False,
    skip: Any | None = None,
) -> None:
    """Advance ``step`` by one and update parameters and momentum in place.

    With ``t`` the new step, ``b`` the momentum buffer and ``p`` the master copy where there is one, else the
    parameter::

        g = g + wd p
        b = g  if t is 1,  else  mu b + (1 - damp) g         (with a buffer)
        u = g + mu b  (nesterov),  else  b;  g without a buffer
        p = p - lr u

    and the parameter becomes ``p`` rounded to its dtype.

    Args:
        params: raw arrays of float32, bfloat16 or float16, any shapes; written.
        grads: one per parameter, of its shape; float32, bfloat16 or float16.
        momentum: b, float32, one per parameter (written), or None: plain descent of that parameter.
        master: float32 copy of each parameter (written), or None.
        hyper: float32 [4] on the device: lr, mu, damp, wd.
        step: int32 word on the device; written. Its first step, not that of one parameter, fills the buffers: a
            buffer that joins later starts from what it holds (0: as without dampening).
        nesterov: look ahead by one step of the momentum; without effect where there is no buffer.
        skip: float32 word on the device, or None. Unless it is 0 (NaN counts as set) nothing is written: parameters,
            buffers, masters and ``step`` stay bit for bit as they are.

    Raises:
        DTypeError: an array of another dtype, or ``skip`` that is no float32 array of shape ``()``.
        ShapeError: arrays of one parameter that differ in shape, lists of different lengths, or a wrong
            ``hyper`` or ``step``.
        ArgumentError: an array to be written that is read-only.

    Numerics:
        Every operation above is one float32 operation, in the order written, without fused multiply-adds;
        1 - damp is float32. CPU and CUDA so give the same bits.

    Source:
        torch.optim.SGD; Sutskever et al., "On the importance of initialization and momentum in deep learning".

    Example:
        >>> import numpy as np
        >>> p, b = np.ones(2, np.float32), np.zeros(2, np.float32)
        >>> hyper, step = np.array([0.5, 0.5, 0.0, 0.0], np.float32), np.zeros((), np.int32)
        >>> for _ in range(2):
        ...     sgd([p], [np.array([1.0, -1.0], np.float32)], [b], [None], hyper, step)
        >>> p.tolist(), b.tolist(), step.item()
        ([-0.25, 2.25], [1.5, -1.5], 2)
    """
    check_words("sgd", hyper, HYPER, step, skip)
    check_lists("sgd", {"params": params, "grads": grads, "momentum": momentum, "master": master})
    p, m, w = (all_contiguous(xs) for xs in (params, momentum, master))
    backend("sgd", hyper, step, skip, *params, *grads).sgd(
        p, all_contiguous(grads), m, w, contiguous(hyper), step, nesterov=bool(nesterov), skip=skip
    )
    for given, used in ((params, p), (momentum, m), (master, w)):
        bring_back(given, used)
