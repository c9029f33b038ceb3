"""Many tensors at once: `amax_history_update` of delayed scaling, `scale_tensors` and `l2_norm` of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.kernels._check import FLOAT32, FLOATS, check_choice, check_out, check_word
from nvfp.kernels._dispatch import backend
from nvfp.kernels._prepared import prepared

ALGORITHMS = ("max", "most_recent")
TENSORS = frozenset(FLOATS[:3])  # float32, bfloat16, float16
PIECE = 8192  # elements whose squares are added before their sums are: a CUDA block's share


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
    prepare_amax_history_update(histories, scales, fp8_max, algorithm=algorithm, margin=margin)()


def prepare_amax_history_update(
    histories: Sequence[Any],
    scales: Sequence[Any],
    fp8_max: Sequence[tuple[float, ...]],
    *,
    algorithm: str = "max",
    margin: int = 0,
) -> Callable[[], None]:
    """Return a function that does one `amax_history_update` at each call.

    For state that is updated again and again at the same addresses: everything but the launch is done here. The
    function keeps the arrays alive.

    Args:
        histories: as there.
        scales: as there.
        fp8_max: as there.
        algorithm: as there.
        margin: as there.

    Raises:
        DTypeError: as there.
        ShapeError: as there.
        ArgumentError: as there.

    Example:
        >>> import numpy as np
        >>> history, scale = np.array([[7.0], [0.0]], np.float32), np.ones(1, np.float32)
        >>> update = prepare_amax_history_update([history], [scale], [(448.0,)])
        >>> update(), scale.tolist()
        (None, [64.0])
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
    if not histories:
        return _nothing
    update: Callable[[], None] = backend("multi_tensor", *histories, *scales).prepare_amax_history_update(
        histories, scales, fp8_max, algorithm=algorithm, margin=int(margin)
    )
    return update


def _nothing() -> None:
    """The update of no module."""


@partial(prepared, pinned=True)
def scale_tensors(
    xs: Sequence[Any], factor: Any, *, outs: Sequence[Any] | None = None, nonfinite: Any | None = None
) -> list[Any]:
    """Return ``x * factor`` of every tensor, and tell whether any holds a NaN or an infinity.

    What a loss scaler needs of all gradients: ``y_i = round(float32(x_i) * factor)`` with one factor kept on the
    device, and a flag that says "skip this step" without waiting for the GPU.

    Args:
        xs: n C-contiguous arrays of any shapes, each float32, bfloat16 or float16.
        factor: float32 word; e.g. 1 / loss scale, or the clipping factor of a global norm.
        outs: where to write, shapes as ``xs``, of any of the three dtypes; ``xs`` itself scales in place. Default:
            new arrays of the dtypes of ``xs``.
        nonfinite: float32 word that becomes 1 if any x (before scaling) is not finite, else stays as it is.

    Returns:
        The n results.

    Raises:
        DTypeError: another dtype, or words that are not float32.
        ShapeError: lists that do not fit, outs of other shapes, or arrays that are not C-contiguous.

    Numerics:
        One float32 product, one rounding to the result's dtype. CPU and CUDA give the same bits. One CUDA launch
        for 124 tensors of one pair of dtypes.

    Source:
        TE and Apex: multi_tensor_scale.

    Example:
        >>> import numpy as np
        >>> found, half = np.zeros((), np.float32), np.full((), 0.5, np.float32)
        >>> scale_tensors([np.array([2.0, np.inf], np.float32)], half, nonfinite=found)[0].tolist(), found.item()
        ([1.0, inf], 1.0)
    """
    op = "scale_tensors"
    _check_tensors(op, xs)
    check_word(op, "factor", factor)
    if nonfinite is not None:
        check_word(op, "nonfinite", nonfinite)
    if outs is not None:
        _check_tensors(op, outs)
        if len(outs) != len(xs):
            raise ShapeError(message(op, "one out per tensor", f"{len(outs)} for {len(xs)}", "pass as many"))
        for x, out in zip(xs, outs):
            check_out(op, out, x.shape, out.dtype)
    found: list[Any] = backend("multi_tensor", factor, *xs, *(outs or ()), nonfinite).scale_tensors(
        xs, factor, outs=outs, nonfinite=nonfinite
    )
    return found


@partial(prepared, pinned=True)
def l2_norm(xs: Sequence[Any], *, like: Any | None = None) -> Any:
    """Return the Euclidean norm of all tensors together, ``sqrt(sum_i sum_j x_ij^2)``.

    Args:
        xs: C-contiguous arrays of any shapes, each float32, bfloat16 or float16.
        like: an array whose device the result is on if ``xs`` is empty.

    Returns:
        float32 word, on the device of the tensors (0 of none).

    Raises:
        DTypeError: another dtype.
        ShapeError: an array that is not C-contiguous.

    Numerics:
        Squares are summed in float32 inside pieces of `PIECE` elements, the pieces in float64, in a fixed order: the
        same call gives the same bits. Overflows to inf only where the squares of a piece do.
        One CUDA launch for 124 tensors of one dtype, and one for the end.

    Source:
        TE and Apex: multi_tensor_l2norm.

    Example:
        >>> import numpy as np
        >>> l2_norm([np.array([3.0], np.float32), np.array([[4.0]], np.float32)]).item()
        5.0
    """
    _check_tensors("l2_norm", xs)
    return backend("multi_tensor", *xs, like).l2_norm(xs, like=like)


def _check_tensors(op: str, xs: Sequence[Any]) -> None:
    for x in xs:
        if x.dtype not in TENSORS:
            expected = "float32, bfloat16 or float16 tensors"
            raise DTypeError(message(op, expected, x.dtype, "cast it with x.astype"))
        if not x.flags.c_contiguous:
            raise ShapeError(message(op, "C-contiguous tensors", f"strides {x.strides}", "copy it first"))


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
