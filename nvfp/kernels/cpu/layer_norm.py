"""CPU twin of `kernels.layer_norm`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.cpu import _norm


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
    """See `nvfp.kernels.layer_norm.layer_norm`; x [rows, H]."""
    y = np.empty(x.shape, x.dtype) if out is None else out
    mean, rstd = _norm.forward(x, weight, bias, eps, zero_centered_gamma, True, y, residual, total)
    return y, mean, rstd


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
    """See `nvfp.kernels.layer_norm.layer_norm_vjp`; dy and x [rows, H]."""
    return _norm.vjp(dy, x, weight, mean, rstd, zero_centered_gamma, True, needs, add)
