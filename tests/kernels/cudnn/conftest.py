"""Here `device` is the CPU with cuDNN emulated over NumPy memory, and a GPU with the library."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nvfp.device import Device, cuda_problem
from nvfp.kernels.cudnn import binding, plan, record, run, words
from tests.kernels.cudnn.emulator import FakeCudnn


class _Word(np.ndarray):
    """A NumPy array with the method of CuPy's that `words` uses."""

    def set(self, host: np.ndarray, stream: Any = None) -> None:
        self[...] = host


class _Stream:
    ptr = 7
    capturing = False

    def __init__(self, non_blocking: bool = False) -> None:
        assert non_blocking or self is not None

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def synchronize(self) -> None:
        return None

    def is_capturing(self) -> bool:
        return type(self).capturing


def _aligned(shape: Any, dtype: Any) -> np.ndarray:
    """Memory aligned to 64 bytes and at its worst: every byte 0xFF, NaN in all floats."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.full(count + 64, 0xFF, np.uint8)
    start = -memory.__array_interface__["data"][0] % 64
    return memory[start : start + count].view(dtype).reshape(shape)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeCudnn:
    """The emulated library, in place of the real one; tests look at what it was asked for."""
    fake = FakeCudnn()
    stream = type("_ThisStream", (_Stream,), {})
    cuda = SimpleNamespace(
        runtime=SimpleNamespace(getDevice=lambda: 0), Stream=stream, get_current_stream=stream
    )  # fmt: skip
    cupy = SimpleNamespace(ndarray=_aligned, empty=lambda shape, dtype: _aligned(shape, dtype).view(_Word), cuda=cuda)
    for module in (binding, plan, run, words):
        monkeypatch.setattr(module, "cp", cupy)
    for module in (binding, run, record):
        monkeypatch.setattr(module, "address", _address)
    monkeypatch.setattr(run, "zero", lambda array, start, size: array.fill(0))
    monkeypatch.setattr(run, "aligned", lambda array, nbytes: _address(array) % nbytes == 0)
    monkeypatch.setattr(run, "snapshot", lambda step: np.array(step))
    monkeypatch.setattr(words, "_words", {})
    monkeypatch.setattr(plan, "_plans", {})
    monkeypatch.setattr(plan, "Device", lambda name: SimpleNamespace(compute_capability=(9, 0)))
    monkeypatch.setattr(binding, "_cudnn", lambda: fake)
    monkeypatch.setattr(binding, "_local", threading.local())
    monkeypatch.setattr(binding, "problem", lambda: None)
    return fake


@pytest.fixture(params=["emulated", "cuda"])
def device(request: pytest.FixtureRequest) -> Device:
    """Where the attention of a test runs: emulated on the CPU, or by cuDNN on a GPU."""
    if request.param == "emulated":
        request.getfixturevalue("library")
        return Device("cpu")
    problem = cuda_problem() or binding.problem()
    if problem is not None:
        pytest.skip(f"no CUDA device: {problem}")
    return Device("cuda")
