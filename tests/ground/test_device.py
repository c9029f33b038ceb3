"""Device names, the default device, and devices that are not there."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import nvfp as nf
from nvfp import device as room
from nvfp.device import Device, check_usable, cuda_problem, default_device, devices, set_default_device, use_device
from nvfp.errors import ArgumentError, DeviceError


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_cuda", lambda: ((), "no driver, says the test"))


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_cuda", lambda: ((Device("cuda:0"), Device("cuda:1")), None))


@pytest.fixture
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a new process: conftest's choice is taken away."""
    monkeypatch.delenv("NVFP_DEVICE", raising=False)
    token = room._here.set(None)
    yield
    room._here.reset(token)


def test_names() -> None:
    assert Device("cuda") is Device("cuda:0")
    assert Device("cuda:00") is Device("cuda:0")
    assert Device(Device("cuda:3")) is Device("cuda:3")
    assert (Device("cuda:3").type, Device("cuda:3").index) == ("cuda", 3)
    assert str(Device("cpu")) == "cpu"
    assert repr(Device("cuda")) == "nvfp.Device('cuda:0')"
    assert nf.Device is Device


def test_equality_and_hash() -> None:
    assert Device("cuda") == "cuda:0" == Device("cuda:0")
    assert Device("cuda") == "cuda"
    assert Device("cuda:1") != "cuda"
    assert Device("cpu") != "a device"
    assert Device("cpu") != 0
    assert {Device("cuda"): 1}["cuda:0"] == 1


def test_survives_copying() -> None:
    d = Device("cuda:1")
    assert copy.copy(d) is d
    assert copy.deepcopy(d) is d
    assert pickle.loads(pickle.dumps(d)) is d
    with pytest.raises(AttributeError, match="immutable"):
        d.index = 2


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:1", "", "CUDA", ["cpu"], 0, None])
def test_bad_names(name: Any) -> None:
    with pytest.raises(ArgumentError, match=r"\[Device\] expected 'cpu', 'cuda' or 'cuda:N', got"):
        Device(name)


@pytest.mark.usefixtures("no_cuda", "nothing_chosen")
def test_without_cuda() -> None:
    assert devices() == (Device("cpu"),)
    assert default_device() == "cpu"
    assert cuda_problem() == "no driver, says the test"
    for act in (set_default_device, check_usable):
        with pytest.raises(DeviceError, match=r"got cuda:0 \(no driver, says the test\)"):
            act("cuda")
    with pytest.raises(DeviceError, match="use_device"), use_device("cuda"):
        pass
    assert default_device() == "cpu"


@pytest.mark.usefixtures("two_gpus", "nothing_chosen")
def test_order_of_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_device() == "cuda:0"
    monkeypatch.setenv("NVFP_DEVICE", "cpu")
    assert default_device() == "cpu"
    set_default_device("cuda:1")
    try:
        assert default_device() == "cuda:1"
        with use_device("cpu") as outer, use_device("cuda:0"):
            assert outer == "cpu"
            assert default_device() == "cuda:0"
        assert default_device() == "cuda:1"
    finally:
        set_default_device(None)
    assert default_device() == "cpu"
    with pytest.raises(DeviceError, match="usable are cpu, cuda:0, cuda:1"):
        check_usable("cuda:7")


@pytest.mark.usefixtures("no_cuda", "nothing_chosen")
def test_unusable_device_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVFP_DEVICE", "cuda:1")
    with pytest.raises(DeviceError, match=r"\[NVFP_DEVICE\]"):
        default_device()


@pytest.mark.usefixtures("two_gpus", "nothing_chosen")
def test_use_device_belongs_to_its_thread() -> None:
    seen = []
    with use_device("cpu"):
        thread = threading.Thread(target=lambda: seen.append(default_device()))
        thread.start()
        thread.join()
    assert seen == ["cuda:0"]


def test_an_exception_restores_the_default() -> None:
    before = default_device()
    with pytest.raises(KeyError), use_device("cpu"):
        raise KeyError
    assert default_device() is before


def test_properties(device: Device) -> None:
    assert device in devices()
    assert device.name
    capability = device.compute_capability
    assert capability is None if device.type == "cpu" else capability >= (8, 0)
