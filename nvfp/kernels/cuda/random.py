"""`random` on CUDA: one kernel; a thread writes the elements of one Philox group."""

from __future__ import annotations

from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from nvfp.device import Device
from nvfp.kernels.cuda._launch import grid_for, launch
from nvfp.kernels.cuda._loader import Instance, Kernel, kernel
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.random import Draw

_THREADS = 256
_KINDS = {"bits": 0, "uniform": 1, "normal": 2, "integers": 3}
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


def random(
    kind: Draw,
    shape: tuple[int, ...],
    *,
    dtype: np.dtype,
    key: int,
    stream: int,
    step: Any,
    low: Any,
    high: Any,
    limit: Any,
    device: Device,
) -> Any:
    """Compute `kernels.random`; ``low`` and ``high`` are offset and factor, ``limit`` the largest uniform value."""
    wide = kind == "integers" and high > 2**32
    word = hasattr(step, "dtype")
    acc = _accumulator(kind, dtype)
    run = _kernel(kind, dtype, acc, wide, word)
    number = (lambda v: acc.type(v % 2**64)) if kind == "integers" else acc.type
    n = prod(shape)
    with cp.cuda.Device(device.index):
        out = cp.empty(shape, dtype)
        arguments = (
            out, np.int64(n), np.uint64(key), np.uint32(stream), step if word else np.uint32(step),
            number(low), number(high), number(limit),
        )  # fmt: skip
        launch(run, grid_for(-(-n // (2 if wide else 4)), _THREADS, per_sm=32), (_THREADS,), arguments)
    return out


def _accumulator(kind: str, dtype: np.dtype) -> np.dtype:
    if kind in ("bits", "integers"):
        return np.dtype(np.uint32 if kind == "bits" else np.uint64)
    return _FLOAT64 if dtype == _FLOAT64 else _FLOAT32


def _kernel(kind: str, dtype: np.dtype, acc: np.dtype, wide: bool, word: bool) -> Kernel:
    defines = (
        ("T_OUT", ctype(dtype)),
        ("KIND", _KINDS[kind]),
        ("T_ACC", ctype(acc)),
        ("WIDE", int(wide)),
        ("STEP_WORD", int(word)),
    )
    return kernel("random.cu", "random_fill", defines)


def instances() -> list[Instance]:
    """What CI compiles: bf16 normals with the step in device memory."""
    return [_kernel("normal", np.dtype(ml_dtypes.bfloat16), _FLOAT32, wide=False, word=True).instance]
