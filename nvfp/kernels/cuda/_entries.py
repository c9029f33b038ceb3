"""The tables of tensors that update kernels get by value (`include/entries.cuh`); `adam` and `sgd` share them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._dense import by_value
from nvfp.kernels.cuda._loader import Defines
from nvfp.kernels.cuda._types import ctype

THREADS = 256  # = entries.cuh's THREADS
CHUNK = 4096  # = entries.cuh's CHUNK: elements of one block
ENTRIES = 64  # = entries.cuh's ENTRIES: 64 of 56 bytes stay below 4 KiB of arguments
_POINTERS = ("p", "g", "m", "v", "w")
_NUMBERS = [("n", np.int64), ("first_block", np.int32), ("unused", np.int32)]
_ENTRY = np.dtype([*((name, np.uint64) for name in _POINTERS), *_NUMBERS])
BATCH = np.dtype([("at", _ENTRY, (ENTRIES,)), ("count", np.int32), ("flag", np.int32)])


class Table(NamedTuple):
    """One launch: macros of its dtypes, the table by value, the grid."""

    defines: Defines
    batch: np.ndarray
    blocks: int


def defines_of(params: np.dtype, grads: np.dtype) -> Defines:
    """Return the macros of a pair of dtypes."""
    return (("T_P", ctype(params)), ("T_G", ctype(grads)))


def tables(params: Sequence[Any], grads: Sequence[Any], *state: Sequence[Any | None], flag: bool) -> Iterator[Table]:
    """Yield the launches of an update: one per pair of dtypes and `ENTRIES` tensors.

    Args:
        params: contiguous arrays.
        grads: one for each.
        state: three lists (m, v, w of the entry), each with an array or None per parameter.
        flag: the table's.
    """
    groups: dict[tuple[np.dtype, np.dtype], list[tuple[int, ...]]] = {}
    for p, g, *rest in zip(params, grads, *state):
        if p.size:
            row = (*(0 if x is None else _memory.address(x) for x in (p, g, *rest)), p.size)
            groups.setdefault((p.dtype, g.dtype), []).append(row)
    for dtypes, rows in groups.items():
        for first in range(0, len(rows), ENTRIES):
            yield _table(defines_of(*dtypes), rows[first : first + ENTRIES], flag)


def _table(defines: Defines, rows: list[tuple[int, ...]], flag: bool) -> Table:
    batch, blocks, entries = np.zeros(1, BATCH), 0, []
    for row in rows:
        entries.append((*row, blocks, 0))
        blocks += -(-row[-1] // CHUNK)
    batch["at"][0, : len(rows)] = entries
    batch["count"], batch["flag"] = len(rows), flag
    return Table(defines, by_value(batch), blocks)
