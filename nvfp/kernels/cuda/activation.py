"""CUDA twin of `kernels.activation`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.activation import KINDS
from nvfp.kernels.cuda._dense import BFLOAT16
from nvfp.kernels.cuda._launch import grid_for, launch
from nvfp.kernels.cuda._loader import Defines, Instance, kernel
from nvfp.kernels.cuda._memory import aligned
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp

_SOURCE = "activation.cu"
_THREADS = 256  # = activation.cu's THREADS


def _defines(dtype: np.dtype, kind: str) -> Defines:
    return (("T_IN", ctype(dtype)), ("ACT", KINDS[kind].code))


def _run(name: str, kind: str, arrays: tuple[Any, ...]) -> Any:
    """Launch over flat arrays of one dtype; the last one is written and returned."""
    y = arrays[-1]
    per_vector = 16 // y.dtype.itemsize
    vectors = y.size // per_vector if all(map(aligned, arrays)) else 0
    grid = grid_for(max(vectors, y.size - vectors * per_vector), _THREADS)
    args = (*arrays, np.int64(y.size), np.int64(vectors))
    launch(kernel(_SOURCE, name, _defines(y.dtype, kind)), grid, (_THREADS,), args)
    return y


def activation(x: Any, kind: str = "gelu", *, out: Any | None = None) -> Any:
    """See `nvfp.kernels.activation.activation`."""
    return _run("activation", kind, (x, cp.empty(x.shape, x.dtype) if out is None else out))


def activation_vjp(x: Any, dy: Any, kind: str = "gelu", *, out: Any | None = None) -> Any:
    """See `nvfp.kernels.activation.activation_vjp`."""
    return _run("activation_vjp", kind, (x, dy, cp.empty(x.shape, x.dtype) if out is None else out))


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return [Instance(_SOURCE, "activation_vjp", _defines(BFLOAT16, "gelu"))]
