"""CUDA twin of `kernels.activation`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.activation import CLAMP, KINDS, Clamp
from nvfp.kernels.cuda._dense import BFLOAT16, row_vector
from nvfp.kernels.cuda._launch import grid_for, launch
from nvfp.kernels.cuda._loader import Defines, Instance, kernel
from nvfp.kernels.cuda._memory import aligned
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp

_SOURCE, _GATED = "activation.cu", "activation_gated.cu"
_THREADS = 256  # = THREADS of both
_RECORD: Defines = (("RECORD", 1),)
_PER_SM = 64  # several waves of blocks: faster than few that loop


def act_defines(kind: str, params: Clamp | None = None) -> Defines:
    """Return the macros that choose a function in ``activation.cuh``."""
    chosen: Defines = (("ACT", KINDS[kind].code),)
    if kind != "clamped_swiglu":
        return chosen
    names = ("ACT_LIMIT", "ACT_ALPHA", "ACT_OFFSET")
    numbers = [f"{float(np.float32(p)).hex()}f" for p in params or CLAMP]
    return (*chosen, *zip(names, numbers, strict=True))


def _defines(dtype: np.dtype, kind: str, params: Clamp | None = None) -> Defines:
    return (("T_IN", ctype(dtype)), *act_defines(kind, params))


def _run(name: str, kind: str, arrays: tuple[Any, ...], record: tuple[Any, ...] = ()) -> Any:
    """Launch over flat arrays of one dtype; the last one is written and returned. ``record``: a word, or nothing."""
    y = arrays[-1]
    per_vector = 16 // y.dtype.itemsize
    vectors = y.size // per_vector if all(map(aligned, arrays)) else 0
    grid = grid_for(max(vectors, y.size - vectors * per_vector), _THREADS, per_sm=_PER_SM)
    args = (*arrays, np.int64(y.size), np.int64(vectors), *record)
    launch(kernel(_SOURCE, name, _defines(y.dtype, kind) + _RECORD * len(record)), grid, (_THREADS,), args)
    return y


def _run_gated(
    name: str, kind: str, params: Clamp | None, arrays: tuple[Any, ...], half: int, record: tuple[Any, ...] = ()
) -> Any:
    """Launch over the pairs (first, second) of rows of ``half``; the last array is written and returned."""
    y = arrays[-1]
    pairs = min(a.size for a in arrays)  # of y, or of dy
    if pairs:
        width = row_vector(half, y.dtype.itemsize, *arrays)
        vectors = pairs // width if width > 1 else 0
        args = (*arrays, np.int64(pairs), np.int64(vectors), np.int64(half), *record)
        grid = grid_for(vectors or pairs, _THREADS, per_sm=_PER_SM)
        chosen = _defines(y.dtype, kind, params) + _RECORD * len(record)
        launch(kernel(_GATED, name, chosen), grid, (_THREADS,), args)
    return y


def activation(x: Any, kind: str = "gelu", *, params: Clamp | None = None, out: Any | None = None) -> Any:
    """See `nvfp.kernels.activation.activation`."""
    if not KINDS[kind].gated:
        return _run("activation", kind, (x, cp.empty(x.shape, x.dtype) if out is None else out))
    half = x.shape[-1] // 2
    y = cp.empty((*x.shape[:-1], half), x.dtype) if out is None else out
    return _run_gated("activation_gated", kind, params, (x, y), half)


def activation_vjp(x: Any, dy: Any, kind: str = "gelu", *, params: Clamp | None = None, out: Any | None = None) -> Any:
    """See `nvfp.kernels.activation.activation_vjp`."""
    dx = cp.empty(x.shape, x.dtype) if out is None else out
    if not KINDS[kind].gated:
        return _run("activation_vjp", kind, (x, dy, dx))
    return _run_gated("activation_gated_vjp", kind, params, (x, dy, dx), dy.shape[-1])


def recorded(x: Any, dy: Any | None, kind: str, word: Any, params: Clamp | None = None) -> Any:
    """Return the activation of ``x``, or the gradient of its input; raise ``word`` to the largest magnitude of it.

    Args:
        x: input of the activation, contiguous.
        dy: gradient of its result, contiguous, or None.
        kind: a key of `KINDS`.
        word: float32 word; the maximum of what is written, NaN aside, infinity included.
        params: of ``clamped_swiglu``.
    """
    gated = KINDS[kind].gated
    if dy is not None:
        dx = cp.empty(x.shape, x.dtype)
        if gated:
            return _run_gated("activation_gated_vjp", kind, params, (x, dy, dx), dy.shape[-1], (word,))
        return _run("activation_vjp", kind, (x, dy, dx), (word,))
    if not gated:
        return _run("activation", kind, (x, cp.empty(x.shape, x.dtype)), (word,))
    half = x.shape[-1] // 2
    y = cp.empty((*x.shape[:-1], half), x.dtype)
    return _run_gated("activation_gated", kind, params, (x, y), half, (word,))


def instances() -> list[Instance]:
    """The instances that CI compiles."""
    return [
        Instance(_SOURCE, "activation_vjp", _defines(BFLOAT16, "gelu") + _RECORD),
        Instance(_GATED, "activation_gated", _defines(BFLOAT16, "swiglu")),
        Instance(_GATED, "activation_gated_vjp", _defines(BFLOAT16, "geglu")),
    ]
