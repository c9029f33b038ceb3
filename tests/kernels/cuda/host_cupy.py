"""CuPy's own arrays over host memory, so that contracts take the CUDA way to its end on a machine without a GPU.

`install` puts a module in the place of ``cupy``: allocation, streams and devices are ours, arrays are CuPy's. Kernels
are those of `emulator` (compiled by g++), or none (`silent`), to look at what the host alone does.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nvfp import device
from nvfp.device import Device
from nvfp.kernels import _prepared
from nvfp.kernels.cuda import _launch, _memory
from nvfp.kernels.cuda._loader import Kernel
from nvfp.kernels.cuda._xp import cp
from tests.kernels.cuda import emulator

POISON = 0xCD


class _Stream:
    ptr = 0

    def __init__(self, non_blocking: bool = False) -> None:
        pass

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        pass


class _Device:
    def __init__(self, index: int = 0) -> None:
        self.id, self.compute_capability = index, "90"

    def __enter__(self) -> _Device:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def install(patch: pytest.MonkeyPatch, function: Callable[[Kernel], Any], *, poison: bool = True) -> Any:
    """Put the module in place for the time of a test and return it.

    Args:
        patch: undoes it.
        function: what stands for the ``cupy.cuda.Function`` of a kernel.
        poison: whether new memory is fresh and filled with a pattern (else one arena, over and over).
    """
    real = pytest.importorskip("cupy", reason="cupy is not installed")
    from cupy.cuda.memory import MemoryPointer, UnownedMemory

    def alloc(nbytes: int) -> Any:
        if poison:
            owner = np.full(nbytes + 512, POISON, np.uint8)
            at = -(-owner.ctypes.data // 256) * 256
        else:
            owner, at = _ARENA, _ARENA_AT + _used[0]
            _used[0] = (_used[0] + -(-nbytes // 256) * 256) % (1 << 26)
        return MemoryPointer(UnownedMemory(at, max(nbytes, 1), owner, 0), 0)

    def empty(shape: Any, dtype: Any = float) -> Any:
        shape, dtype = (shape if isinstance(shape, tuple) else (shape,)), np.dtype(dtype)
        return real.ndarray(shape, dtype, alloc(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize))

    def zeros(shape: Any, dtype: Any = float) -> Any:
        made = empty(shape, dtype)
        ctypes.memset(made.data.ptr, 0, made.nbytes)
        return made

    def asarray(x: Any) -> Any:
        x = np.ascontiguousarray(x) if np.ndim(x) else np.asarray(x)
        made = empty(x.shape, x.dtype)
        ctypes.memmove(made.data.ptr, x.ctypes.data, x.nbytes)
        return made

    fake = ModuleType("cupy")
    runtime = SimpleNamespace(
        getDevice=lambda: 0, deviceGetAttribute=lambda attribute, device: 3, getDeviceCount=lambda: 1,
        memsetAsync=lambda at, value, nbytes, stream: ctypes.memset(at, value, nbytes),
    )  # fmt: skip

    def launch_kernel(pointer: int, *rest: int) -> None:
        *dims, _, _, table, _ = rest  # shared memory, stream, arguments, the other kind of arguments
        if pointer:
            emulator.launch_by_table(_functions[pointer], tuple(dims), table)

    driver = SimpleNamespace(launchKernel=launch_kernel)
    cuda = SimpleNamespace(
        runtime=runtime, driver=driver, alloc=alloc, get_current_stream=_Stream, Stream=_Stream, Device=_Device,
        memory=real.cuda.memory,
    )  # fmt: skip
    fake.__dict__.update(
        ndarray=real.ndarray, empty=empty, zeros=zeros, asarray=asarray, cuda=cuda, lib=real.lib,
        broadcast_to=real.broadcast_to,
    )  # fmt: skip
    patch.setitem(sys.modules, "cupy", fake)
    for name, value in {"ndarray": real.ndarray, "_empty": empty, "_zeros": zeros, "cuda": cuda}.items():
        patch.setitem(vars(cp), name, value)
    patch.setattr(device, "_cuda", lambda: ((Device("cuda:0"),), None))
    patch.setattr(Kernel, "function", function)
    patch.setattr(_memory, "zero", _noted_zero)
    _launch._multiprocessors.cache_clear()
    _prepared.forget()
    return fake


def _noted_zero(slab: Any, at: int, nbytes: int) -> None:
    if _memory.thread.recorder is not None:
        _memory.thread.recorder.cleared(slab.data.ptr + at, nbytes)
    ctypes.memset(slab.data.ptr + at, 0, nbytes)


def to_host(x: Any) -> np.ndarray:
    """Return a copy as a NumPy array (any strides)."""
    lengths = x.shape
    raw = (ctypes.c_ubyte * 1).from_address(x.data.ptr)
    view = np.ndarray(lengths, x.dtype, np.frombuffer(raw, np.uint8), 0) if 0 in lengths else None
    if view is not None:
        return view.copy()
    low = sum((n - 1) * s for n, s in zip(lengths, x.strides, strict=True) if s < 0)
    high = sum((n - 1) * s for n, s in zip(lengths, x.strides, strict=True) if s > 0) + x.dtype.itemsize
    raw = (ctypes.c_ubyte * (high - low)).from_address(x.data.ptr + low)
    return np.ndarray(lengths, x.dtype, np.frombuffer(raw, np.uint8), -low, x.strides).copy()


_functions: dict[int, emulator.EmulatedFunction] = {}


def emulated(kernel: Kernel) -> emulator.EmulatedFunction:
    """Return the kernel compiled by g++."""
    found = emulator._function(kernel.instance)
    return _functions.setdefault(found.ptr, found)


class Silent:
    """A ``cupy.cuda.Function`` that does nothing."""

    ptr = 0

    def __call__(self, grid: Any, block: Any, args: Any, shared: int = 0) -> None:
        pass


def silent(kernel: Kernel) -> Any:
    """Return a function that does nothing."""
    return _SILENT


_SILENT = Silent()
_ARENA = np.zeros(1 << 27, np.uint8)
_ARENA_AT = -(-_ARENA.ctypes.data // 256) * 256
_used = [0]


def fill(array: Any, values: np.ndarray) -> None:
    """Write a contiguous array."""
    values = np.ascontiguousarray(values)
    ctypes.memmove(array.data.ptr, values.ctypes.data, values.nbytes)
