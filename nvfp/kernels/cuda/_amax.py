"""The amax pass, shared by the stems that need one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import numpy as np

from nvfp.kernels.cuda._launch import grid_for, launch
from nvfp.kernels.cuda._layout import Shape, collapse, element_strides, strided_argument
from nvfp.kernels.cuda._loader import Defines, Kernel, kernel
from nvfp.kernels.cuda._memory import aligned
from nvfp.kernels.cuda._types import ctype

THREADS = 256
Kind = Literal["skip_nan", "finite", "raw"]
_KINDS: dict[Kind, int] = {"skip_nan": 0, "finite": 1, "raw": 2}


@lru_cache(maxsize=64)
def _kernel(dtype: np.dtype, kind: Kind, rank: int | None = None) -> Kernel:
    return kernel("amax.cu", "amax_flat" if rank is None else "amax_strided", defines(dtype, kind, rank))


def defines(dtype: np.dtype, kind: Kind, rank: int | None = None) -> Defines:
    """Return the macros of ``amax.cu``."""
    macros: Defines = (("T_IN", ctype(dtype)), ("KIND", _KINDS[kind]))
    return macros if rank is None else (*macros, ("RANK", rank))


def record_amax(x: Any, kind: Kind, word: Any, also: Any | None = None, and_also: Any | None = None) -> None:
    """Raise each word to ``max(word, max |x|)`` in one pass over ``x``.

    Args:
        x: raw float array of any strides.
        kind: ``"skip_nan"``, ``"finite"`` (inf skipped too) or ``"raw"`` (bits of |x|: a NaN wins; one zeroed word).
        word: float32 word.
        also: another word, or None.
        and_also: another word, or None.
    """
    n: int = x.size
    args = (word, also, and_also)
    shape: Shape = (n,)
    strides: Shape = (1,)
    if n and not x.flags.c_contiguous:  # a maximum has no order: walk the axes from the longest stride to the shortest
        axes = sorted(zip(element_strides(x), x.shape, strict=True), key=lambda axis: -abs(axis[0]))
        shape, (strides,) = collapse(tuple(n for _, n in axes), tuple(s for s, _ in axes))
    if len(shape) == 1 and strides == (1,) and aligned(x):
        grid = grid_for(max(n, 1), THREADS, per_thread=64 // x.dtype.itemsize, per_sm=8)
        launch(_kernel(x.dtype, kind), grid, (THREADS,), (x, n, *args))
    else:
        grid = grid_for(n, THREADS, per_thread=4, per_sm=8)
        launch(_kernel(x.dtype, kind, len(shape)), grid, (THREADS,), (x, strided_argument(shape, strides), n, *args))
