"""`amax_history_update`: the delayed-scaling update of many modules at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.kernels._check import FLOAT32, check_choice
from nvfp.kernels._dispatch import backend

ALGORITHMS = ("max", "most_recent")


def amax_history_update(
    histories: Sequence[Any],
    scales: Sequence[Any],
    fp8_max: Sequence[tuple[float, ...]],
    *,
    algorithm: str = "max",
    margin: int = 0,
) -> None:
    """Set new scales from amax histories and roll the histories, in place.

    For each module i and each of its tensors j with ``h = histories[i][:, j]``, unless ``h[0]`` is 0 (the
    tensor was not seen in this step: nothing changes)::

        amax = max(h)  ("max")  or  h[0]  ("most_recent")
        scale = min(fl32(fl32(fp8_max * 2^-margin) / amax), FLT_MAX)  if 0 < amax < inf, else as before
        h[L-1], h[i], h[0] = h[0], h[i+1] for 0 < i < L-1, 0

    Args:
        histories: float32 [L, n], one per module, C-contiguous; row 0 holds the amax of this step. Written.
        scales: float32 [n], one per module, C-contiguous: the multipliers. Written.
        fp8_max: n largest values per module, e.g. ``(448.0, 448.0, 448.0)``.
        algorithm: ``"max"`` or ``"most_recent"``.
        margin: the scale is made ``2**margin`` times smaller.

    Raises:
        DTypeError: an array that is not float32.
        ShapeError: lists or arrays that do not fit, or that are not C-contiguous.
        ArgumentError: an unknown algorithm, a margin that is no integer, or a read-only array.

    Numerics:
        float32 operations as written; NaN in a history does not count. CPU and CUDA give the same bits.
        One CUDA launch for 80 modules.

    Source:
        TE numerics B2, the rule of the fused kernel.

    Example:
        >>> import numpy as np
        >>> history, scale = np.array([[7.0], [0.0], [0.0], [2.0]], np.float32), np.ones(1, np.float32)
        >>> amax_history_update([history], [scale], [(448.0,)])
        >>> scale.tolist(), history[:, 0].tolist()
        ([64.0], [0.0, 0.0, 2.0, 7.0])
    """
    op = "amax_history_update"
    check_choice(op, "algorithm", algorithm, ALGORITHMS)
    if not isinstance(margin, int | np.integer):
        raise ArgumentError(message(op, "an integer margin", repr(margin), "pass a power of two's exponent"))
    if not len(histories) == len(scales) == len(fp8_max):
        got = f"{len(histories)}, {len(scales)} and {len(fp8_max)}"
        raise ShapeError(message(op, "lists of one length", got, "pass one entry per module"))
    for history, scale, top in zip(histories, scales, fp8_max):
        _check_one(op, history, scale, top)
    if histories:
        backend("multi_tensor", *histories, *scales).amax_history_update(
            histories, scales, fp8_max, algorithm=algorithm, margin=int(margin)
        )


def _check_one(op: str, history: Any, scale: Any, top: tuple[float, ...]) -> None:
    if history.dtype != FLOAT32 or scale.dtype != FLOAT32:
        raise DTypeError(message(op, "float32 state", f"{history.dtype} and {scale.dtype}", "keep state in float32"))
    if history.ndim != 2 or history.shape[0] == 0 or scale.shape != history.shape[1:] or len(top) != scale.shape[0]:
        got = f"{history.shape}, {scale.shape} and {len(top)} maxima"
        raise ShapeError(message(op, "history [L, n], scale [n] and n maxima", got, "give each tensor one column"))
    for x in (history, scale):
        if not x.flags.c_contiguous:
            got = f"strides {x.strides}"
            raise ShapeError(message(op, "C-contiguous state", got, "keep each state in its own array"))
        if isinstance(x, np.ndarray) and not x.flags.writeable:
            raise ArgumentError(message(op, "writeable state", "a read-only array", "pass the arrays themselves"))
