"""The kernel loader: targets, cache keys, one load per device, messages. No GPU, and mostly no compiler."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nvfp.errors import KernelError
from nvfp.kernels.cuda import _launch, _loader
from nvfp.kernels.cuda._launch import count_launches, grid_for, launch, launches
from nvfp.kernels.cuda._loader import Instance, Kernel, architecture, cache_key, files_of, kernel, options
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp
from tests.kernels.cuda.nvrtc import need_nvrtc

CAST = Instance("cast.cu", "cast_flat", (("T_IN", "float"), ("T_OUT", "__half")))


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_loader, "nvrtc_version", lambda: (13, 0))


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the CUDA sources that may be edited."""
    folder = tmp_path / "elsewhere" / "cuda"
    shutil.copytree(_loader.SOURCES, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    monkeypatch.setattr(_loader, "SOURCES", folder)
    monkeypatch.setattr(_loader, "INCLUDE", folder / "include")
    _loader._digest.cache_clear()
    yield folder
    _loader._digest.cache_clear()


def test_architectures() -> None:
    found = [architecture(*c) for c in ((8, 0), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1), (11, 0))]
    assert found == ["sm_80", "sm_89", "sm_90a", "sm_100f", "sm_100f", "sm_120f", "sm_120f", "sm_110"]


def test_options_keep_subnormals_and_rounding() -> None:
    flags = options(CAST, "sm_90a")
    assert {"-ftz=false", "-prec-div=true", "-prec-sqrt=true", "-fmad=false", "-arch=sm_90a", "--std=c++17"} <= set(
        flags
    )
    assert "-fmad=true" in options(Instance("a.cu", "a", fmad=True), "sm_80")
    assert flags[-2:] == ("-DT_IN=float", "-DT_OUT=__half")


@pytest.mark.usefixtures("version")
def test_key_tells_everything_that_decides_the_code() -> None:
    other = Instance("cast.cu", "cast_flat", (("T_IN", "float"), ("T_OUT", "double")))
    keys = [
        cache_key(CAST, "sm_90a"), cache_key(CAST, "sm_80"), cache_key(other, "sm_90a"),
        cache_key(Instance(CAST.source, CAST.name, CAST.defines, fmad=True), "sm_90a"),
        cache_key(Instance("amax.cu", CAST.name, CAST.defines), "sm_90a"),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert cache_key(CAST, "sm_90a") == keys[0]


def test_key_tells_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = set()
    for number in ((12, 9), (13, 0)):
        monkeypatch.setattr(_loader, "nvrtc_version", lambda number=number: number)
        keys.add(cache_key(CAST, "sm_90a"))
    assert len(keys) == 2


@pytest.mark.usefixtures("version")
def test_key_does_not_tell_the_place(sources: Path) -> None:
    moved = cache_key(CAST, "sm_90a")
    _loader._digest.cache_clear()
    original = Path(_loader.__file__).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_loader, "SOURCES", original)
        patch.setattr(_loader, "INCLUDE", original / "include")
        assert cache_key(CAST, "sm_90a") == moved
    assert sources != original


@pytest.mark.usefixtures("version")
@pytest.mark.parametrize("header", ["convert.cuh", "encode.cuh"])
def test_key_changes_with_an_included_header(sources: Path, header: str) -> None:
    before, beside = cache_key(CAST, "sm_90a"), cache_key(Instance("transpose.cu", "x"), "sm_90a")
    with (sources / "include" / header).open("a") as file:
        file.write("// touched\n")
    _loader._digest.cache_clear()
    assert cache_key(CAST, "sm_90a") != before
    assert cache_key(Instance("transpose.cu", "x"), "sm_90a") == beside  # it does not include that header


def test_includes_are_followed() -> None:
    names = {path.name for path in files_of("quantize_block1d.cu")}
    assert {"quantize_block1d.cu", "quantize_tile.cuh", "format.cuh", "scales.cuh", "encode.cuh"} <= names
    with pytest.raises(KernelError, match=r"no_such\.cu"):
        list(files_of("no_such.cu"))


def test_a_source_that_does_not_compile_shows_the_log(sources: Path) -> None:
    need_nvrtc()
    (sources / "broken.cu").write_text('extern "C" __global__ void broken() { undeclared_thing = 1; }\n')
    with pytest.raises(KernelError, match="undeclared_thing") as error:
        _loader.compile_cubin(Instance("broken.cu", "broken"), "sm_90a")
    assert "broken.cu:broken" in str(error.value)


def test_the_disk_cache_serves_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_nvrtc()
    monkeypatch.setenv("NVFP_CACHE_DIR", str(tmp_path))
    first = _loader.cubin(CAST, "sm_90a")
    monkeypatch.setattr(_loader, "compile_cubin", lambda *a: pytest.fail("compiled again"))
    assert _loader.cubin(CAST, "sm_90a") == first
    assert first[:4] == b"\x7fELF"
    _loader._store.cache_clear()


def test_a_cache_folder_that_cannot_be_made_names_the_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_nvrtc()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NVFP_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(KernelError, match="NVFP_CACHE_DIR"):
        _loader.cubin(CAST, "sm_90a")


class FakeModule:
    """A ``cupy.cuda.Module`` whose functions note their launches."""

    log: list[tuple[Any, ...]]

    def load(self, code: bytes) -> None:
        self.code = code

    def get_function(self, name: str) -> Any:
        return lambda *call: FakeModule.log.append((self.code, name, *call))


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Two devices that run nothing; ``current`` is the one in use, ``compiled`` what was asked of the compiler."""
    state = SimpleNamespace(current=0, compiled=[])
    runtime = SimpleNamespace(
        getDevice=lambda: state.current, deviceGetAttribute=lambda attribute, device: {75: 9, 76: 0, 16: 132}[attribute]
    )
    monkeypatch.setitem(vars(cp), "cuda", SimpleNamespace(runtime=runtime, Module=FakeModule))

    def cubin(instance: Instance, arch: str) -> bytes:
        time.sleep(0.01)
        state.compiled.append((instance, arch))
        return arch.encode()

    monkeypatch.setattr(_loader, "cubin", cubin)
    _loader.device_architecture.cache_clear()
    _launch._multiprocessors.cache_clear()
    FakeModule.log = []
    return state


def test_a_kernel_is_loaded_once_per_device(gpus: SimpleNamespace) -> None:
    fresh = Kernel(CAST)
    threads = [threading.Thread(target=fresh.function) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gpus.compiled == [(CAST, "sm_90a")]
    gpus.current = 1
    assert fresh.function() is fresh.function()
    assert len(gpus.compiled) == 2


def test_equal_requests_share_a_kernel() -> None:
    assert kernel(CAST.source, CAST.name, CAST.defines) is kernel(CAST.source, CAST.name, CAST.defines)
    assert kernel(CAST.source, CAST.name, CAST.defines, fmad=True) is not kernel(CAST.source, CAST.name, CAST.defines)
    with pytest.raises(ValueError, match=r"\.cu"):
        kernel("cast", "cast_flat")


def test_launches_are_counted(gpus: SimpleNamespace) -> None:
    fresh = Kernel(CAST)
    before = launches()
    with count_launches() as count:
        launch(fresh, (3,), (256,), (1, np.int32(2)))
        launch(fresh, (0,), (256,), ())
        launch(fresh, (1, 0), (256,), ())
        launch(fresh, (1, 2), (256,), (), 1024)
    assert count.n == 2 == launches() - before
    assert FakeModule.log[0] == (b"sm_90a", "cast_flat", (3,), (256,), (1, np.int32(2)), 0)
    assert FakeModule.log[1][-1] == 1024
    assert gpus.current == 0


@pytest.mark.usefixtures("gpus")
def test_grids() -> None:
    assert grid_for(0, 256) == (0,)
    assert grid_for(1, 256) == (1,)
    assert grid_for(257, 256) == (2,)
    assert grid_for(10**9, 256, per_sm=8) == (132 * 8,)
    assert grid_for(10**4, 256, per_thread=4) == (10,)


def test_narrow_dtypes_have_no_c_type() -> None:
    import ml_dtypes

    assert ctype(np.dtype(ml_dtypes.bfloat16)) == "__nv_bfloat16"
    with pytest.raises(TypeError, match="uint8"):
        ctype(np.dtype(ml_dtypes.float8_e4m3fn))


def test_compiling_leaves_the_bytes_that_python_shares_alone() -> None:
    """NVRTC writes an empty log of one byte into the buffer it is given; b" " of the whole process became NUL."""
    need_nvrtc()
    _, log = _loader.compile_cubin(CAST, "sm_90a")
    assert not log
    assert [bytes([i])[0] for i in range(256)] == list(range(256))  # bytes([i]) are the shared objects
