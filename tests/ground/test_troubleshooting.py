"""docs/troubleshooting.md: what may be missing, mixed or too old gives one typed error that names the remedy.

The part that is missing is faked; every message is looked up in the page.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nvfp import device, optional
from nvfp.errors import DeviceError, KernelError, MissingDependencyError
from nvfp.kernels.cublaslt import binding
from nvfp.kernels.cuda import _loader
from nvfp.kernels.cuda._loader import Instance, Kernel
from nvfp.kernels.cuda._xp import cp
from tests.structure.tree import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
CAST = Instance("cast.cu", "cast_flat", (("T_IN", "float"), ("T_OUT", "__half")))


@pytest.fixture(autouse=True)
def caches() -> Any:
    """Nothing that a fake found out stays."""
    found = (_loader.nvrtc_version, _loader._store, device._cuda, optional.need)
    yield [f.cache_clear() for f in found]
    for f in found:
        f.cache_clear()


def is_told(error: pytest.ExceptionInfo[Any], *words: str) -> None:
    text = str(error.value)
    for word in words:
        assert word in text, f"{word!r} is not in {text!r}"
    expected = text.partition("expected ")[2].partition(", got")[0]
    assert f"expected {expected}" in PAGE, f"docs/troubleshooting.md does not explain 'expected {expected}'"


def fake_nvrtc(monkeypatch: pytest.MonkeyPatch, version: Any) -> None:
    monkeypatch.setattr(_loader, "need", lambda *a, **k: SimpleNamespace(nvrtcVersion=version))


def missing(*args: Any) -> Any:
    raise RuntimeError("libfake.so: cannot open shared object file")


def test_nvrtc_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvrtc(monkeypatch, missing)
    with pytest.raises(KernelError) as error:
        _loader.nvrtc_version()
    is_told(error, "libfake.so", "pip install 'nvfp[cuda13]'")


def test_headers_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pathfinder = SimpleNamespace(find_nvidia_header_directory=lambda name: None)
    monkeypatch.setattr(_loader, "need", lambda *a, **k: pathfinder)
    with pytest.raises(KernelError) as error:
        _loader.compile_cubin(CAST, "sm_90a")
    is_told(error, "pip install 'nvfp[cuda13]'")


def test_headers_of_another_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  12090\n")
    assert _loader.headers_version(str(tmp_path)) == (12, 9)
    pathfinder = SimpleNamespace(find_nvidia_header_directory=lambda name: str(tmp_path))
    monkeypatch.setattr(_loader, "need", lambda *a, **k: pathfinder)
    monkeypatch.setattr(_loader, "nvrtc_version", lambda: (13, 0))

    def refuse(*args: Any) -> Any:
        raise KernelError("does not compile")

    monkeypatch.setattr(_loader, "_nvrtc", refuse)
    with pytest.raises(KernelError) as error:
        _loader.compile_cubin(CAST, "sm_90a")
    is_told(error, "NVRTC 13.0 with headers of 12.9")
    monkeypatch.setattr(_loader, "nvrtc_version", lambda: (12, 9))
    with pytest.raises(KernelError, match="does not compile"):
        _loader.compile_cubin(CAST, "sm_90a")


def test_the_driver_is_too_old_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        def load(self, code: bytes) -> None:
            raise RuntimeError("CUDA_ERROR_UNSUPPORTED_PTX_VERSION")

    runtime = SimpleNamespace(getDevice=lambda: 0, driverGetVersion=lambda: 12040)
    monkeypatch.setitem(vars(cp), "cuda", SimpleNamespace(runtime=runtime, Module=Module))
    monkeypatch.setattr(_loader, "cubin", lambda *a: b"")
    monkeypatch.setattr(_loader, "device_architecture", lambda index: "sm_90a")
    monkeypatch.setattr(_loader, "nvrtc_version", lambda: (13, 0))
    with pytest.raises(KernelError) as error:
        Kernel(CAST).function()
    is_told(error, "UNSUPPORTED_PTX", "NVRTC 13.0", "CUDA 12.4", "update the NVIDIA driver")


def test_the_cache_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(dict[bytes, bytes]):
        def __setitem__(self, key: bytes, value: bytes) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(_loader, "_store", lambda root: Full())
    monkeypatch.setattr(_loader, "cache_key", lambda *a: b"key")
    monkeypatch.setattr(_loader, "compile_cubin", lambda *a: (b"code", ""))
    monkeypatch.setenv("NVFP_CACHE_DIR", "somewhere")
    with pytest.raises(KernelError, match=r"room in somewhere.*NVFP_CACHE_DIR"):
        _loader.cubin(CAST, "sm_90a")
    assert "expected room in" in PAGE


def test_the_cache_cannot_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(root: Path) -> Any:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(_loader, "need", lambda *a, **k: SimpleNamespace(FileStreamProgramCache=refuse))
    with pytest.raises(KernelError, match=r"a writable folder.*NVFP_CACHE_DIR"):
        _loader._store(tmp_path)
    assert "expected a writable folder" in PAGE


def test_cublaslt_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "_lt", lambda: SimpleNamespace(create=missing))
    with pytest.raises(KernelError) as error:
        binding.DeviceState()
    is_told(error, "libfake.so", "python -m nvfp")


def test_two_distributions_of_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional, "_is_installed", lambda name: name != "cupy-cuda11x")
    with pytest.raises(MissingDependencyError) as error:
        optional.need("cupy", extra="cuda13")
    is_told(error, "cupy-cuda13x and cupy-cuda12x", "pip uninstall")


def test_a_package_is_missing() -> None:
    with pytest.raises(MissingDependencyError) as error:
        optional.need("no_such_package", extra="cuda13")
    is_told(error, "pip install 'nvfp[cuda13]'")


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (RuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient"), "insufficient"),
        (None, "compute capability"),
    ],
    ids=["old driver", "old GPU"],
)
def test_a_gpu_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, cause: Exception | None, words: str) -> None:
    def count() -> int:
        if cause is not None:
            raise cause
        return 1

    gpu = SimpleNamespace(compute_capability="61")
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=count), Device=lambda i: gpu))
    monkeypatch.setattr(device.ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(device, "has", lambda name: True)
    monkeypatch.setattr(device, "need", lambda *a, **k: cupy)
    assert words in (device.cuda_problem() or "")
    with pytest.raises(DeviceError) as error:
        device.check_usable("cuda")
    is_told(error, words, "python -m nvfp")


def test_importing_never_fails_because_of_a_gpu(tmp_path: Path) -> None:
    """CuPy, NVRTC's bindings and the frontends raise at import; nvfp does not touch them."""
    for name in ("cupy", "cuda", "nvmath", "cudnn"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('broken')\n")
    code = "import nvfp as nf; print(nf.default_device(), nf.ones((2,), device='cpu').sum().item())"
    path = f"{tmp_path}:{ROOT}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": path, "PATH": "", "NVFP_DEVICE": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["cpu", "2.0"]
