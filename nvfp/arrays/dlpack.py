"""DLPack for dtypes that NumPy and CuPy do not exchange: bfloat16 and the 8-bit floats.

The array library makes the capsule for the same memory as unsigned integers, and the type code in it
is then overwritten; on import the other way round. That is sound because every ``__dlpack__`` call
makes a fresh struct and no producer's deleter reads the dtype.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from nvfp.dtypes.dense import DENSE, bfloat16, float8_e4m3fn, float8_e5m2, float8_e8m0fnu, is_narrow
from nvfp.errors import DTypeError, message
from nvfp.kernels._dispatch import kind_of
from nvfp.kernels.cast import cast
from nvfp.optional import need

_UINT = 1
_CODES: dict[np.dtype, int] = {bfloat16: 4, float8_e4m3fn: 10, float8_e5m2: 12, float8_e8m0fnu: 14}
_DTYPES = {(code, 8 * dtype.itemsize): dtype for dtype, code in _CODES.items()}
_CPU, _CUDA = 1, 2


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("dtype", _DataType),
    )  # fmt: skip


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _dtype_of(capsule: Any) -> _DataType:
    """The dtype field inside a capsule, to read and to overwrite."""
    if _is_valid(capsule, b"dltensor_versioned"):
        return _Versioned.from_address(_pointer(capsule, b"dltensor_versioned")).tensor.dtype  # type: ignore[no-any-return]
    return _Tensor.from_address(_pointer(capsule, b"dltensor")).dtype  # type: ignore[no-any-return]


def device_of(raw: Any) -> tuple[int, int]:
    """DLPack's (device type, id) of a raw array."""
    return (_CPU, 0) if kind_of(raw) == "cpu" else (_CUDA, int(raw.device.id))


def export(raw: Any, dtype: np.dtype, *, stream: Any, max_version: Any, dl_device: Any, copy: bool | None) -> Any:
    """Return a capsule over ``raw``, whose elements are ``dtype``.

    Args:
        raw: NumPy or CuPy array; narrow dtypes as uint8.
        dtype: of the elements.
        stream: as in the array API standard.
        max_version: likewise.
        dl_device: likewise.
        copy: likewise. Negative strides are copied first: torch aborts the process on them.

    Raises:
        BufferError: a dtype without a DLPack code of whole bytes (fp6, fp4), or a copy that is needed and forbidden.
    """
    if is_narrow(dtype) and dtype not in _CODES:
        raise BufferError(
            message(
                "dlpack", "a dtype with a DLPack code", dtype, "export x.astype(nf.float32), or the raw codes as uint8"
            )
        )
    if any(stride < 0 for stride in raw.strides):
        if copy is False:
            raise BufferError(message("dlpack", "positive strides with copy=False", raw.strides, "let it copy"))
        copy = True
    if copy:
        raw = cast(raw, raw.dtype)
    code = _CODES.get(dtype)
    if code is not None:
        raw = raw.view(np.dtype(f"uint{8 * dtype.itemsize}"))
    options: dict[str, Any] = {"stream": stream}
    if max_version is not None:
        options["max_version"] = max_version
    if dl_device is not None:
        options["dl_device"] = dl_device
    capsule = raw.__dlpack__(**options)
    if code is not None:
        _dtype_of(capsule).code = code
    return capsule


class _Retyped:
    """A producer that shows another's 16- and 8-bit floats as unsigned integers, and tells what they were."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.found: np.dtype | None = None

    def __dlpack_device__(self) -> Any:
        return self.source.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        try:
            capsule = self.source.__dlpack__(**options)
        except TypeError:  # a producer from before version 1.0
            capsule = self.source.__dlpack__(
                **({"stream": options["stream"]} if options.get("stream") is not None else {})
            )
        dtype = _dtype_of(capsule)
        if dtype.lanes == 1:
            self.found = _DTYPES.get((dtype.code, dtype.bits))
            if self.found is not None:
                dtype.code = _UINT
        return capsule


def take_in(source: Any, copy: bool | None) -> tuple[Any, np.dtype]:
    """Return a raw array over the memory of any DLPack producer, and its dtype.

    Args:
        source: has ``__dlpack__`` and ``__dlpack_device__``.
        copy: True copies; False raises where a copy is needed.

    Raises:
        BufferError: a device that is neither CPU nor CUDA, or what the producer raises.
        DTypeError: a dtype that nvfp does not have.
    """
    kind = int(source.__dlpack_device__()[0])
    if kind not in (_CPU, _CUDA):
        raise BufferError(
            message("from_dlpack", "CPU or CUDA memory", f"device type {kind}", "move it to the host first")
        )
    shim = _Retyped(source)
    try:
        raw = (np if kind == _CPU else need("cupy", extra="cuda13")).from_dlpack(shim)
    except RuntimeError as error:
        if "dtype" not in str(error) and "lanes" not in str(error):
            raise
        raise DTypeError(message("from_dlpack", "a dtype of nvfp", str(error), "pass its bytes as uint8")) from error
    if copy:
        raw = cast(raw, raw.dtype)
    if shim.found is None:
        dtype = DENSE.get(raw.dtype.name)
        if dtype != raw.dtype:
            raise DTypeError(message("from_dlpack", "a dtype of nvfp", raw.dtype, "cast it first"))
        return raw.view(dtype), dtype
    return (raw, shim.found) if is_narrow(shim.found) else (raw.view(shim.found), shim.found)
