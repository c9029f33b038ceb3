"""What the contracts of `layer_norm` and `rms_norm` share: checks, and arrays seen as rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.kernels._check import FLOAT32, FLOAT32_MAX
from nvfp.kernels._dense import check_computed, contiguous


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
