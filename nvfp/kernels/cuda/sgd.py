"""CUDA twin of `kernels.sgd`: one small launch, then one per pair of dtypes and `ENTRIES` tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nvfp.kernels.cuda._dense import BFLOAT16, FLOAT32
from nvfp.kernels.cuda._entries import THREADS, defines_of, tables
from nvfp.kernels.cuda._launch import launch
from nvfp.kernels.cuda._loader import Instance, kernel
from nvfp.kernels.cuda._xp import cp

_SOURCE = "sgd.cu"


def sgd(
    params: Sequence[Any],
    grads: Sequence[Any],
    momentum: Sequence[Any | None],
    master: Sequence[Any | None],
    hyper: Any,
    step: Any,
    *,
    nesterov: bool = False,
    skip: Any | None = None,
) -> None:
    """See `nvfp.kernels.sgd.sgd`; all arrays contiguous."""
    words = cp.empty(6, FLOAT32)
    launch(kernel(_SOURCE, "sgd_begin"), (1,), (1,), (hyper, step, 0 if skip is None else skip, words))
    nothing = [None] * len(params)
    for table in tables(params, grads, momentum, nothing, master, flag=nesterov):
        launch(kernel(_SOURCE, "sgd", table.defines), (table.blocks,), (THREADS,), (table.batch, words))


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return [Instance(_SOURCE, "sgd", defines_of(BFLOAT16, BFLOAT16))]
