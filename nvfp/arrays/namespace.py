"""What the array API standard asks of a namespace about itself: `__array_namespace_info__`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.device import Device, default_device, devices
from nvfp.dtypes import dense
from nvfp.dtypes.finfo import isdtype
from nvfp.errors import ArgumentError, message

VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")
_STANDARD: tuple[str, ...] = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float32", "float64", "complex64", "complex128",
)  # fmt: skip


class NamespaceInfo:
    """Capabilities, devices and dtypes of nvfp in the array API standard's terms.

    bfloat16, float16, narrow and quantized dtypes are extensions that the standard does not name: they are not listed.

    Example:
        >>> import nvfp as nf
        >>> nf.__array_namespace_info__().default_dtypes(device="cpu")["real floating"]
        dtype('float32')
    """

    def capabilities(self) -> dict[str, Any]:
        """Return which optional behaviour there is."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        """Return the device where new arrays go."""
        return default_device()

    def default_dtypes(self, *, device: Device | str | None = None) -> dict[str, np.dtype]:
        """Return the dtypes of arrays made without ``dtype=``.

        Args:
            device: makes no difference.
        """
        return {
            "real floating": dense.float32,
            "complex floating": dense.complex64,
            "integral": dense.int64,
            "indexing": dense.int64,
        }

    def dtypes(
        self, *, device: Device | str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, np.dtype]:
        """Return the standard's dtypes by name.

        Args:
            device: makes no difference.
            kind: of these kinds only; see `nf.isdtype`.
        """
        every = {name: getattr(dense, name) for name in _STANDARD}
        return {name: dtype for name, dtype in every.items() if kind is None or isdtype(dtype, kind)}

    def devices(self) -> tuple[Device, ...]:
        """Return the devices that can be used here."""
        return devices()


def check_version(api_version: str | None) -> None:
    """Refuse a version of the standard that there is not.

    Raises:
        ArgumentError: an unknown version.
    """
    if api_version is not None and api_version not in VERSIONS:
        do = "ask for one of these, or none"
        raise ArgumentError(message("__array_namespace__", f"one of {VERSIONS}", repr(api_version), do))


def __array_namespace_info__() -> NamespaceInfo:
    """Return what the array API standard lets a program ask about a namespace."""
    return NamespaceInfo()
