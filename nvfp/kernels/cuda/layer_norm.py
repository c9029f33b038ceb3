"""CUDA twin of `kernels.layer_norm`."""

from __future__ import annotations

from typing import Any

from nvfp.kernels.cuda import _norm
from nvfp.kernels.cuda._loader import Instance


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
    added = () if residual is None else (residual, total)
    call = _norm.forward("layer_norm", x, weight, bias, out, eps, zero_centered_gamma, *added)
    y, mean, rstd = call(x, weight, bias, out, *added)
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
    return _norm.vjp("layer_norm", dy, x, weight, (mean, rstd), zero_centered_gamma, needs, add)


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return _norm.instances("layer_norm")
