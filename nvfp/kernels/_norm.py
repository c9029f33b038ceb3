"""What the contracts of `layer_norm` and `rms_norm` share: checks, and arrays seen as rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.kernels._check import FLOAT32, FLOAT32_MAX, check_out
from nvfp.kernels._dense import check_computed, check_like, contiguous


def check_norm(op: str, x: Any, weight: Any, bias: Any | None = None) -> None:
    """Raise unless x is [..., H] and the parameters are [H], of dtypes that are computed."""
    check_computed(op, "x", x)
    check_computed(op, "weight", weight)
    if x.ndim == 0:
        raise ShapeError(message(op, "x [..., H]", x.shape, "pass at least one axis"))
    wanted = (x.shape[-1],)
    if weight.shape != wanted:
        raise ShapeError(message(op, f"weight {wanted}", weight.shape, "give one value for each feature"))
    if bias is None:
        return
    if bias.shape != wanted:
        raise ShapeError(message(op, f"bias {wanted}", bias.shape, "give one value for each feature"))
    if bias.dtype != weight.dtype:
        raise DTypeError(message(op, f"bias of {weight.dtype}, as weight", bias.dtype, "cast one of them"))


def check_eps(op: str, eps: float) -> float:
    """Return ``eps`` as a float; raise unless it is a number of at least 0 that float32 holds."""
    if isinstance(eps, bool) or not isinstance(eps, int | float | np.floating) or not 0 <= eps <= FLOAT32_MAX:
        raise ArgumentError(message(op, "a finite float32 eps >= 0", repr(eps), "pass e.g. 1e-5"))
    return float(eps)


def check_statistic(op: str, name: str, s: Any, x: Any) -> None:
    """Raise unless ``s`` is what the forward pass of ``x`` returned: float32, one value a row."""
    rows = row_count(x)
    if s.shape != (rows,) or s.dtype != FLOAT32:
        do = "pass what the forward pass returned"
        raise ShapeError(message(op, f"{name} as float32 ({rows},)", f"{s.dtype} {s.shape}", do))


def row_count(x: Any) -> int:
    """Return the number of rows of an array [..., H]."""
    return math.prod(x.shape[:-1])


def as_rows(x: Any) -> Any:
    """Return an array [..., H] as contiguous rows [M, H]."""
    x = contiguous(x)
    return x if x.ndim == 2 else x.reshape(row_count(x), x.shape[-1])


def check_residual(op: str, x: Any, residual: Any | None, total: Any | None) -> None:
    """Raise unless residual and total fit x, or neither is there."""
    if (residual is None) != (total is None):
        raise ArgumentError(message(op, "residual= and total= together", "one of them", "pass both, or neither"))
    if residual is not None:
        check_like(op, "residual", residual, x)
        check_out(op, total, x.shape, x.dtype)


def residual_rows(residual: Any | None, total: Any | None) -> tuple[Any | None, Any | None]:
    """Return both as contiguous rows; what takes the sum is ``total`` itself where a kernel can write it."""
    return (None, None) if residual is None else (as_rows(residual), as_rows(total))


def check_normalized(op: str, x: Any, f: Any) -> None:
    """Raise unless ``f`` (`kernels.input_fn.Normalized`) fits x [..., H]."""
    if f.kind not in ("layer_norm", "rms_norm"):
        raise ArgumentError(message(op, "kind 'layer_norm' or 'rms_norm'", repr(f.kind), "name one of these"))
    if f.kind == "rms_norm" and (f.bias is not None or f.mean is not None):
        raise ArgumentError(message(op, "no bias and no mean with rms_norm", "one", "leave them out"))
    check_norm(op, x, f.weight, f.bias)
    check_eps(op, f.eps)
    for name, statistic in (("mean", f.mean), ("rstd", f.rstd)):
        if statistic is not None:
            check_statistic(op, name, statistic, x)
