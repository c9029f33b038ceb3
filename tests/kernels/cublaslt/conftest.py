"""Here `device` is the CPU with the CUDA launcher of `gemm` on it: NumPy memory, and cuBLASLt emulated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.kernels import _dispatch
from nvfp.kernels.cublaslt import binding, feed, plan, tuned
from nvfp.kernels.cublaslt.layout import alignment
from nvfp.kernels.cuda import _gemm_build, _gemm_call, gemm as launcher
from tests.kernels.cublaslt.emulator import FakeLt


class _Buffer(np.ndarray):
    """A NumPy array with the method of CuPy's that the launcher uses."""

    def set(self, host: np.ndarray, stream: Any = None) -> None:
        self[...] = host


class _Stream:
    ptr = 7

    def __init__(self, non_blocking: bool = False) -> None:
        assert non_blocking or self is not None

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def synchronize(self) -> None:
        return None


def _poisoned(shape: Any, dtype: Any) -> np.ndarray:
    """Uninitialised memory at its worst: every byte 0xFF, NaN in all floats."""
    found = np.ndarray(shape, dtype)
    found.view(np.uint8)[...] = 0xFF
    return found


def _empty(shape: Any, dtype: Any) -> np.ndarray:
    return np.empty(shape, dtype).view(_Buffer)


@pytest.fixture
def lt() -> FakeLt:
    """The emulated library; tests look at its calls."""
    return FakeLt()


@pytest.fixture
def device(lt: FakeLt, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The CPU, with GEMMs of NumPy arrays going through the CUDA launcher."""
    runtime = SimpleNamespace(getDevice=lambda: 0)
    cuda = SimpleNamespace(runtime=runtime, Stream=_Stream, get_current_stream=_Stream)
    cupy = SimpleNamespace(ndarray=_poisoned, zeros=np.zeros, empty=_empty, broadcast_to=np.broadcast_to, cuda=cuda)
    for module in (binding, feed, launcher, _gemm_call):
        monkeypatch.setattr(module, "cp", cupy)
    for module in (binding, feed, _gemm_build, _gemm_call):
        monkeypatch.setattr(module, "address", lambda array: array.__array_interface__["data"][0])
    monkeypatch.setattr(feed, "pointer", lambda array: array.__array_interface__["data"][0])
    for module in (feed, _gemm_build):  # NumPy's memory is aligned to 16, sometimes to more: equal for equal records
        monkeypatch.setattr(module, "alignment", lambda value: min(alignment(value), 16))
    monkeypatch.setattr(_gemm_build, "Device", lambda name: SimpleNamespace(compute_capability=(9, 0)))
    monkeypatch.setattr(binding, "_lt", lambda: lt)
    monkeypatch.setattr(binding, "_states", {})
    monkeypatch.setattr(plan, "_plans", {})
    monkeypatch.setattr(tuned, "_loaded", tuned._Loaded())
    monkeypatch.setattr(launcher, "_call_cache", [])
    monkeypatch.setattr(launcher, "_plain", {})
    monkeypatch.setitem(_dispatch._modules, ("cpu", "gemm"), launcher)
    return Device("cpu")
