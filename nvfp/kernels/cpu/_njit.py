"""The one place for Numba's options, and bit casts between float32 and uint32.

``parallel=True`` is never used: it kills forked children and aborts under threads. Kernels release
the GIL and run over chunks on nvfp's own thread pool (`_pool`).

Numba promotes narrow integers to 64 bits in every expression; kernels wrap each step in ``U(...)`` so
that LLVM keeps 32-bit lanes and vectorizes. For the same reason inner loops run over slices of flat,
contiguous arrays: indices from 0 need no negative-index check.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])
U = np.uint32
N = np.uintp  # an index that cannot be negative: Numba need not look, which would stop vectorization


def njit(function: F) -> F:
    """Compile a kernel at its first call: no Python objects, no GIL, IEEE arithmetic, NumPy's division.

    The machine code is cached beside the file, in the user's cache if that is read-only, and not at all
    if there is no such place either. Numba looks for changes in the kernel's own file only; the helpers it
    calls are in the shared ``_*.py`` files, whose hash therefore becomes part of the kernel's name.
    """
    function.__qualname__ += f"-{_shared_sources()}"
    options = {"nogil": True, "error_model": "numpy", "fastmath": False}
    try:
        compiled: F = numba.njit(function, cache=True, **options)
    except RuntimeError:  # Numba found no writeable place
        compiled = numba.njit(function, **options)
    return compiled


@cache
def _shared_sources() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("_*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def inline(function: F) -> F:
    """Compile a helper that kernels call; LLVM inlines it, so its code is part of each kernel's cache entry."""
    compiled: F = numba.njit(function, nogil=True, error_model="numpy", fastmath=False)
    return compiled


@intrinsic
def float_bits(typingctx: Any, x: Any) -> Any:
    """The uint32 bits of a float32 (inside kernels)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return numba.uint32(numba.float32), codegen


@intrinsic
def bits_float(typingctx: Any, u: Any) -> Any:
    """The float32 of 32 bits (inside kernels)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return numba.float32(numba.uint32), codegen


@intrinsic
def shifted_right(typingctx: Any, u: Any, places: Any) -> Any:
    """``u >> places`` in 32 bits, for 0 to 31 places known at run time (Numba's own shift takes 64-bit lanes)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.lshr(*args)

    return numba.uint32(numba.uint32, numba.uint32), codegen


@intrinsic
def shifted_left(typingctx: Any, u: Any, places: Any) -> Any:
    """``u << places`` in 32 bits, likewise."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.shl(*args)

    return numba.uint32(numba.uint32, numba.uint32), codegen
