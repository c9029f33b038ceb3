"""`softmax` and `softmax_vjp`: scaled, masked and causal softmax over the last axis."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nvfp.errors import DTypeError, ShapeError, message
from nvfp.kernels._check import FLOAT32, check_choice, check_factor, check_out
from nvfp.kernels._dense import check_computed, check_computed_dtype, contiguous, deliver, plain_out
from nvfp.kernels._dispatch import backend
from nvfp.kernels._prepared import prepared

CAUSAL = ("top_left", "bottom_right")
_BOOL = np.dtype(np.bool_)


class Visible(NamedTuple):
    """Which columns the rows of a matrix see, apart from the mask.

    Attributes:
        rows: R, rows of each matrix.
        first: columns that row 0 sees (may be negative).
        step: how many more each further row sees: 1 for causal, 0 for all.
    """

    rows: int
    first: int
    step: int


def visible(causal: str | None, rows: int, columns: int) -> Visible:
    """Return the columns that the rows of a matrix [R, C] see.

    Example:
        >>> visible("top_left", 2, 5), visible("bottom_right", 2, 5)
        (Visible(rows=2, first=1, step=1), Visible(rows=2, first=4, step=1))
    """
    if causal is None:
        return Visible(rows, columns, 0)
    return Visible(rows, 1 if causal == "top_left" else 1 + columns - rows, 1)


@prepared
def softmax(
    x: Any,
    *,
    scale: float = 1.0,
    mask: Any | None = None,
    causal: str | None = None,
    sink: Any | None = None,
    dtype: np.dtype | None = None,
    out: Any | None = None,
    tops: Any | None = None,
) -> tuple[Any, Any]:
    """Return the softmax over the last axis, and the logarithm of each row's sum of exponentials.

    ``y[r, c] = exp(scale x[r, c] - lse[r])`` with ``lse[r] = log sum_c exp(scale x[r, c])``, both over the columns
    that row r sees; y is 0 in the others. A sink is one more logit of each row that gets no y: exp(sink) joins the sum.

    Args:
        x: [..., R, C] of float32, bfloat16 or float16; any strides. One axis counts as one row.
        scale: multiplies x first.
        mask: bool, broadcastable to x; True hides.
        causal: None; ``"top_left"``: row r sees the columns up to r; ``"bottom_right"``: up to ``r + C - R``, so
            that the last row sees all.
        sink: a number, or float32 [H] with x [..., H, R, C].
        dtype: of y: float32, bfloat16 or float16; that of ``out``, else of x, unless given.
        out: array of x's shape and ``dtype``, any strides; may be x itself (in place).
        tops: float32 [..., R], contiguous, where the largest ``scale x`` of each row is written, -inf if it sees none.

    Returns:
        ``(y, lse)``: y of x's shape; lse float32 [..., R]. A row that sees nothing (or only -inf) is 0, its lse -inf,
        or the sink.

    Raises:
        DTypeError: x or dtype another one, or a mask that is not bool.
        ShapeError: no axis, a causal x of one axis, or a mask or out that does not fit.
        ArgumentError: another ``causal``, or a scale that float32 does not hold.
        DeviceError: arrays on different devices.

    Numerics:
        float32: ``scale x`` is rounded, differences to the row's largest value are exponentiated, sums are float32
        (CUDA, per thread and then in a fixed tree) or float64 (CPU); y is rounded once. A NaN or +inf among the
        columns that a row sees makes the row NaN. The two devices agree within tolerance; each repeats its bits.

    Source:
        TE numerics B8; TE features A5 (mask types, True = hidden).

    Example:
        >>> import numpy as np
        >>> y, lse = softmax(np.zeros((2, 3), np.float32), causal="top_left")
        >>> y.tolist(), np.exp(lse).round(4).tolist()
        ([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]], [1.0, 2.0])
    """
    dtype, factor = _check(x, mask, causal, dtype, out), check_factor("softmax", "scale", scale)
    sink = _sink(x, sink, tops)
    shape = x.shape
    matrix = shape if len(shape) > 1 else (1, *shape)
    if mask is not None:
        mask = mask.reshape((1,) * (len(matrix) - mask.ndim) + mask.shape)
    target = plain_out(out)
    y, lse = backend("softmax", x, mask, out, tops, None if isinstance(sink, float) else sink).softmax(
        contiguous(x).reshape(matrix), scale=factor, mask=mask, causal=causal, dtype=dtype,
        out=None if target is None else target.reshape(matrix), sink=sink, tops=tops,
    )  # fmt: skip
    lse = lse.reshape(shape[:-1])
    return (out if target is not None else deliver(y.reshape(shape), out)), lse


@prepared
def softmax_vjp(y: Any, dy: Any, *, scale: float = 1.0, dtype: np.dtype | None = None, out: Any | None = None) -> Any:
    """Return the gradient of `softmax` for its x.

    ``dx = scale y (dy - sum_c y dy)``, the sum over each row.

    Args:
        y: [..., C], from `softmax`; float32, bfloat16 or float16; any strides.
        dy: gradient of y, of the same shape; float32, bfloat16 or float16; any strides.
        scale: as given to `softmax`.
        dtype: of dx; that of ``out``, else of dy, unless given.
        out: array of y's shape and ``dtype``, any strides; may be dy or y itself (in place).

    Returns:
        dx, of y's shape. 0 where y is 0 (so in hidden columns and rows) unless the row's dy holds NaN or inf.

    Raises:
        DTypeError: a dtype other than the three.
        ArgumentError: a scale that float32 does not hold.
        ShapeError: shapes that do not fit.
        DeviceError: arrays on different devices.

    Numerics:
        float32, rounded once; sums as in `softmax`. The two devices agree within tolerance.

    Source:
        TE numerics B8.

    Example:
        >>> import numpy as np
        >>> y, dy = np.array([[0.5, 0.5]], np.float32), np.array([[1.0, 0.0]], np.float32)
        >>> softmax_vjp(y, dy).tolist()
        [[0.25, -0.25]]
    """
    op = "softmax_vjp"
    check_computed(op, "y", y)
    check_computed(op, "dy", dy)
    if y.ndim == 0 or dy.shape != y.shape:
        got = f"{y.shape} and {dy.shape}"
        raise ShapeError(message(op, "y [..., C] and dy of one shape", got, "pass y's gradient"))
    if dtype is None:
        dtype = dy.dtype if out is None else out.dtype
    check_computed_dtype(op, dtype)
    check_out(op, out, y.shape, dtype)
    factor = check_factor(op, "scale", scale)
    rows, target = (math.prod(y.shape[:-1]), y.shape[-1]), plain_out(out)
    dx = backend("softmax", y, dy, out).softmax_vjp(
        contiguous(y).reshape(rows), contiguous(dy).reshape(rows), scale=factor, dtype=dtype,
        out=None if target is None else target.reshape(rows),
    )  # fmt: skip
    return out if target is not None else deliver(dx.reshape(y.shape), out)


def _check(x: Any, mask: Any | None, causal: str | None, dtype: np.dtype | None, out: Any | None) -> np.dtype:
    """Raise unless the arguments fit; return the dtype of y."""
    check_computed("softmax", "x", x)
    if x.ndim == 0 or (causal is not None and x.ndim < 2):
        wanted = "x [..., C]" if causal is None else "x [..., R, C] with causal"
        raise ShapeError(message("softmax", wanted, x.shape, "add an axis"))
    if causal is not None:
        check_choice("softmax", "causal", causal, CAUSAL)
    if dtype is None:
        dtype = x.dtype if out is None else out.dtype
    check_computed_dtype("softmax", dtype)
    check_out("softmax", out, x.shape, dtype)
    if mask is not None:
        check_mask("softmax", mask, x.shape)
    return dtype


def _sink(x: Any, sink: Any | None, tops: Any | None) -> Any:
    """Raise unless sink and tops fit; return the sink, a number as a float."""
    for name, words, shape in (("sink", sink, x.shape[-3:-2]), ("tops", tops, x.shape[:-1])):
        if words is None or (name == "sink" and not hasattr(words, "shape")):
            continue
        if words.dtype != FLOAT32 or words.shape != shape or not shape:
            got = f"{words.dtype} {words.shape}"
            raise ShapeError(
                message("softmax", f"{name} as float32 {shape or '[H] with [H, R, C]'}", got, "reshape it")
            )
    return check_factor("softmax", "sink", sink) if sink is not None and not hasattr(sink, "shape") else sink


def check_mask(op: str, mask: Any, shape: tuple[int, ...]) -> None:
    """Raise unless ``mask`` is a bool array that broadcasts to ``shape``."""
    if getattr(mask, "dtype", None) != _BOOL:
        got = getattr(mask, "dtype", type(mask).__name__)
        raise DTypeError(message(op, "a bool mask (True hides)", got, "compare to get one, e.g. scores == 0"))
    lengths = mask.shape[::-1]
    if mask.ndim > len(shape) or any(n not in (1, full) for n, full in zip(lengths, shape[::-1], strict=False)):
        padding = mask.ndim == 2 and len(shape) == 4
        do = "make its lengths equal or 1" + (", e.g. mask[:, None, None, :] of a padding mask" if padding else "")
        raise ShapeError(message(op, f"a mask that broadcasts to {shape}", mask.shape, do))
