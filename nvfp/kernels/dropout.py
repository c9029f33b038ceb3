"""`dropout`, its gradient, and `advance_steps`: masks that are a pure function of seed, call, step and position."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from nvfp.errors import ArgumentError, DTypeError, message
from nvfp.kernels._check import check_out
from nvfp.kernels._dense import check_computed, check_like, contiguous, deliver, plain_out
from nvfp.kernels._dispatch import backend
from nvfp.kernels._prepared import prepared

LANE = 2  # of the four Philox streams of a call: 0 and 1 are stochastic rounding's, by rows and by columns
_INT64 = np.dtype(np.int64)


@prepared
def dropout(
    x: Any,
    p: float,
    *,
    key: int,
    ordinal: int,
    step: Any,
    residual: Any | None = None,
    offset: int = 0,
    out: Any | None = None,
) -> tuple[Any, Any]:
    """Return ``y = keep ? x / (1 - p) : 0`` (plus ``residual``) and the step that was used.

    Element number ``e = offset + i`` (i row-major in ``x``) takes word ``e % 4`` of Philox4x32-10 at the counter
    ``(e // 4 low, e // 4 high, 4 * ordinal + 2, step low)`` and the key's halves, and is kept if
    ``(word >> 8) * 2**-24 >= p``.

    Args:
        x: raw array of float32, bfloat16 or float16; any shape and strides.
        p: chance of being dropped, 0 to 1.
        key: the seed, 0 to 2**64 - 1.
        ordinal: number of the call within its step, 0 to 2**30 - 1.
        step: int64 array of shape ``()`` on the device of ``x``; read when the kernel runs, so a CUDA graph
            that replays sees the step of then.
        residual: array like ``x`` that is added.
        offset: element number of the first element (for a part of a larger array).
        out: array of the shape and dtype of ``x``, any strides; may be ``x`` or ``residual``.

    Returns:
        ``(y, used)``: y of the shape and dtype of ``x``; ``used`` a new int64 array of shape ``()`` with the value
        of ``step``: pass it to `dropout_vjp`, so that a step that has advanced in between does no harm.

    Raises:
        DTypeError: another dtype, a residual of another one, or a step that is no int64 word.
        ShapeError: a residual or an ``out`` that does not fit.
        ArgumentError: p, key, ordinal or offset out of range.

    Numerics:
        ``x * fl32(1 / (1 - p))`` in float32, rounded to the dtype of ``x``; then the residual is added in float32
        and rounded: the bits of dropout followed by an addition. A dropped element is +0 whatever it was (also
        inf and NaN). p = 0 keeps all, p = 1 drops all. CPU and CUDA give the same bits.

    Source:
        Srivastava et al.: Dropout (2014), inverted form; random words as `kernels.random`.

    Example:
        >>> import numpy as np
        >>> y, used = dropout(np.ones(8, np.float32), 0.5, key=7, ordinal=0, step=np.zeros((), np.int64))
        >>> y.tolist(), int(used)
        ([2.0, 2.0, 0.0, 0.0, 2.0, 0.0, 2.0, 2.0], 0)
    """
    _check("dropout", x, p, key, ordinal, step, offset)
    if residual is not None:
        check_like("dropout", "residual", residual, x)
    check_out("dropout", out, x.shape, x.dtype)
    y, used = backend("dropout", x, step, residual, out).dropout(
        contiguous(x), p, key=key, ordinal=ordinal, step=step,
        residual=None if residual is None else contiguous(residual), offset=offset, out=plain_out(out),
    )  # fmt: skip
    return deliver(y, out), used


@prepared
def dropout_vjp(
    dy: Any, p: float, *, key: int, ordinal: int, step: Any, offset: int = 0, out: Any | None = None
) -> Any:
    """Return ``dx = keep ? dy / (1 - p) : 0`` with the mask of `dropout`.

    Args:
        dy: gradient of the result of `dropout`; any strides.
        p: as given to `dropout`.
        key: as given to `dropout`.
        ordinal: as given to `dropout`.
        step: the ``used`` that `dropout` returned.
        offset: as given to `dropout`.
        out: array of the shape and dtype of ``dy``, any strides; may be ``dy``.

    Returns:
        An array of the shape and dtype of ``dy``. (The residual's gradient is ``dy`` itself.)

    Raises:
        DTypeError: another dtype, or a step that is no int64 word.
        ShapeError: an ``out`` that does not fit.
        ArgumentError: p, key, ordinal or offset out of range.

    Numerics:
        As `dropout`: one product in float32, one rounding, the same bits on CPU and CUDA.

    Example:
        >>> import numpy as np
        >>> dropout_vjp(np.ones(4, np.float32), 0.5, key=7, ordinal=0, step=np.zeros((), np.int64)).tolist()
        [2.0, 2.0, 0.0, 0.0]
    """
    _check("dropout_vjp", dy, p, key, ordinal, step, offset)
    check_out("dropout_vjp", out, dy.shape, dy.dtype)
    twin = backend("dropout", dy, step, out)
    dx = twin.dropout_vjp(
        contiguous(dy), p, key=key, ordinal=ordinal, step=step, offset=offset, out=plain_out(out)
    )  # fmt: skip
    return deliver(dx, out)


@partial(prepared, pinned=True)
def advance_steps(steps: Sequence[Any]) -> None:
    """Add 1 to every step word, in place.

    Args:
        steps: int64 arrays of shape ``()`` on one device, each once.

    Raises:
        DTypeError: something else.
        ArgumentError: a read-only word.

    Numerics:
        Exact. One CUDA launch for 500 words.

    Example:
        >>> import numpy as np
        >>> word = np.zeros((), np.int64)
        >>> advance_steps([word])
        >>> int(word)
        1
    """
    for step in steps:
        check_step("advance_steps", step)
        if isinstance(step, np.ndarray) and not step.flags.writeable:
            raise ArgumentError(message("advance_steps", "writeable words", "a read-only array", "pass the word"))
    if steps:
        backend("dropout", *steps).advance_steps(steps)


def threshold(p: float) -> int:
    """Return how many of the 2**24 values of a word's upper 24 bits are dropped: ``u * 2**-24 < p``.

    Example:
        >>> threshold(0.0), threshold(0.5), threshold(1.0), threshold(1e-30)
        (0, 8388608, 16777216, 1)
    """
    scaled = float(p) * 2.0**24  # exact: a power of two
    return int(scaled) + (scaled > int(scaled))


def factor(p: float) -> np.float32:
    """Return ``fl32(1 / (1 - p))``; 0 for p = 1, where nothing is kept.

    Example:
        >>> factor(0.5), factor(1.0)
        (np.float32(2.0), np.float32(0.0))
    """
    return np.float32(0.0 if p == 1 else 1.0 / (1.0 - float(p)))


def check_probability(op: str, p: float) -> None:
    """Raise unless ``p`` is a number from 0 to 1."""
    if isinstance(p, bool) or not isinstance(p, int | float | np.floating) or not 0 <= p <= 1:
        raise ArgumentError(message(op, "a probability p from 0 to 1", repr(p), "pass e.g. p=0.1"))


def check_step(op: str, step: Any) -> None:
    """Raise unless ``step`` is an int64 array of shape ``()``."""
    if getattr(step, "shape", None) != () or step.dtype != _INT64 or isinstance(step, np.generic):
        got = f"{getattr(step, 'dtype', type(step).__name__)} {getattr(step, 'shape', '')}"
        raise DTypeError(message(op, "step as an int64 array of shape ()", got, "keep it as a 0-d array"))


def _check(op: str, x: Any, p: float, key: int, ordinal: int, step: Any, offset: int) -> None:
    check_computed(op, "dy" if op == "dropout_vjp" else "x", x)
    check_probability(op, p)
    check_step(op, step)
    for name, value, bits in (("key", key, 64), ("ordinal", ordinal, 30), ("offset", offset, 63)):
        if not 0 <= value < 1 << bits:
            raise ArgumentError(message(op, f"0 <= {name} < 2**{bits}", value, "choose it in that range"))
