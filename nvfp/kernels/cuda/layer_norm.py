"""CUDA twin of `kernels.layer_norm`."""

from __future__ import annotations

from typing import Any

from nvfp.kernels.cuda import _memory, _norm
from nvfp.kernels.cuda._dense import FLOAT32
from nvfp.kernels.cuda._loader import Instance
from nvfp.kernels.cuda._xp import cp


def layer_norm(
    x: Any,
    weight: Any,
    bias: Any | None,
    *,
    eps: float = 1e-5,
    zero_centered_gamma: bool = False,
    out: Any | None = None,
) -> tuple[Any, Any, Any]:
    """See `nvfp.kernels.layer_norm.layer_norm`; x [rows, H]."""
    rows = x.shape[0]
    y = cp.empty(x.shape, x.dtype) if out is None else out
    stats = cp.empty((2 * rows,), FLOAT32)
    mean, rstd = (_memory.view(stats, at, (rows,), FLOAT32) for at in (0, 4 * rows))
    _norm.forward("layer_norm", x, (weight, bias), y, (mean, rstd), eps, zero_centered_gamma)
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
) -> tuple[Any | None, Any | None, Any | None]:
    """See `nvfp.kernels.layer_norm.layer_norm_vjp`; dy and x [rows, H]."""
    return _norm.vjp("layer_norm", dy, x, weight, (mean, rstd), zero_centered_gamma, needs)


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return _norm.instances("layer_norm")
