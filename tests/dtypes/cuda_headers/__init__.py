"""NVIDIA's conversion headers, compiled for the host: found, built once per session, called through ctypes."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nvfp.dtypes import elements as el
from nvfp.dtypes.elements import Element

HERE = Path(__file__).parent
# Element: routine of casts.cpp and the flag that picks the format.
ROUTINES: dict[str, tuple[str, tuple[int, ...]]] = {
    "float8_e4m3fn": ("fp8", (0,)),
    "float8_e5m2": ("fp8", (1,)),
    "float6_e2m3fn": ("fp6", (0,)),
    "float6_e3m2fn": ("fp6", (1,)),
    "float4_e2m1fn": ("fp4", ()),
    "float8_e8m0fnu": ("e8m0", ()),
}


def include_folder() -> Path | None:
    """The first folder that holds cuda_fp4.h (CUDA 12.8 and later) and what it includes.

    The packages of the `compile` extra come before a toolkit of the machine: they are the ones CI installs.
    """
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    nvidia = find_spec("nvidia")
    for place in (nvidia.submodule_search_locations or []) if nvidia else []:
        roots += [Path(place) / "cu13", Path(place) / "cuda_runtime"]
    roots.append(Path("/usr/local/cuda"))
    for include in (root / "include" for root in roots):
        if (include / "cuda_fp4.h").is_file() and (include / "crt" / "host_defines.h").is_file():
            return include
    return None


def compiler() -> str | None:
    """A C++ compiler of this machine."""
    return next((found for name in ("g++", "clang++", "c++") if (found := shutil.which(name))), None)


def problem() -> str | None:
    """Why the headers cannot be used here, or None."""
    if include_folder() is None:
        return "oracle cuda_headers is not installed (no cuda_fp4.h)"
    return None if compiler() else "oracle cuda_headers is not built (no C++ compiler)"


class Casts:
    """NVIDIA's routines on arrays."""

    def __init__(self, folder: Path) -> None:
        library = folder / "libcasts.so"
        command = [str(compiler()), "-O1", "-shared", "-fPIC", f"-I{include_folder()}", "-idirafter", str(HERE)]
        subprocess.run([*command, str(HERE / "casts.cpp"), "-o", str(library)], check=True, capture_output=True)
        self._library = ctypes.CDLL(str(library))

    def encode(self, x: np.ndarray, element: Element, *, saturate: bool = True) -> npt.NDArray[np.uint8]:
        """Codes of float32, bfloat16 or float16 numbers, to nearest even; E8M0: toward zero."""
        name, flags = ROUTINES[element.name]
        source = x.dtype.name
        if element is el.float8_e8m0fnu:
            source, flags, x = "float32", (0, int(saturate)), widened(x)
        elif name == "fp8":
            flags = (*flags, int(saturate))
        raw = np.ascontiguousarray(x if source == "float32" else x.view(np.uint16))
        return self._run(f"to_{name}_{source}", raw, np.dtype(np.uint8), flags)

    def e8m0_up(self, x: npt.ArrayLike) -> npt.NDArray[np.uint8]:
        """E8M0 bytes of float32 numbers, rounded up, saturating: how NVIDIA's kernels choose a scale."""
        return self._run("to_e8m0_float32", np.ascontiguousarray(x, np.float32), np.dtype(np.uint8), (1, 1))

    def decode(self, codes: npt.NDArray[np.uint8], element: Element) -> npt.NDArray[np.float64]:
        """Values of codes."""
        name, flags = ROUTINES[element.name]
        raw = self._run(f"from_{name}", codes, np.dtype(np.uint16), flags if name != "e8m0" else ())
        return widened(raw.view(ml_dtypes.bfloat16 if name == "e8m0" else np.float16)).astype(np.float64)

    def _run(self, function: str, x: np.ndarray, dtype: np.dtype, flags: tuple[int, ...]) -> np.ndarray:
        out = np.empty(x.shape, dtype)
        pointers: tuple[Any, ...] = tuple(a.ctypes.data_as(ctypes.c_void_p) for a in (x, out))
        getattr(self._library, function)(*pointers, ctypes.c_int64(x.size), *map(ctypes.c_int, flags))
        return out


def widened(x: np.ndarray) -> npt.NDArray[np.float32]:
    """16-bit numbers as float32, signalling NaNs without a warning."""
    with np.errstate(invalid="ignore"):
        return np.asarray(x).astype(np.float32)
