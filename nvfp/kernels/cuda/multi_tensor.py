"""CUDA twin of `kernels.multi_tensor`: one launch for `RECORDS` modules, or for `ENTRIES` tensors of one dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._dense import BFLOAT16, FLOAT32, by_value
from nvfp.kernels.cuda._launch import Grid, launch
from nvfp.kernels.cuda._loader import Defines, Instance, Kernel, kernel
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.multi_tensor import PIECE

_SOURCE, _NAME = "multi_tensor.cu", "amax_history_update"
_THREADS = 128  # = multi_tensor.cu's THREADS
COLUMNS, RECORDS = 4, 80  # = multi_tensor.cu's: 80 of 48 bytes stay below 4 KiB of arguments
_RECORD = np.dtype([
    ("history", np.uint64), ("scale", np.uint64), ("length", np.int32), ("stride", np.int32), ("columns", np.int32),
    ("top", np.float32, (COLUMNS,)), ("unused", np.int32),
])  # fmt: skip
BATCH = np.dtype([("at", _RECORD, (RECORDS,)), ("most_recent", np.int32), ("unused", np.int32)])
_THREADS_PIECE = 256  # = multi_tensor_pieces.cu's THREADS
_PIECES = "multi_tensor_pieces.cu"
ENTRIES = 124  # = multi_tensor_pieces.cu's: 124 of 32 bytes stay below 4 KiB of arguments
_ENTRY = np.dtype(
    [("x", np.uint64), ("y", np.uint64), ("n", np.int64), ("first_block", np.int32), ("unused", np.int32)]
)
TENSORS_BATCH = np.dtype([("at", _ENTRY, (ENTRIES,)), ("count", np.int32), ("first_partial", np.int32)])


def prepare_amax_history_update(
    histories: Sequence[Any],
    scales: Sequence[Any],
    fp8_max: Sequence[tuple[float, ...]],
    *,
    algorithm: str = "max",
    margin: int = 0,
) -> Callable[[], None]:
    """See `nvfp.kernels.multi_tensor.prepare_amax_history_update`."""
    factor, records, calls = 2.0**-margin, [], []
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
        calls.append(((len(part), COLUMNS), (by_value(batch),)))
    return partial(_launch_all, kernel(_SOURCE, _NAME), calls, (list(histories), list(scales)))


def _launch_all(handle: Kernel, calls: Sequence[tuple[Grid, tuple[Any, ...]]], alive: Any) -> None:
    """Launch every batch; ``alive`` holds the arrays whose addresses the batches have."""
    for grid, args in calls:
        launch(handle, grid, (_THREADS,), args)


def scale_tensors(
    xs: Sequence[Any], factor: Any, *, outs: Sequence[Any] | None = None, nonfinite: Any | None = None
) -> list[Any]:
    """See `nvfp.kernels.multi_tensor.scale_tensors`."""
    results = [cp.empty(x.shape, x.dtype) for x in xs] if outs is None else list(outs)
    for (source, target), rows in _by_dtypes(xs, results).items():
        handle = kernel(_PIECES, "scale_tensors", _pair(source, target))
        for batch, blocks, _ in _batches(rows):
            launch(handle, (blocks,), (_THREADS_PIECE,), (batch, factor, nonfinite))
    return results


def l2_norm(xs: Sequence[Any], *, like: Any | None = None) -> Any:
    """See `nvfp.kernels.multi_tensor.l2_norm`."""
    groups = _by_dtypes(xs, xs)
    pieces = sum(-(-n // PIECE) for rows in groups.values() for _, _, n in rows)
    partial, norm = cp.empty(max(pieces, 1), FLOAT32), cp.empty((), FLOAT32)
    first = 0
    for (source, _), rows in groups.items():
        handle = kernel(_PIECES, "l2_partial", _pair(source, source))
        for batch, blocks, table in _batches(rows):
            table["first_partial"] = first
            launch(handle, (blocks,), (_THREADS_PIECE,), (batch, partial))
            first += blocks
    launch(kernel(_PIECES, "l2_finish"), (1,), (_THREADS_PIECE,), (partial, np.int64(pieces), norm))
    return norm


_Row = tuple[int, int, int]  # addresses of x and y, elements


def _by_dtypes(xs: Sequence[Any], ys: Sequence[Any]) -> dict[tuple[np.dtype, np.dtype], list[_Row]]:
    """The tensors that have elements, by the pair of their dtypes."""
    groups: dict[tuple[np.dtype, np.dtype], list[_Row]] = {}
    for x, y in zip(xs, ys):
        if x.size:
            row = (_memory.address(x), _memory.address(y), x.size)
            groups.setdefault((x.dtype, y.dtype), []).append(row)
    return groups


def _batches(rows: list[_Row]) -> Iterator[tuple[np.ndarray, int, np.ndarray]]:
    """The kernel's tables, passed by value: (as an argument, thread blocks, as fields)."""
    for start in range(0, len(rows), ENTRIES):
        part, entries, blocks = rows[start : start + ENTRIES], [], 0
        for x, y, n in part:
            entries.append((x, y, n, blocks, 0))
            blocks += -(-n // PIECE)
        table = np.zeros(1, TENSORS_BATCH)
        table["at"][0, : len(part)] = entries
        table["count"] = len(part)
        yield by_value(table), blocks, table


def _pair(source: np.dtype, target: np.dtype) -> Defines:
    return (("T_IN", ctype(source)), ("T_OUT", ctype(target)))


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return [Instance(_SOURCE, _NAME), Instance(_PIECES, "scale_tensors", _pair(BFLOAT16, BFLOAT16))]
