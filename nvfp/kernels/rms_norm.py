"""`rms_norm` and `rms_norm_vjp`: rows with mean square 1, scaled."""

from __future__ import annotations

from typing import Any

from nvfp.kernels._check import check_out
from nvfp.kernels._dense import check_like, contiguous, deliver, plain_out
from nvfp.kernels._dispatch import backend
from nvfp.kernels._norm import (
    as_rows,
    check_eps,
    check_norm,
    check_residual,
    check_statistic,
    residual_rows,
)
from nvfp.kernels._prepared import prepared


@prepared
def rms_norm(
    x: Any,
    weight: Any,
    *,
    eps: float = 1e-5,
    zero_centered_gamma: bool = False,
    residual: Any | None = None,
    total: Any | None = None,
    out: Any | None = None,
) -> tuple[Any, Any]:
    """Return ``y = x rstd g`` over the last axis, and the statistic.

    ``rstd = 1 / sqrt(sum x^2 / H + eps)`` for a row of H values, and ``g = weight``, or ``1 + weight`` if
    ``zero_centered_gamma``.

    Args:
        x: raw array [..., H] of float32, bfloat16 or float16; any strides.
        weight: [H], of any of these dtypes.
        eps: keeps rows of zeros finite; at least 0.
        zero_centered_gamma: ``weight`` counts from 1.
        residual: like ``x``, or None: ``x + residual``, rounded to their dtype, takes the place of x.
        total: goes with it: the array that takes this sum, of that shape and dtype; may be ``x`` or ``residual``.
        out: array of the shape and dtype of ``x``, any strides; may be ``x`` itself.

    Returns:
        ``(y, rstd)``: y of the shape and dtype of ``x``; rstd float32 [rows], rows in order.

    Raises:
        DTypeError: another dtype.
        ShapeError: a 0-d ``x``, a weight that is not [H], or an ``out`` that does not fit.
        ArgumentError: a negative or infinite ``eps``, or one of residual and total alone.

    Numerics:
        float32, rounded once to the dtype of ``x``. A row with NaN is NaN; one whose squares add up to more
        than float32 holds is 0 where it is finite, and NaN where it is inf. CPU and CUDA agree within
        tolerance; each repeats its bits.

    Source:
        TE numerics B8.

    Example:
        >>> import numpy as np
        >>> y, rstd = rms_norm(np.array([[2.0, -2.0]], np.float32), np.array([5.0, 1.0], np.float32), eps=0.0)
        >>> y.tolist(), rstd.tolist()
        ([[5.0, -1.0]], [0.5])
    """
    check_norm("rms_norm", x, weight)
    eps = check_eps("rms_norm", eps)
    check_out("rms_norm", out, x.shape, x.dtype)
    check_residual("rms_norm", x, residual, total)
    plain = plain_out(out)
    added, taken = residual_rows(residual, total)
    y, rstd = backend("rms_norm", x, weight, residual, total, out).rms_norm(
        as_rows(x),
        contiguous(weight),
        eps=eps,
        zero_centered_gamma=bool(zero_centered_gamma),
        residual=added,
        total=taken,
        out=None if plain is None else as_rows(plain),
    )
    if taken is not None:
        deliver(taken.reshape(x.shape) if plain_out(total) is None else total, total)
    return (out if plain is not None else deliver(y.reshape(x.shape), out)), rstd


@prepared
def rms_norm_vjp(
    dy: Any,
    x: Any,
    weight: Any,
    rstd: Any,
    *,
    zero_centered_gamma: bool = False,
    needs: tuple[bool, bool] = (True, True),
    add: Any | None = None,
) -> tuple[Any | None, Any | None]:
    """Return the gradients of `rms_norm`.

    With ``t = x rstd`` and ``u = dy g``: ``dx = rstd (u - t mean(u t))`` over each row and
    ``dweight = sum dy t`` over all rows.

    Args:
        dy: gradient of y, of the shape and dtype of ``x``; any strides.
        x: the input of `rms_norm`.
        weight: its weight.
        rstd: [rows], what it returned.
        zero_centered_gamma: as there.
        needs: which of dx and dweight are wanted.
        add: another gradient of x, of its shape and dtype, or None: it is added to the rounded dx.

    Returns:
        ``(dx, dweight)``: None where not wanted; dx in the dtype of ``x``, dweight [H] in that of ``weight``
        (zeros if there are no rows).

    Raises:
        DTypeError: dtypes that do not fit.
        ShapeError: shapes that do not fit.

    Numerics:
        float32, each result rounded once. Sums over rows are taken in two stages in a fixed order: the same
        bits at every call (on CUDA they depend on the number of multiprocessors).

    Source:
        TE numerics B8.

    Example:
        >>> import numpy as np
        >>> x, one = np.array([[3.0, 4.0]], np.float32), np.ones(2, np.float32)
        >>> dx, dweight = rms_norm_vjp(x, x, one, np.array([0.5], np.float32))
        >>> dx.tolist(), dweight.tolist()
        ([[-3.1875, -4.25]], [4.5, 8.0])
    """
    check_norm("rms_norm_vjp", x, weight)
    check_like("rms_norm_vjp", "dy", dy, x)
    if add is not None:
        check_like("rms_norm_vjp", "add", add, x)
    check_statistic("rms_norm_vjp", "rstd", rstd, x)
    dx, dweight = backend("rms_norm", dy, x, weight, rstd, add).rms_norm_vjp(
        as_rows(dy),
        as_rows(x),
        contiguous(weight),
        contiguous(rstd),
        zero_centered_gamma=bool(zero_centered_gamma),
        needs=needs,
        add=None if add is None else as_rows(add),
    )
    return None if dx is None else dx.reshape(x.shape), dweight
