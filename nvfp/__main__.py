"""``python -m nvfp``: what nvfp finds here, what is missing, and what each dtype can do.

Prints versions, devices, the requirements of the CUDA side with their remedies, and for every dtype
whether cast and GEMM are native, emulated or absent. It never fails because of a GPU or a driver.
"""

from __future__ import annotations

import argparse
import ctypes
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import nvfp
from nvfp.capability import Capability
from nvfp.device import cuda_problem, devices
from nvfp.dtypes import elements as el
from nvfp.dtypes.elements import Element
from nvfp.dtypes.formats import FORMATS, QuantDType
from nvfp.errors import ArgumentError, MissingDependencyError
from nvfp.files import commands
from nvfp.optional import need

PACKAGES = (
    ("numpy",), ("numba",), ("ml-dtypes",), ("array-api-compat",), ("safetensors",),
    ("cupy-cuda13x", "cupy-cuda12x", "cupy"), ("cuda-bindings",), ("cuda-core",), ("nvmath-python",),
    ("nvidia-cudnn-frontend",),
)  # fmt: skip
DENSE = (el.float32, el.bfloat16, el.float16)
INSTALL = "pip install 'nvfp[cuda13]' (CUDA 12: 'nvfp[cuda12]')"


@dataclass(frozen=True)
class Requirement:
    """Something CUDA needs: how its version is read, the oldest one that will do, and the remedy."""

    name: str
    purpose: str
    probe: Callable[[], tuple[int, ...]]
    oldest: tuple[int, ...]
    remedy: str

    def row(self) -> tuple[str, ...]:
        """Return (name, state, version, what to do, purpose); a probe that fails means missing."""
        try:
            found = self.probe()
        except Exception as error:
            broken = isinstance(error, MissingDependencyError) and not isinstance(error.__cause__, ModuleNotFoundError)
            cause = f" ({' '.join(str(error.__cause__).split())})" if broken else ""
            return self.name, "missing", "-", f"{self.remedy}{cause}", self.purpose
        state = "ok" if found >= self.oldest else "too old"
        todo = "" if state == "ok" else f"needs {_dots(self.oldest)} or newer: {self.remedy}"
        return self.name, state, _dots(found), todo, self.purpose


def _driver() -> tuple[int, ...]:
    """The newest CUDA version that the driver takes; asks without starting CUDA."""
    library = ctypes.CDLL("nvcuda.dll" if platform.system() == "Windows" else "libcuda.so.1")
    number = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(number))
    return number.value // 1000, number.value % 1000 // 10


def _nvrtc() -> tuple[int, ...]:
    _, major, minor = need("cuda.bindings.nvrtc", extra="cuda13").nvrtcVersion()
    return int(major), int(minor)


def _headers() -> tuple[int, ...]:
    """The CUDA version of the headers that kernels include (cuda_runtime_api.h: CUDART_VERSION)."""
    folder = need("cuda.pathfinder", extra="cuda13").find_nvidia_header_directory("cudart")
    if folder is None:
        raise FileNotFoundError("cuda_runtime_api.h")
    with open(f"{folder}/cuda_runtime_api.h", encoding="utf-8", errors="replace") as file:
        number = next(int(line.split()[2]) for line in file if line.startswith("#define CUDART_VERSION"))
    return number // 1000, number % 1000 // 10


def _cublas() -> tuple[int, ...]:
    path = need("cuda.pathfinder", extra="cuda13").load_nvidia_dynamic_lib("cublasLt").abs_path
    library = ctypes.CDLL(path)
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    number = int(library.cublasLtGetVersion())
    return (number // 10000, number % 10000 // 100, number % 100)


def _cudnn() -> tuple[int, ...]:
    number = int(need("cudnn", extra="cuda13").backend_version())
    return number // 10000, number % 10000 // 100, number % 100


def _requirements() -> tuple[Requirement, ...]:
    try:
        driver = (_nvrtc()[0], 0)  # a driver loads what a compiler of its own major version made
    except Exception:
        driver = (12, 0)
    return (
        Requirement("driver", "GPU access", _driver, driver, "install an NVIDIA driver (CUDA 13: 580 or newer)"),
        Requirement("NVRTC", "compiles the kernels", _nvrtc, (12, 9), INSTALL),
        Requirement("CUDA headers", "included by the kernels", _headers, (12, 9), INSTALL),
        Requirement("cuBLASLt", "GEMM", _cublas, (12, 9), INSTALL),
        Requirement("cuDNN", "attention", _cudnn, (9, 10), INSTALL),
    )


def _dots(numbers: Iterable[int]) -> str:
    return ".".join(map(str, numbers))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a text table with aligned columns, indented by two.

    Args:
        head: column titles.
        rows: cells; a row may be shorter or longer than ``head``.

    Returns:
        One line per row, the head first.

    Example:
        >>> table(["name", "state"], [["driver", "ok"]])
        ['  name    state', '  driver  ok']
    """
    cells = [list(head), *map(list, rows)]
    widths = [max(len(row[i]) for row in cells if i < len(row)) for i in range(max(map(len, cells)))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in cells
    ]


def _version(names: Sequence[str]) -> tuple[str, str]:
    for name in names:
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    return names[0], "not installed"


def _versions() -> list[str]:
    rows = [("nvfp", nvfp.__version__), ("python", platform.python_version()), *map(_version, PACKAGES)]
    return ["versions", *table(("package", "version"), rows)]


def _devices() -> list[str]:
    rows = [(str(d), "" if d.compute_capability is None else _dots(d.compute_capability), d.name) for d in devices()]
    problem = cuda_problem()
    return ["devices", *table(("device", "capability", "name"), rows), *([f"  no CUDA: {problem}"] if problem else [])]


def _support(capability: Capability) -> list[str]:
    where = "cpu" if capability.compute is None else f"compute capability {_dots(capability.compute)}"
    dtypes: tuple[QuantDType | Element, ...] = (*DENSE, *FORMATS.values())
    found = [(dtype.name, capability.cast(dtype), capability.gemm(dtype)) for dtype in dtypes]
    casts = dict.fromkeys(cast.reason for _, cast, _ in found)
    rows = [(name, cast.level, gemm.level, gemm.reason) for name, cast, gemm in found]
    return [f"dtypes on {where}", *table(("dtype", "cast", "GEMM", "how the GEMM is done"), rows),
            *(f"  casts: {reason}" for reason in casts)]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report, or run a command on checkpoints (``inspect``, ``convert``).

    Args:
        arguments: command line without the program's name; None: `sys.argv`.

    Returns:
        The exit code: 0, or 1 where a command failed.

    Raises:
        SystemExit: the command line is wrong (code 2), or asked for help.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words and words[0] in commands.COMMANDS:
        return commands.run(words)
    parser = argparse.ArgumentParser(
        prog="python -m nvfp",
        description="What nvfp finds on this machine.",
        epilog="python -m nvfp inspect DIR, python -m nvfp convert SRC DST --to DTYPE: checkpoints; see their --help.",
    )
    parser.add_argument(
        "--capability", metavar="X.Y", help="print only the dtype table of another chip: 10.0, sm_90a, or cpu"
    )
    chosen = parser.parse_args(words).capability
    if chosen is not None:
        try:
            sections = [_support(Capability.parse(chosen))]
        except ArgumentError as error:
            parser.error(str(error))
    else:
        found = dict.fromkeys(device.compute_capability for device in devices())
        rows = [requirement.row() for requirement in _requirements()]
        needs = [
            "requirements of CUDA devices",
            *table(("what", "state", "version", "remedy", "for"), rows),
        ]
        sections = [_versions(), _devices(), needs, *(_support(Capability(compute)) for compute in found)]
    print("\n\n".join("\n".join(lines) for lines in sections))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
