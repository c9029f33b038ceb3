"""From a CUDA source to a kernel handle: NVRTC for the exact device, a cache on disk, one load per device.

A compiled kernel is found by `Instance`: source file, ``extern "C"`` name and ``-D`` macros. The key of
the disk cache is a hash of everything that decides the bits of the cubin (source, the headers of ours
that it includes, options, architecture, NVRTC's version) and of nothing else: no path, no Python or
package version, so that a cache filled on one machine serves another.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nvfp import config
from nvfp.errors import ArgumentError, KernelError, message
from nvfp.kernels.cuda._xp import cp
from nvfp.optional import need

SOURCES = Path(__file__).parent
INCLUDE = SOURCES / "include"
# -fmad=false: a product and a sum round apart unless the source writes fmaf, as on the CPU.
FLAGS = ("--std=c++17", "-ftz=false", "-prec-div=true", "-prec-sqrt=true")
ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_100f", "sm_120f")
_QUOTED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_INSTALL = "pip install 'nvfp[cuda13]' (CUDA 12: 'nvfp[cuda12]')"
Defines = tuple[tuple[str, str | int], ...]


@dataclass(frozen=True)
class Instance:
    """One compiled kernel.

    Attributes:
        source: a file beside this one.
        name: the ``extern "C"`` function in it.
        defines: (macro, value) pairs.
        fmad: whether ``a * b + c`` may contract.
    """

    source: str
    name: str
    defines: Defines = ()
    fmad: bool = False

    def __str__(self) -> str:
        macros = " ".join(f"{k}={v}" for k, v in self.defines)
        return f"{self.source}:{self.name}" + (f" [{macros}]" if macros else "")


def architecture(major: int, minor: int) -> str:
    """Return NVRTC's target for a compute capability, with the letter that unlocks its own instructions.

    Example:
        >>> architecture(9, 0), architecture(8, 9), architecture(10, 3)
        ('sm_90a', 'sm_89', 'sm_100f')
    """
    if major in (10, 12):
        return f"sm_{major}0f"  # family targets: one cubin serves 10.0 and 10.3, or 12.0 and 12.1
    return f"sm_{major}{minor}" + ("a" if (major, minor) == (9, 0) else "")


def options(instance: Instance, arch: str) -> tuple[str, ...]:
    """Return NVRTC's options without include paths (those are the machine's, not the kernel's)."""
    macros = tuple(f"-D{name}={value}" for name, value in instance.defines)
    return (f"-arch={arch}", *FLAGS, f"-fmad={'true' if instance.fmad else 'false'}", *macros)


def files_of(source: str) -> Iterator[Path]:
    """Yield a source and every header of ours that it includes, directly or not, in a fixed order."""
    waiting, seen = [SOURCES / source], set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        if not path.is_file():
            raise KernelError(message("kernels.cuda", f"a source file {path.name}", "none", "reinstall nvfp"))
        yield path
        waiting.extend(INCLUDE / name for name in reversed(_QUOTED.findall(path.read_text())))


@cache
def _digest(source: str) -> bytes:
    """Hash the text of a source and its headers, once per process."""
    h = hashlib.sha256()
    for path in files_of(source):
        text = path.read_bytes()
        h.update(f"{path.name}:{len(text)}:".encode() + text)
    return h.digest()


@cache
def nvrtc_version() -> tuple[int, int]:
    """Return NVRTC's (major, minor)."""
    nvrtc = need("cuda.bindings.nvrtc", extra="cuda13")
    try:
        error, major, minor = nvrtc.nvrtcVersion()  # loads the library
    except Exception as why:
        got = f"{type(why).__name__}: {' '.join(str(why).split())}"
        raise KernelError(message("kernels.cuda", "an NVRTC that loads", got, _INSTALL)) from why
    if int(error) != 0:
        raise KernelError(message("kernels.cuda", "a working NVRTC", error, _INSTALL))
    return int(major), int(minor)


def headers_version(folder: str) -> tuple[int, int] | None:
    """Return the CUDA version of the headers in a folder, None where they do not tell.

    Args:
        folder: that of ``cuda_runtime_api.h``.
    """
    try:
        text = Path(folder, "cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
    return None if found is None else (int(found[1]) // 1000, int(found[1]) % 1000 // 10)


def cache_key(instance: Instance, arch: str) -> bytes:
    """Return the disk cache's key of one kernel for one architecture."""
    parts = (str(nvrtc_version()), *options(instance, arch), _digest(instance.source).hex())
    return hashlib.sha256("\0".join(parts).encode()).digest()


@cache
def _store(root: Path) -> Any:
    """Open the cache folder (cuda.core's atomic files, shared between processes)."""
    try:
        return need("cuda.core.utils", extra="cuda13").FileStreamProgramCache(root)
    except OSError as error:
        raise KernelError(message("kernels.cuda", f"a writable folder {root}", error, "set NVFP_CACHE_DIR")) from error


def cache_dir() -> Path:
    """Return the folder of compiled kernels: ``$NVFP_CACHE_DIR/cubin``, else ``~/.cache/nvfp/cubin``."""
    root = config.get("NVFP_CACHE_DIR")
    return (Path(root) if root else Path.home() / ".cache" / "nvfp") / "cubin"


def cubin(instance: Instance, arch: str) -> bytes:
    """Return the machine code of a kernel, from the disk cache or freshly compiled into it.

    Raises:
        KernelError: NVRTC rejects the source; the message carries its log.
    """
    key, store = cache_key(instance, arch), _store(cache_dir())
    found: bytes | None = store.get(key)
    if found is None:
        found, _ = compile_cubin(instance, arch)
        try:
            store[key] = found
        except OSError as error:
            do = "make room, or set NVFP_CACHE_DIR"
            raise KernelError(message("kernels.cuda", f"room in {cache_dir()}", error, do)) from error
    return found


def keep(instance: Instance, arch: str, code: bytes) -> None:
    """Put machine code that `compile_cubin` made into the disk cache."""
    _store(cache_dir())[cache_key(instance, arch)] = code


def compile_cubin(instance: Instance, arch: str, extra: tuple[str, ...] = ()) -> tuple[bytes, str]:
    """Compile without any cache and return (cubin, NVRTC's log).

    Args:
        instance: what to compile.
        arch: NVRTC's target, e.g. ``"sm_90a"``.
        extra: further NVRTC options (tests and reports; they are not part of any key).

    Raises:
        KernelError: NVRTC rejects the source; the message carries its log.
    """
    headers = need("cuda.pathfinder", extra="cuda13").find_nvidia_header_directory("cudart")
    if headers is None:
        raise KernelError(message("kernels.cuda", "the CUDA headers", "none", _INSTALL))
    flags = (*options(instance, arch), f"-I{INCLUDE}", f"-I{headers}", *extra)
    try:
        return _nvrtc((SOURCES / instance.source).read_text(), instance, flags)
    except KernelError as error:
        found = headers_version(headers)
        if found is None or found[0] == nvrtc_version()[0]:
            raise
        got = f"NVRTC {'.'.join(map(str, nvrtc_version()))} with headers of {'.'.join(map(str, found))}"
        raise KernelError(message("kernels.cuda", "compiler and headers of one CUDA version", got, _INSTALL)) from error


def _nvrtc(text: str, instance: Instance, flags: tuple[str, ...]) -> tuple[bytes, str]:
    nvrtc = need("cuda.bindings.nvrtc", extra="cuda13")

    def call(function: Any, *args: Any) -> Any:
        error, *values = function(*args)
        if int(error) != 0:
            raise KernelError(message("kernels.cuda", "NVRTC to succeed", f"{function.__name__}: {error}", "report it"))
        return values[0] if values else None

    program = call(nvrtc.nvrtcCreateProgram, text.encode(), instance.source.encode(), 0, [], [])
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
        log = _buffer(call(nvrtc.nvrtcGetProgramLogSize, program))
        call(nvrtc.nvrtcGetProgramLog, program, log)
        report = log.rstrip(b"\0 ").decode(errors="replace")
        if int(status) != 0:
            got = f"{status} ({' '.join(flags)})\n{report}\n"
            raise KernelError(message("kernels.cuda", f"{instance} to compile", got, "fix the source or report it"))
        size = call(nvrtc.nvrtcGetCUBINSize, program)
        code = _buffer(size)
        call(nvrtc.nvrtcGetCUBIN, program, code)
        return code[:size], report
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _buffer(size: int) -> bytes:
    """Return bytes that the binding may write into, of at least ``size``.

    It writes in place. One-byte objects are shared by the whole process, and an empty log is one byte
    long: a buffer ``b" " * size`` would turn every one-byte ``b" "`` of the process into NUL.
    """
    return bytes(size + 2)


class Kernel:
    """One kernel on any device: the handle for the current device is loaded at first use and kept.

    Launch it with `nvfp.kernels.cuda._launch.launch`, which counts launches.
    """

    __slots__ = ("_functions", "_lock", "instance")

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._functions: dict[int, Any] = {}
        self._lock = threading.Lock()

    def function(self) -> Any:
        """Return the ``cupy.cuda.Function`` for the current device."""
        device = cp.cuda.runtime.getDevice()
        found = self._functions.get(device)
        return self._load(device) if found is None else found

    def _load(self, device: int) -> Any:
        with self._lock:  # one compile per key, however many threads ask
            if device not in self._functions:
                code = cubin(self.instance, device_architecture(device))
                module = cp.cuda.Module()
                try:
                    module.load(code)
                except Exception as error:
                    raise _refused(device, error) from error
                self._functions[device] = module.get_function(self.instance.name)
            return self._functions[device]

    def __repr__(self) -> str:
        return f"Kernel({self.instance})"


def _refused(device: int, error: Exception) -> KernelError:
    """What a driver that does not take a kernel is raised as."""
    made = f"NVRTC {'.'.join(map(str, nvrtc_version()))}"
    driver = int(cp.cuda.runtime.driverGetVersion())
    got = f"{error} (kernels by {made}, a driver for CUDA {driver // 1000}.{driver % 1000 // 10}, cuda:{device})"
    do = "update the NVIDIA driver, or install the extra of its CUDA version (python -m nvfp shows both)"
    return KernelError(message("kernels.cuda", "a driver that loads the kernel", got, do))


@cache
def device_architecture(device: int) -> str:
    """Return NVRTC's target for CUDA device number ``device``."""
    attribute = cp.cuda.runtime.deviceGetAttribute
    return architecture(attribute(75, device), attribute(76, device))  # cudaDevAttrComputeCapabilityMajor, ...Minor


_kernels: dict[tuple[str, str, Defines, bool], Kernel] = {}
_kernels_lock = threading.Lock()


def kernel(source: str, name: str, defines: Defines = (), *, fmad: bool = False) -> Kernel:
    """Return the ``extern "C"`` kernel ``name`` of ``source`` built with ``-D`` macros ``defines``.

    Nothing is compiled until the kernel is launched; the same arguments give the same object.

    Args:
        source: file name in ``nvfp/kernels/cuda``, e.g. ``"quantize.cu"``.
        name: the function in it.
        defines: (macro, value) pairs; their order is part of the key, so write it the same everywhere.
        fmad: let the compiler contract ``a * b + c``. Only for kernels whose bits are not promised.
    """
    key = (source, name, defines, fmad)
    found = _kernels.get(key)
    if found is None:
        if not source.endswith(".cu"):
            raise ArgumentError(message("kernels.cuda", "the name of a .cu file", source, "pass e.g. 'cast.cu'"))
        with _kernels_lock:
            found = _kernels.setdefault(key, Kernel(Instance(source, name, defines, fmad)))
    return found
