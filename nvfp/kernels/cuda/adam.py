"""CUDA twin of `kernels.adam`: one small launch, then one per pair of dtypes and `ENTRIES` tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nvfp.kernels.cuda._dense import BFLOAT16, FLOAT32
from nvfp.kernels.cuda._entries import THREADS, defines_of, tables
from nvfp.kernels.cuda._launch import launch
from nvfp.kernels.cuda._loader import Instance, kernel
from nvfp.kernels.cuda._xp import cp

_SOURCE = "adam.cu"


def adam(
    params: Sequence[Any],
    grads: Sequence[Any],
    exp_avg: Sequence[Any],
    exp_avg_sq: Sequence[Any],
    master: Sequence[Any | None],
    hyper: Any,
    step: Any,
    *,
    mode: str = "adamw",
    skip: Any | None = None,
) -> None:
    """See `nvfp.kernels.adam.adam`; all arrays contiguous."""
    words = cp.empty(10, FLOAT32)
    launch(kernel(_SOURCE, "adam_begin"), (1,), (1,), (hyper, step, 0 if skip is None else skip, words))
    for table in tables(params, grads, exp_avg, exp_avg_sq, master, flag=mode == "adam_l2"):
        launch(kernel(_SOURCE, "adam", table.defines), (table.blocks,), (THREADS,), (table.batch, words))


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return [Instance(_SOURCE, "adam", defines_of(BFLOAT16, BFLOAT16))]
