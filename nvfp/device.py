"""Devices: their names, which can be used here, and which one is the default.

Nothing here starts a CUDA context, and nothing raises because of a GPU, a driver or CuPy: what is
wrong with CUDA is a sentence, `cuda_problem`, told when a CUDA device is asked for. The driver and
CuPy are looked at once, at the first question.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Literal

from nvfp import config
from nvfp.capability import OLDEST
from nvfp.errors import ArgumentError, DeviceError, message
from nvfp.optional import has, need


class Device:
    """A device: ``Device("cpu")``, ``Device("cuda")`` (the same as ``"cuda:0"``), ``Device("cuda:1")``.

    Equal names give the same object. A Device equals its name and any other spelling of it, and
    hashes like its full name. Making one does not ask whether it exists (`check_usable` does).

    Attributes:
        type: ``"cpu"`` or ``"cuda"``.
        index: CUDA ordinal; 0 for the CPU.

    Raises:
        ArgumentError: the text names no device.

    Example:
        >>> Device("cuda"), Device("cuda") == "cuda:0", Device("cpu") == "cpu"
        (nvfp.Device('cuda:0'), True, True)
    """

    __slots__ = ("index", "type")
    type: Literal["cpu", "cuda"]
    index: int

    def __new__(cls, device: Device | str) -> Device:
        """Parse a name; a Device comes back as it is."""
        return device if isinstance(device, Device) else _named(str(device))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Device is immutable; cannot set {name!r}")

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """(major, minor) of a CUDA device, None for the CPU.

        Raises:
            DeviceError: the device is not there.
        """
        if self.type == "cpu":
            return None
        check_usable(self)
        return _compute_capability(self.index)

    @property
    def name(self) -> str:
        """The chip's own name."""
        if self.type == "cpu":
            return platform.processor() or platform.machine()
        check_usable(self)
        found: bytes = need("cupy", extra="cuda13").cuda.runtime.getDeviceProperties(self.index)["name"]
        return found.decode()

    def __str__(self) -> str:
        return self.type if self.type == "cpu" else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"nvfp.Device('{self}')"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            try:
                other = _named(other)
            except ArgumentError:
                return False
        return self is other

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Device, (str(self),)


@cache
def _named(name: str) -> Device:
    kind, colon, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not index.isdecimal()) or (kind == "cpu" and int(index or 0)):
        raise ArgumentError(message("Device", "'cpu', 'cuda' or 'cuda:N'", repr(name), "name one of these"))
    full = kind if kind == "cpu" else f"cuda:{int(index or 0)}"
    if full != name:
        return _named(full)
    device: Device = object.__new__(Device)
    object.__setattr__(device, "type", kind)
    object.__setattr__(device, "index", int(index or 0))
    return device


def _compute_capability(index: int) -> tuple[int, int]:
    text: str = need("cupy", extra="cuda13").cuda.Device(index).compute_capability
    return int(text[:-1]), int(text[-1])


@cache
def _cuda() -> tuple[tuple[Device, ...], str | None]:
    """The usable CUDA devices, and why there is none."""
    driver = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(driver)  # before CuPy, whose import costs a second
    except OSError:
        return (), f"no NVIDIA driver here ({driver} does not load)"
    if not has("cupy"):
        return (), "CuPy is not installed; pip install 'nvfp[cuda13]' (CUDA 12: 'nvfp[cuda12]')"
    try:
        count = int(need("cupy", extra="cuda13").cuda.runtime.getDeviceCount())
        capabilities = {index: _compute_capability(index) for index in range(count)}
    except Exception as error:
        return (), f"{type(error).__name__}: {' '.join(str(error).split())}"
    found = tuple(Device(f"cuda:{index}") for index, found in capabilities.items() if found >= OLDEST)
    if found:
        return found, None
    have = ", ".join(f"{major}.{minor}" for major, minor in capabilities.values()) or "no device"
    oldest = ".".join(map(str, OLDEST))
    return (), f"the driver shows {have}; nvfp needs compute capability {oldest} or newer"


def cuda_problem() -> str | None:
    """Return why no CUDA device can be used here, or None if one can.

    Example:
        >>> isinstance(cuda_problem(), (str, type(None)))
        True
    """
    return _cuda()[1]


def devices() -> tuple[Device, ...]:
    """Return the devices that can be used here: the CPU, then the CUDA devices.

    Example:
        >>> devices()[0]
        nvfp.Device('cpu')
    """
    return (Device("cpu"), *_cuda()[0])


def check_usable(device: Device | str, op: str = "device") -> Device:
    """Return ``device``, or raise with the reason why it cannot be used here.

    Args:
        device: a Device or its name.
        op: the public name the user called, for the message.

    Returns:
        The Device.

    Raises:
        DeviceError: it cannot be used.

    Example:
        >>> check_usable("cpu")
        nvfp.Device('cpu')
    """
    device = Device(device)
    if device.type == "cpu" or device in _cuda()[0]:
        return device
    why = cuda_problem() or f"usable are {', '.join(map(str, devices()))}"
    raise DeviceError(
        message(op, "a usable device", f"{device} ({why})", "use 'cpu', or mend the cause (python -m nvfp)")
    )


_here: ContextVar[Device | None] = ContextVar("nvfp_default_device", default=None)
_default: Device | None = None


def default_device() -> Device:
    """Return the device where new arrays go.

    It is the innermost `use_device`, else `set_default_device`'s, else ``NVFP_DEVICE``, else the
    first usable CUDA device, else the CPU.

    Returns:
        The device.

    Raises:
        DeviceError: ``NVFP_DEVICE`` names a device that cannot be used here.

    Example:
        >>> with use_device("cpu"):
        ...     default_device()
        nvfp.Device('cpu')
    """
    chosen = _here.get() or _default
    if chosen is not None:
        return chosen
    wanted = config.get("NVFP_DEVICE")
    return check_usable(wanted, "NVFP_DEVICE") if wanted else (*_cuda()[0], Device("cpu"))[0]


def set_default_device(device: Device | str | None) -> None:
    """Make ``device`` the default one of this process; None undoes it.

    Args:
        device: a Device or its name.

    Raises:
        DeviceError: it cannot be used here.

    Example:
        >>> set_default_device("cpu")
        >>> default_device()
        nvfp.Device('cpu')
        >>> set_default_device(None)
    """
    global _default
    _default = None if device is None else check_usable(device, "set_default_device")


@contextmanager
def use_device(device: Device | str) -> Iterator[Device]:
    """Make ``device`` the default one inside a ``with`` block (of this thread or task).

    Args:
        device: a Device or its name.

    Yields:
        The Device.

    Raises:
        DeviceError: it cannot be used here.

    Example:
        >>> with use_device("cpu") as device:
        ...     device.type
        'cpu'
    """
    token = _here.set(check_usable(device, "use_device"))
    try:
        yield Device(device)
    finally:
        _here.reset(token)
