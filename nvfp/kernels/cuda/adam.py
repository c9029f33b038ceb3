"""CUDA twin of `kernels.adam`: one small launch, then one per pair of dtypes and `ENTRIES` tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._dense import BFLOAT16, FLOAT32, by_value
from nvfp.kernels.cuda._launch import launch
from nvfp.kernels.cuda._loader import Defines, Instance, kernel
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp

_SOURCE = "adam.cu"
_THREADS = 256  # = adam.cu's THREADS
CHUNK = 4096  # = adam.cu's CHUNK: elements of one block
ENTRIES = 64  # = adam.cu's ENTRIES: 64 of 56 bytes stay below 4 KiB of arguments
_POINTERS = ("p", "g", "m", "v", "w")
_NUMBERS = [("n", np.int64), ("first_block", np.int32), ("unused", np.int32)]
_ENTRY = np.dtype([*((name, np.uint64) for name in _POINTERS), *_NUMBERS])
BATCH = np.dtype([("at", _ENTRY, (ENTRIES,)), ("count", np.int32), ("l2", np.int32)])


def _defines(params: np.dtype, grads: np.dtype) -> Defines:
    return (("T_P", ctype(params)), ("T_G", ctype(grads)))


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
) -> None:
    """See `nvfp.kernels.adam.adam`; all arrays contiguous."""
    words = cp.empty(9, FLOAT32)
    launch(kernel(_SOURCE, "adam_begin"), (1,), (1,), (hyper, step, words))
    groups: dict[tuple[np.dtype, np.dtype], list[tuple[int, ...]]] = {}
    for p, g, m, v, w in zip(params, grads, exp_avg, exp_avg_sq, master):
        if p.size:
            row = (*(0 if x is None else _memory.address(x) for x in (p, g, m, v, w)), p.size)
            groups.setdefault((p.dtype, g.dtype), []).append(row)
    for dtypes, rows in groups.items():
        for first in range(0, len(rows), ENTRIES):
            batch, blocks = _batch(rows[first : first + ENTRIES], mode == "adam_l2")
            launch(kernel(_SOURCE, "adam", _defines(*dtypes)), (blocks,), (_THREADS,), (batch, words))


def _batch(rows: list[tuple[int, ...]], l2: bool) -> tuple[np.ndarray, int]:
    """The kernel's table of tensors (passed by value) and how many blocks it takes."""
    batch, blocks, entries = np.zeros(1, BATCH), 0, []
    for row in rows:
        entries.append((*row, blocks, 0))
        blocks += -(-row[-1] // CHUNK)
    batch["at"][0, : len(rows)] = entries
    batch["count"], batch["l2"] = len(rows), l2
    return by_value(batch), blocks


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return [
        Instance(_SOURCE, "adam_begin"),
        Instance(_SOURCE, "adam", _defines(BFLOAT16, BFLOAT16)),
    ]
