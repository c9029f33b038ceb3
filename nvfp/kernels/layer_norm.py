"""`layer_norm` and `layer_norm_vjp`: rows with mean 0 and variance 1, scaled and shifted."""

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
def layer_norm(
    x: Any,
    weight: Any,
    bias: Any | None,
    *,
    eps: float = 1e-5,
    zero_centered_gamma: bool = False,
    residual: Any | None = None,
    total: Any | None = None,
    out: Any | None = None,
) -> tuple[Any, Any, Any]:
    """Return ``y = (x - mean) rstd g + bias`` over the last axis, and the two statistics.

    ``mean`` is that of a row of H values, ``rstd = 1 / sqrt(var + eps)`` with the biased variance
    ``var = sum (x - mean)^2 / H``, and ``g = weight``, or ``1 + weight`` if ``zero_centered_gamma``.

    Args:
        x: raw array [..., H] of float32, bfloat16 or float16; any strides.
        weight: [H], of any of these dtypes.
        bias: [H] in the dtype of ``weight``, or None.
        eps: keeps rows of equal values finite; at least 0.
        zero_centered_gamma: ``weight`` counts from 1.
        residual: like ``x``, or None: ``x + residual``, rounded to their dtype, takes the place of x.
        total: goes with it: the array that takes this sum, of that shape and dtype; may be ``x`` or ``residual``.
        out: array of the shape and dtype of ``x``, any strides; may be ``x`` itself.

    Returns:
        ``(y, mean, rstd)``: y of the shape and dtype of ``x``; mean and rstd float32 [rows], rows in order.

    Raises:
        DTypeError: another dtype, or weight and bias that differ.
        ShapeError: a 0-d ``x``, parameters that are not [H], or an ``out`` that does not fit.
        ArgumentError: a negative or infinite ``eps``, or one of residual and total alone.

    Numerics:
        float32, rounded once to the dtype of ``x``. The variance is taken from differences to the mean, so a
        large common offset costs no digits. A row with NaN or inf is NaN, its neighbours are exact; one
        whose squared differences add up to more than float32 holds is not normalised (rstd 0, or NaN). CPU
        and CUDA agree within tolerance; each repeats its bits.

    Source:
        TE numerics B8.

    Example:
        >>> import numpy as np
        >>> x, one = np.array([[1.0, 3.0]], np.float32), np.ones(2, np.float32)
        >>> y, mean, rstd = layer_norm(x, one, None, eps=0.0)
        >>> y.tolist(), mean.tolist(), rstd.tolist()
        ([[-1.0, 1.0]], [2.0], [1.0])
    """
    check_norm("layer_norm", x, weight, bias)
    eps = check_eps("layer_norm", eps)
    check_out("layer_norm", out, x.shape, x.dtype)
    check_residual("layer_norm", x, residual, total)
    plain = plain_out(out)
    added, taken = residual_rows(residual, total)
    y, mean, rstd = backend("layer_norm", x, weight, bias, residual, total, out).layer_norm(
        as_rows(x),
        contiguous(weight),
        None if bias is None else contiguous(bias),
        eps=eps,
        zero_centered_gamma=bool(zero_centered_gamma),
        residual=added,
        total=taken,
        out=None if plain is None else as_rows(plain),
    )
    if taken is not None:
        deliver(taken.reshape(x.shape) if plain_out(total) is None else total, total)
    return (out if plain is not None else deliver(y.reshape(x.shape), out)), mean, rstd


@prepared
def layer_norm_vjp(
    dy: Any,
    x: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    *,
    zero_centered_gamma: bool = False,
    needs: tuple[bool, bool, bool] = (True, True, True),
    add: Any | None = None,
) -> tuple[Any | None, Any | None, Any | None]:
    """Return the gradients of `layer_norm`.

    With ``t = (x - mean) rstd`` and ``u = dy g``: ``dx = rstd (u - mean(u) - t mean(u t))`` over each row,
    ``dweight = sum dy t`` and ``dbias = sum dy`` over all rows.

    Args:
        dy: gradient of y, of the shape and dtype of ``x``; any strides.
        x: the input of `layer_norm`.
        weight: its weight.
        mean: [rows], what it returned.
        rstd: [rows], what it returned.
        zero_centered_gamma: as there.
        needs: which of dx, dweight and dbias are wanted.
        add: another gradient of x, of its shape and dtype, or None: it is added to the rounded dx.

    Returns:
        ``(dx, dweight, dbias)``: None where not wanted; dx in the dtype of ``x``, the others [H] in that of
        ``weight`` (zeros if there are no rows).

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
        >>> x, one = np.array([[1.0, 3.0]], np.float32), np.ones(2, np.float32)
        >>> _, mean, rstd = layer_norm(x, one, None, eps=0.0)
        >>> dx, dweight, dbias = layer_norm_vjp(np.array([[1.0, 2.0]], np.float32), x, one, mean, rstd)
        >>> dx.tolist(), dweight.tolist(), dbias.tolist()
        ([[0.0, 0.0]], [-1.0, 2.0], [1.0, 2.0])
    """
    check_norm("layer_norm_vjp", x, weight)
    check_like("layer_norm_vjp", "dy", dy, x)
    if add is not None:
        check_like("layer_norm_vjp", "add", add, x)
    check_statistic("layer_norm_vjp", "mean", mean, x)
    check_statistic("layer_norm_vjp", "rstd", rstd, x)
    dx, dweight, dbias = backend("layer_norm", dy, x, weight, mean, rstd, add).layer_norm_vjp(
        as_rows(dy),
        as_rows(x),
        contiguous(weight),
        contiguous(mean),
        contiguous(rstd),
        zero_centered_gamma=bool(zero_centered_gamma),
        needs=needs,
        add=None if add is None else as_rows(add),
    )
    return None if dx is None else dx.reshape(x.shape), dweight, dbias
