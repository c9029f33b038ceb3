"""The only dynamic import of the library: picks the CPU or CUDA module of a stem by array type.

Kernel rooms load when they are first needed, so that ``import nvfp`` loads neither Numba nor CuPy.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

import numpy as np

from nvfp.errors import DeviceError, DTypeError, NvfpError, message
from nvfp.kernels.operand import Operand

Kind = Literal["cpu", "cuda"]
_modules: dict[tuple[str, str], Any] = {}
_load: Callable[[str], Any] = import_module
KINDS: dict[type, Kind] = {np.ndarray: "cpu"}  # of the array types seen so far
CUDA_TYPES: list[type] = []  # those of CUDA arrays
_SCALARS = (bool, int, float)


def kind_of(array: Any) -> Kind:
    """Return ``"cpu"`` for a NumPy array and ``"cuda"`` for a CuPy array (an Operand: its codes)."""
    if type(array) is Operand:
        array = array.codes
    kind = KINDS.get(type(array))
    if kind is None:
        if isinstance(array, np.ndarray | np.generic):
            kind = "cpu"
        elif type(array).__module__.partition(".")[0] == "cupy":
            kind = "cuda"
            CUDA_TYPES.append(type(array))
        else:
            problem = getattr(array, "problem", None)  # of a parameter that has no memory yet
            if isinstance(problem, NvfpError):
                raise problem
            name = type(array).__name__
            raise DTypeError(message("kernels", "a NumPy or CuPy array", name, "convert it with nf.asarray"))
        KINDS[type(array)] = kind
    return kind


def module(stem: str, kind: str) -> Any:
    """Return ``nvfp.kernels.<kind>.<stem>``, imported at first use."""
    found = _modules.get((kind, stem))
    if found is None:
        found = _modules[kind, stem] = _load(f"nvfp.kernels.{kind}.{stem}")
    return found


def load_with(load: Callable[[str], Any]) -> None:
    """Find the modules of stems through ``load(dotted name)`` from now on (`nf.inspect.nvtx`; else `import_module`)."""
    global _load
    _load = load
    _modules.clear()


def watched() -> bool:
    """Whether somebody looks at how modules are called: then every call goes through them."""
    return _load is not import_module


def backend(stem: str, *arrays: Any) -> Any:
    """Return the module of ``stem`` for the device that all ``arrays`` (None is skipped) share."""
    kind: Kind | None = None
    for array in arrays:
        if array is None:
            continue
        this = KINDS.get(type(array))
        if this is None:
            if isinstance(array, _SCALARS):
                continue
            this = kind_of(array)
        if kind is not None and this != kind:
            raise DeviceError(
                message(stem, "all arrays on one device", "CPU and CUDA ones", "move one: x.to_device(...)")
            )
        kind = this
    return module(stem, kind or "cpu")


def place_like(array: np.ndarray, like: Any) -> Any:
    """Return a NumPy array on the device of ``like`` (a host-to-device copy for CuPy)."""
    if kind_of(like) == "cpu":
        return array
    from nvfp.optional import need

    return need("cupy", extra="cuda13").asarray(array)


def zero_word(like: Any) -> Any:
    """Return a new float32 word of 0 on the device of ``like`` (on CUDA a memset, no copy from the host)."""
    if kind_of(like) == "cpu":
        return np.zeros((), np.float32)
    from nvfp.optional import need

    return need("cupy", extra="cuda13").zeros((), np.float32)
