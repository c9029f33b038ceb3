"""CUDA twin of `kernels.rope`: one launch, any strides on both sides."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.cuda._dense import BFLOAT16, by_value
from nvfp.kernels.cuda._launch import launch, multiprocessors
from nvfp.kernels.cuda._loader import Defines, Instance, kernel
from nvfp.kernels.cuda._memory import aligned
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp

_SOURCE = "rope.cu"
_THREADS = 256  # = rope.cu's THREADS
_PAIRS = 256  # = rope.cu's PAIRS
_MOST_Y = 65535  # largest second dimension of a grid
_LAYOUT = np.dtype([("x", np.int64, (4,)), ("y", np.int64, (4,))])


def _defines(dtype: np.dtype, width: int, interleaved: bool) -> Defines:
    return (("T_IN", ctype(dtype)), ("WIDTH", width), ("INTERLEAVED", int(interleaved)))


def _width(x: Any, y: Any, rotated: int, interleaved: bool) -> int:
    """How many elements a thread moves at once: 16 bytes' worth where every piece of both arrays allows it, else 1."""
    itemsize, width = x.dtype.itemsize, 16 // x.dtype.itemsize
    lengths = (rotated if interleaved else rotated // 2, x.shape[3] - rotated)
    strides = [s for array in (x, y) for s in array.strides[:3]]
    plain = x.strides[3] == y.strides[3] == itemsize and aligned(x) and aligned(y)
    return width if plain and not any(n % width for n in lengths) and not any(s % 16 for s in strides) else 1


def rope(x: Any, freqs: Any, *, interleaved: bool = False, inverse: bool = False, out: Any | None = None) -> Any:
    """See `nvfp.kernels.rope.rope`."""
    batches, positions, heads, width = x.shape
    y = cp.empty(x.shape, x.dtype) if out is None else out
    if x.size == 0:
        return y
    rotated = freqs.shape[1]
    layout, itemsize = np.zeros(1, _LAYOUT), x.dtype.itemsize
    layout["x"] = [s // itemsize for s in x.strides]
    layout["y"] = [s // itemsize for s in y.strides]
    # Enough blocks to fill the device; more heads per block share the coefficients.
    shares = min(batches, -(-8 * multiprocessors() // positions), _MOST_Y)
    args = (
        x, freqs, y, by_value(layout), np.int32(batches), np.int32(heads), np.int32(width), np.int32(rotated),
        np.int32(inverse),
    )  # fmt: skip
    defines = _defines(x.dtype, _width(x, y, rotated, interleaved), interleaved)
    launch(kernel(_SOURCE, "rope", defines), (positions, shares), (_THREADS,), args)
    return y


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return [Instance(_SOURCE, "rope", _defines(BFLOAT16, 8, False))]
