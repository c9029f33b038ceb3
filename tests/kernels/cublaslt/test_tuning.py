"""`tune`: which algorithm is chosen, written, loaded and used; over the emulated library, with a clock of our own."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.device import Device
from nvfp.dtypes.formats import fp8_e4m3, fp8_e4m3_b128
from nvfp.errors import ArgumentError, DeviceError
from nvfp.kernels.cublaslt import plan, tuned, tuning
from nvfp.kernels.gemm import gemm
from tests.kernels.cublaslt.emulator import FakeLt
from tests.kernels.gemm_operands import BF16, SQUARE128, dense, operand

_TIMES = [3.0, 2.99, 1.0, 5.0]


@pytest.fixture
def tunable(device: Device, lt: FakeLt, monkeypatch: pytest.MonkeyPatch) -> FakeLt:
    """The emulated library with four algorithms, of which the third is the fastest."""
    lt.proposed = 4

    class Place:
        def __init__(self, index: int) -> None:
            assert index == 0

        def __enter__(self) -> None:
            return None

        def __exit__(self, *exception: object) -> None:
            return None

    runtime = SimpleNamespace(getDevice=lambda: 0)
    stream = lambda: SimpleNamespace(ptr=7)  # noqa: E731
    cuda = SimpleNamespace(runtime=runtime, Device=Place, get_current_stream=stream)
    cupy = SimpleNamespace(cuda=cuda, zeros=np.zeros, ones=np.ones, full=np.full)

    def measure(calls: list[Any]) -> list[float]:
        for call in calls:
            call()
        return _TIMES[: len(calls)]

    draw = tuning.random
    monkeypatch.setattr(tuning, "cp", cupy)
    monkeypatch.setattr(tuning, "address", lambda array: array.__array_interface__["data"][0])
    monkeypatch.setattr(tuning, "random", lambda *args, **given: draw(*args, **{**given, "device": "cpu"}))
    monkeypatch.setattr(tuning, "measure", measure)
    monkeypatch.setattr(tuned, "place", lambda device: ("a GPU", 130100))
    monkeypatch.setattr(tuning, "_device", lambda device: SimpleNamespace(index=0))
    return lt


def products() -> None:
    """Products of every kind of record."""
    rng = np.random.default_rng(90)
    x, w, bias = dense(rng, (16, 32), BF16), dense(rng, (32, 16), BF16), dense(rng, (16,), BF16)
    gemm(x, w, bias=bias)
    gemm(x, w, epilogue="gelu", aux_out=np.zeros((16, 16), BF16))
    gemm(dense(rng, (3, 16, 32)), dense(rng, (3, 32, 16)), out=np.zeros((3, 16, 16), np.float32), accumulate=True)
    a, b = operand(rng, fp8_e4m3, (16, 32)), operand(rng, fp8_e4m3, (16, 32)).T
    word = np.asarray(np.float32(1))
    gemm(a, b, out_format=fp8_e4m3, out_scale=word, amax_out=word.copy())
    for right in (fp8_e4m3_b128, SQUARE128):
        gemm(operand(rng, fp8_e4m3_b128, (16, 256)), operand(rng, right, (16, 256)).T, dtype=BF16)
    rows = fp8_e4m3.replace(block=64)
    gemm(operand(rng, rows, (16, 64)), operand(rng, rows, (16, 64)).T, dtype=BF16)


def test_the_fastest_is_written_loaded_and_used(tunable: FakeLt, tmp_path: Path) -> None:
    products()
    assert {c["algorithm"] for c in tunable.calls} == {0}
    file = tmp_path / "sub" / "tuned.json"
    found = nf.tune(file, progress=False)
    assert len(found) == 7 and {t.chosen for t in found} == {2} and found[0].ms == tuple(_TIMES)
    assert str(found[0]).startswith("1.0000 ms, x 3.00, number 2 of 4: Y[16, 16]")
    tunable.calls.clear()
    products()
    assert {c["algorithm"] for c in tunable.calls} == {0}  # nothing changes before a file is loaded
    tunable.calls.clear()
    assert nf.tune.load(file) == 7
    products()
    assert {c["algorithm"] for c in tunable.calls} == {2}
    tunable.calls.clear()
    nf.tune.unload()
    products()
    assert {c["algorithm"] for c in tunable.calls} == {0}


def test_files_are_kept_apart_by_gpu_and_version(
    tunable: FakeLt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tuned.json"
    products()
    nf.tune(file)
    monkeypatch.setattr(tuned, "place", lambda device: ("a GPU", 140000))
    nf.tune(file)
    assert len(json.loads(file.read_text())["entries"]) == 14
    monkeypatch.setattr(tuned, "place", lambda device: ("another GPU", 130100))
    assert nf.tune.load(file) == 14
    tunable.calls.clear()
    products()
    assert {c["algorithm"] for c in tunable.calls} == {0}


def test_a_small_gain_is_noise(tunable: FakeLt, tmp_path: Path) -> None:
    tunable.proposed = 2
    products()
    assert {t.chosen for t in nf.tune(tmp_path / "tuned.json")} == {0}


def test_the_switch_loads_a_file(tunable: FakeLt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVFP_CACHE_DIR", str(tmp_path))
    assert nf.tune.path() == tmp_path / "gemm-tuning.json"
    products()
    nf.tune()
    for switch in ("1", str(nf.tune.path())):
        monkeypatch.setenv("NVFP_GEMM_TUNING", switch)
        monkeypatch.setattr(tuned, "_loaded", tuned._Loaded())
        plan.forget_plans()
        tunable.calls.clear()
        products()
        assert {c["algorithm"] for c in tunable.calls} == {2}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": "other", "entries": []}',
        '{"format": "nvfp-gemm-tuning-1", "entries": [{"algorithm": "00"}]}',
    ],
)
def test_files_that_are_none(tunable: FakeLt, tmp_path: Path, text: str) -> None:
    file = tmp_path / "tuned.json"
    with pytest.raises(ArgumentError, match="nvfp-gemm-tuning-1"):
        nf.tune.load(file)
    file.write_text(text)
    with pytest.raises(ArgumentError, match="nvfp-gemm-tuning-1"):
        nf.tune.load(file)
    products()
    with pytest.raises(ArgumentError):
        nf.tune(file)
    assert file.read_text() == text


def test_nothing_to_tune(tunable: FakeLt, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="run a step first"):
        nf.tune(tmp_path / "tuned.json")


def test_the_cpu_has_no_choice() -> None:
    with pytest.raises(DeviceError, match="a CUDA device"):
        nf.tune(device="cpu")
    with pytest.raises(DeviceError, match="a CUDA device"):
        nf.gemm_stats("cpu")


def test_stats_of_plans(device: Device) -> None:
    products()
    before = nf.gemm_stats()
    products()
    assert before.size == before.misses == 7 and nf.gemm_stats(0).misses == 7
