"""CUDA twin of `kernels.multi_tensor`: one launch for `RECORDS` modules of up to `COLUMNS` tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._dense import by_value
from nvfp.kernels.cuda._launch import launch
from nvfp.kernels.cuda._loader import Instance, kernel

_SOURCE, _NAME = "multi_tensor.cu", "amax_history_update"
_THREADS = 128  # = multi_tensor.cu's THREADS
COLUMNS, RECORDS = 4, 80  # = multi_tensor.cu's: 80 of 48 bytes stay below 4 KiB of arguments
_RECORD = np.dtype([
    ("history", np.uint64), ("scale", np.uint64), ("length", np.int32), ("stride", np.int32), ("columns", np.int32),
    ("top", np.float32, (COLUMNS,)), ("unused", np.int32),
])  # fmt: skip
BATCH = np.dtype([("at", _RECORD, (RECORDS,)), ("most_recent", np.int32), ("unused", np.int32)])


def amax_history_update(
    histories: Sequence[Any],
    scales: Sequence[Any],
    fp8_max: Sequence[tuple[float, ...]],
    *,
    algorithm: str = "max",
    margin: int = 0,
) -> None:
    """See `nvfp.kernels.multi_tensor.amax_history_update`."""
    factor, records = 2.0**-margin, []
    for history, scale, top in zip(histories, scales, fp8_max):
        length, stride = history.shape
        for first in range(0, stride, COLUMNS):
            here = [np.float32(np.float32(t) * factor) for t in top[first : first + COLUMNS]]
            tops = (*here, *[np.float32(0)] * (COLUMNS - len(here)))
            at = (_memory.address(history) + 4 * first, _memory.address(scale) + 4 * first)
            records.append((*at, length, stride, len(here), tops, 0))
    for start in range(0, len(records), RECORDS):
        part = records[start : start + RECORDS]
        batch = np.zeros(1, BATCH)
        batch["at"][0, : len(part)] = part
        batch["most_recent"] = algorithm == "most_recent"
        launch(kernel(_SOURCE, _NAME), (len(part), COLUMNS), (_THREADS,), (by_value(batch),))


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return [Instance(_SOURCE, _NAME)]
