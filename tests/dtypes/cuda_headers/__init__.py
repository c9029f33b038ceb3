"""NVIDIA's conversion headers, compiled for the host: found, built once per session, called through ctypes."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent


def include_folder() -> Path | None:
    """The first folder that holds cuda_fp4.h (CUDA 12.8 and later) and what it includes."""
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    roots.append(Path("/usr/local/cuda"))
    nvidia = find_spec("nvidia")
    for place in (nvidia.submodule_search_locations or []) if nvidia else []:
        roots += [Path(place) / "cu13", Path(place) / "cuda_runtime"]
    for include in (root / "include" for root in roots):
        if (include / "cuda_fp4.h").is_file() and (include / "crt" / "host_defines.h").is_file():
            return include
    return None


def problem() -> str | None:
    """Why the headers cannot be used here, or None."""
    if shutil.which("g++") is None:
        return "oracle cuda_headers is not installed (no g++)"
    return None if include_folder() else "oracle cuda_headers is not installed (no cuda_fp4.h)"


class Casts:
    """Casts of float32 arrays to uint8 codes by NVIDIA's routines."""

    def __init__(self, folder: Path) -> None:
        library = folder / "libcasts.so"
        command = ["g++", "-O1", "-shared", "-fPIC", f"-I{include_folder()}", "-idirafter", str(HERE)]
        subprocess.run([*command, str(HERE / "casts.cpp"), "-o", str(library)], check=True, capture_output=True)
        self._library = ctypes.CDLL(str(library))

    def __call__(self, function: str, x: npt.ArrayLike, *flags: int) -> npt.NDArray[np.uint8]:
        """Return the codes that ``function`` of casts.cpp gives."""
        values = np.ascontiguousarray(x, np.float32)
        codes = np.empty(values.shape, np.uint8)
        pointers: tuple[Any, ...] = tuple(a.ctypes.data_as(ctypes.c_void_p) for a in (values, codes))
        getattr(self._library, function)(*pointers, ctypes.c_int64(values.size), *map(ctypes.c_int, flags))
        return codes
