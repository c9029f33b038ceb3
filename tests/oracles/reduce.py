"""Reductions by their definitions: balanced trees level by level for float sums, Python for the rest."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def rows(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """``x`` as [results, elements of one result in row-major order]."""
    kept = tuple(a for a in range(x.ndim) if a not in axes)
    count = math.prod(x.shape[a] for a in axes)
    return x.transpose(kept + axes).reshape(math.prod(x.shape[a] for a in kept), count)


def tree(values: np.ndarray, multiply: bool = False) -> Any:
    """Join neighbours until one is left; an odd one passes on. Keeps the dtype of ``values``."""
    level = list(values)
    if not level:
        return values.dtype.type(1 if multiply else 0)
    with np.errstate(all="ignore"):
        while len(level) > 1:
            pairs = zip(level[0::2], level[1::2], strict=False)
            level = [a * b if multiply else a + b for a, b in pairs] + level[len(level) & ~1 :]
    return level[0]


def float_reduce(op: str, x: np.ndarray, axes: tuple[int, ...], accumulator: Any) -> np.ndarray:
    """sum, mean, prod and sumsq of floats, flat, in the accumulator's dtype."""
    with np.errstate(all="ignore"):
        lines = rows(x, axes).astype(accumulator)
        lines = lines * lines if op == "sumsq" else lines
        found = np.array([tree(line, op == "prod") for line in lines], accumulator).reshape(len(lines))
        return found / accumulator(lines.shape[1]) if op == "mean" else found


def exact(op: str, x: np.ndarray, axes: tuple[int, ...]) -> list[Any]:
    """Everything else, flat: integers as Python integers, extrema, positions (NaN counts as both), logic."""
    return [_one(op, line.astype(np.float64).tolist() if _is_float(x) else line.tolist()) for line in rows(x, axes)]


def _is_float(x: np.ndarray) -> bool:
    return x.dtype.kind not in "biu"


def _one(op: str, line: list[Any]) -> Any:
    nans = [i for i, v in enumerate(line) if v != v]
    if op in ("max", "min", "argmax", "argmin"):
        best = max(line) if op.endswith("max") else min(line)
        position = nans[0] if nans else line.index(best)
        return position if op.startswith("arg") else line[position]
    if op in ("all", "any"):
        return all(line) if op == "all" else any(line)
    if op == "prod":
        total = 1
        for v in line:
            total = total * v % 2**64
        return total
    total = sum(v * v for v in line) if op == "sumsq" else sum(line)
    return total if op != "mean" else total / len(line) if line else math.nan
