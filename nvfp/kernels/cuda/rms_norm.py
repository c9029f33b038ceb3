"""CUDA twin of `kernels.rms_norm`."""

from __future__ import annotations

from typing import Any

from nvfp.kernels.cuda import _norm
from nvfp.kernels.cuda._loader import Instance


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
    added = () if residual is None else (residual, total)
    call = _norm.forward("rms_norm", x, weight, None, out, eps, zero_centered_gamma, *added)
    y, rstd = call(x, weight, None, out, *added)
    return y, rstd


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
    dx, dweight, _ = _norm.vjp("rms_norm", dy, x, weight, (rstd,), zero_centered_gamma, (*needs, False), add)
    return dx, dweight


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return _norm.instances("rms_norm")
