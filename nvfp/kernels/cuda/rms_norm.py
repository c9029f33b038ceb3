"""CUDA twin of `kernels.rms_norm`."""

from __future__ import annotations

from typing import Any

from nvfp.kernels.cuda import _norm
from nvfp.kernels.cuda._dense import FLOAT32
from nvfp.kernels.cuda._loader import Instance
from nvfp.kernels.cuda._xp import cp


def rms_norm(
    x: Any, weight: Any, *, eps: float = 1e-5, zero_centered_gamma: bool = False, out: Any | None = None
) -> tuple[Any, Any]:
    """See `nvfp.kernels.rms_norm.rms_norm`; x [rows, H]."""
    y = cp.empty(x.shape, x.dtype) if out is None else out
    rstd = cp.empty((x.shape[0],), FLOAT32)
    _norm.forward("rms_norm", x, (weight,), y, (rstd,), eps, zero_centered_gamma)
    return y, rstd


def rms_norm_vjp(
    dy: Any,
    x: Any,
    weight: Any,
    rstd: Any,
    *,
    zero_centered_gamma: bool = False,
    needs: tuple[bool, bool] = (True, True),
) -> tuple[Any | None, Any | None]:
    """See `nvfp.kernels.rms_norm.rms_norm_vjp`; dy and x [rows, H]."""
    dx, dweight, _ = _norm.vjp("rms_norm", dy, x, weight, (rstd,), zero_centered_gamma, (*needs, False))
    return dx, dweight


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return _norm.instances("rms_norm")
