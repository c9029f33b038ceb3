"""Runs the CUDA twins on the CPU: launchers as they are, kernels compiled by g++ over `shim/shim.h`.

CuPy is replaced by NumPy, memory comes filled with a pattern, and kernel arguments are checked for number and
size. What it cannot show is what only a GPU does: hardware conversions, speed, races between blocks.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nvfp.kernels.cuda import _launch, _loader, _memory
from nvfp.kernels.cuda._loader import INCLUDE, SOURCES, Instance, Kernel, files_of
from nvfp.kernels.cuda._xp import cp

SHIM = Path(__file__).parent / "shim"
POISON = 0xCD
_one = threading.Lock()  # the fibers of one launch at a time
_ERRORS = {1: "arguments of another number or size than the kernel declares", 2: "a barrier that not all threads reach"}


@cache
def _folder() -> Path:
    """Where libraries are kept between runs; their names are hashes of all that goes into them."""
    folder = _loader.cache_dir().parent / "emulated"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def compiler() -> str:
    """Return g++, or skip."""
    found = shutil.which("g++")
    if found is None:
        pytest.skip("no g++: the CUDA kernels cannot be run on the CPU")
    return found


def build(text: str, used: Iterable[Path], defines: tuple[tuple[str, str | int], ...] = ()) -> ctypes.CDLL:
    """Compile C++ text over the shim into a library.

    Args:
        text: the source; it may include the files of ``used``.
        used: files whose contents decide the result.
        defines: macros, set after the shim's own headers so that they cannot touch those.
    """
    macros = "".join(f"#define {name} {value}\n" for name, value in defines)
    text = f'#include "shim.h"\n#include "cuda_bf16.h"\n#include "cuda_fp16.h"\n{macros}{text}'
    # -O1: the fibers are cheap, the compiler is not. NaN and signed zeros must survive: no -ffast-math. Unique symbols
    # would make shared arrays in templates those of the first library loaded, whatever their size there.
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-gnu-unique", "-fPIC", "-shared"]
    parts = [text, *flags, *(path.read_text() for path in (*sorted(SHIM.iterdir()), *used))]
    stamp = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    library = _folder() / f"{stamp}.so"
    if not library.exists():
        part = library.with_suffix(f".{os.getpid()}")
        command = [compiler(), *flags, "-w", f"-I{SHIM}", f"-I{INCLUDE}", "-x", "c++", "-", "-o", str(part)]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
        part.replace(library)
    return ctypes.CDLL(str(library))


class EmulatedFunction:
    """Stands for a ``cupy.cuda.Function``."""

    def __init__(self, instance: Instance) -> None:
        call = f"shim::launch({instance.name}, args, sizes, count, grid, block)"
        text = (
            f'#include "{SOURCES / instance.source}"\n'
            'extern "C" int run(void** args, const long* sizes, int count, const unsigned* grid, const unsigned* block)'
            f" {{ return {call}; }}\n"
        )
        self.instance = instance
        self.run = build(text, files_of(instance.source), instance.defines).run
        self.ptr = id(self)
        self.sizes: list[int] = []  # of the arguments, as the last launch had them

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared: int = 0) -> None:
        assert shared == 0, "dynamic shared memory is not emulated"
        values = [_value(arg) for arg in args]
        self.sizes = [v.nbytes for v in values]
        pointers = (ctypes.c_void_p * len(values))(*[v.ctypes.data for v in values])
        sizes = (ctypes.c_long * len(values))(*[v.nbytes for v in values])
        dims = [(ctypes.c_uint * 3)(*(d + (1, 1, 1))[:3]) for d in (grid, block)]
        with _one:
            error = self.run(pointers, sizes, len(values), *dims)
        assert error == 0, f"{self.instance}: {_ERRORS[error]}; sizes {list(sizes)}"


def launch_by_table(function: EmulatedFunction, dims: tuple[int, ...], table: int) -> None:
    """Launch as the driver does: by the addresses of the arguments, as many and as large as they were last."""
    count = len(function.sizes)
    pointers = (ctypes.c_void_p * count).from_address(table)
    sizes = (ctypes.c_long * count)(*function.sizes)
    grid, block = ((ctypes.c_uint * 3)(*dims[at : at + 3]) for at in (0, 3))
    with _one:
        error = function.run(pointers, sizes, count, grid, block)
    assert error == 0, f"{function.instance}: {_ERRORS[error]}; sizes {list(sizes)}"


def _value(arg: Any) -> np.ndarray:
    """Return what a kernel argument is on the wire, as an array of its bytes."""
    if arg is None:
        return np.zeros(1, np.int64)
    if isinstance(arg, np.ndarray) and arg.dtype.type is not np.void:
        return np.array([arg.ctypes.data], np.int64)
    if isinstance(arg, np.ndarray):
        return np.ascontiguousarray(arg)
    if hasattr(arg, "data") and hasattr(arg.data, "ptr"):  # CuPy's arrays, see host_cupy
        return np.array([arg.data.ptr], np.int64)
    plain = isinstance(arg, bool | float) and not isinstance(arg, np.generic)
    assert not plain, f"a Python {type(arg).__name__} as a kernel argument: give it a C type"
    return np.array([arg], np.int64) if isinstance(arg, int) else np.asarray([arg])


def _empty(shape: Any, dtype: Any = np.float32) -> np.ndarray:
    array = np.empty(shape, dtype)
    _bytes(array)[...] = POISON
    return array


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.frombuffer((ctypes.c_ubyte * array.nbytes).from_address(array.ctypes.data), np.uint8)


@cache
def _function(instance: Instance) -> EmulatedFunction:
    return EmulatedFunction(instance)


def install(patch: pytest.MonkeyPatch) -> None:
    """Make CUDA twins run here, on NumPy arrays, for the time of a test."""
    compiler()
    runtime = SimpleNamespace(getDevice=lambda: 0, deviceGetAttribute=lambda attribute, device: 3)
    fakes = {
        "empty": _empty, "ndarray": np.ndarray, "cuda": SimpleNamespace(runtime=runtime),
        "zeros": lambda shape, dtype=np.float32: np.zeros(shape, dtype),
    }  # fmt: skip
    for name, fake in fakes.items():
        patch.setitem(vars(cp), name, fake)
    patch.setattr(Kernel, "function", lambda self: _function(self.instance))
    patch.setattr(
        _memory, "view", lambda slab, at, shape, dtype, strides=None: np.ndarray(shape, dtype, slab, at, strides)
    )
    patch.setattr(_memory, "address", lambda array: array.ctypes.data)
    patch.setattr(_memory, "zero", lambda slab, at, nbytes: slab[at : at + nbytes].fill(0))
    _launch._multiprocessors.cache_clear()
    assert _loader.SOURCES.is_dir()
