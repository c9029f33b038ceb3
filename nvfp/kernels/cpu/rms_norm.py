"""CPU twin of `kernels.rms_norm`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.cpu import _norm


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
    """See `nvfp.kernels.rms_norm.rms_norm`; x [rows, H]."""
    y = np.empty(x.shape, x.dtype) if out is None else out
    return y, _norm.forward(x, weight, None, eps, zero_centered_gamma, False, y, residual, total)[1]


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
    """See `nvfp.kernels.rms_norm.rms_norm_vjp`; dy and x [rows, H]."""
    mean = np.zeros(rstd.shape, np.float32)
    dx, dweight, _ = _norm.vjp(dy, x, weight, mean, rstd, zero_centered_gamma, False, (*needs, False), add)
    return dx, dweight
