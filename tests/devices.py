"""Moves raw arrays and Operands between NumPy and the device under test."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.kernels.operand import Operand


def need_oracle(package: str) -> Any:
    """Import a package of the `oracles` extra, or skip the test (or module) with a reason CI has declared."""
    return pytest.importorskip(package, reason=f"oracle {package} is not installed")


def to_device(value: Any, device: Device | str) -> Any:
    """Return a NumPy array or Operand as raw arrays of ``device``.

    Strides are kept (negative and zero ones too), so that a strided input stays one on CUDA. Narrow
    codes are plain uint8; bfloat16 crosses as uint16, because CuPy copies no ml_dtypes arrays.
    """
    if Device(device).type == "cpu":
        return value
    if isinstance(value, Operand):
        fields = ("codes", "scale", "tensor_scale")
        moved = {f: None if getattr(value, f) is None else to_device(getattr(value, f), device) for f in fields}
        return dataclasses.replace(value, **moved)
    return _upload(np.asarray(value), Device(device))


def to_numpy(raw: Any) -> np.ndarray:
    """Return a raw NumPy or CuPy array as a NumPy array of the same dtype."""
    if isinstance(raw, np.ndarray | np.generic):
        return np.asarray(raw)
    if raw.dtype.isbuiltin == 1:
        return np.asarray(raw.get())
    bits = np.dtype(f"uint{8 * raw.dtype.itemsize}")
    return np.asarray(raw.view(bits).get()).view(raw.dtype)


def _upload(array: np.ndarray, device: Device) -> Any:
    import cupy

    with cupy.cuda.Device(device.index):
        if array.size == 0:
            return cupy.ndarray(array.shape, array.dtype)
        low, high = np.lib.array_utils.byte_bounds(array)
        memory = np.frombuffer((ctypes.c_ubyte * (high - low)).from_address(low), np.uint8)
        buffer = cupy.asarray(memory)
        start = buffer.data + (array.__array_interface__["data"][0] - low)
        return cupy.ndarray(array.shape, array.dtype, memptr=start, strides=array.strides)
