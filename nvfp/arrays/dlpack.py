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
# DLPack's device types by where nvfp keeps such memory: plain and pinned host memory, device and managed memory.
_HOST, _CUDA = (1, 3), (2, 13)
_FP4 = 17
_COPIED = 2  # a flag of versioned capsules


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


def _versioned(capsule: Any) -> _Versioned | None:
    """The struct of a capsule of version 1, or None for one from before."""
    if not _is_valid(capsule, b"dltensor_versioned"):
        return None
    return _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))


def _dtype_of(capsule: Any) -> _DataType:
    """The dtype field inside a capsule, to read and to overwrite."""
    versioned = _versioned(capsule)
    tensor = _Tensor.from_address(_pointer(capsule, b"dltensor")) if versioned is None else versioned.tensor
    return tensor.dtype  # type: ignore[no-any-return]


def device_of(raw: Any) -> tuple[int, int]:
    """DLPack's (device type, id) of a raw array."""
    if kind_of(raw) == "cpu":
        return (1, 0)
    kind, index = raw.__dlpack_device__()  # CuPy tells managed memory apart
    return int(kind), int(index)


def _copied(raw: Any) -> Any:
    """A contiguous copy (`cast` takes no complex numbers)."""
    return raw.copy(order="C") if raw.dtype.kind == "c" else cast(raw, raw.dtype)


def export(raw: Any, dtype: np.dtype, *, stream: Any, max_version: Any, dl_device: Any, copy: bool | None) -> Any:
    """Return a capsule over ``raw``, whose elements are ``dtype``.

    Args:
        raw: NumPy or CuPy array; narrow dtypes as uint8.
        dtype: of the elements.
        stream: the consumer's, as in the array API standard: None or, on CUDA, -1, 1, 2 or a handle.
        max_version: the newest DLPack version that the consumer reads; None: one from before 1.0.
        dl_device: where the consumer wants the memory: its own device, or ``(1, 0)``, the host.
        copy: True copies (the capsule says so), False raises where a copy is needed, None copies where needed:
            negative strides (torch aborts the process on them), CUDA to host, and read-only memory for a
            consumer from before 1.0, which cannot be told.

    Raises:
        BufferError: a dtype without a DLPack code of whole bytes (fp6, fp4), a device or stream that is not to be had,
            or a copy that is needed and forbidden.
    """
    if is_narrow(dtype) and dtype not in _CODES:
        do = "export x.astype(nf.float32), or the raw codes as uint8"
        raise BufferError(message("dlpack", "a dtype with a DLPack code", dtype, do))
    versioned = max_version is not None and max_version[0] >= 1
    target = _target(raw, dl_device, stream)
    reason = _copy_reason(raw, target, versioned)
    if reason and copy is False:
        raise BufferError(message("dlpack", reason[0], f"{reason[1]} with copy=False", "leave copy out"))
    copied = bool(copy or reason)
    code = _CODES.get(dtype)
    if code is not None:
        raw = raw.view(np.dtype(f"uint{8 * dtype.itemsize}"))
    if target == "host":
        # Synchronises; the capsule is NumPy's. A copy that CuPy makes keeps negative strides.
        raw, stream = np.ascontiguousarray(raw.get()).reshape(raw.shape), None
    elif copied:
        raw = _copied(raw)
    capsule = raw.__dlpack__(stream=stream, max_version=max_version if versioned else None)
    if code is not None:
        _dtype_of(capsule).code = code
    struct = _versioned(capsule)
    if copied and struct is not None:
        struct.flags |= _COPIED
    return capsule


def _target(raw: Any, dl_device: Any, stream: Any) -> str:
    """Where the memory of a capsule will be: ``"here"``, or ``"host"`` for CUDA memory that is wanted there."""
    own = device_of(raw)
    if own[0] in _HOST and stream is not None:
        raise BufferError(message("dlpack", "stream=None for CPU memory", stream, "leave it out"))
    if stream is not None and (not isinstance(stream, int) or stream < -1 or stream == 0):
        do = "0 could mean either default stream: pass 1 (legacy) or 2 (per thread)"
        raise BufferError(message("dlpack", "stream=None, -1, 1, 2 or a handle", stream, do))
    wanted = own if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
    if wanted == own or (wanted[0] in _CUDA and own[0] in _CUDA and wanted[1] == own[1]):
        return "here"
    if wanted != (1, 0):
        do = "move it with x.to_device(...) first"
        raise BufferError(message("dlpack", f"device {own} or the host (1, 0)", wanted, do))
    return "host"


def _copy_reason(raw: Any, target: str, versioned: bool) -> tuple[str, str] | None:
    """What could be exported without a copy, and what there is instead; None if nothing hinders."""
    if target == "host":
        return "host memory", "CUDA memory"
    if any(stride < 0 for stride in raw.strides):
        return "positive strides", f"strides {raw.strides}"
    if kind_of(raw) == "cpu" and not raw.flags.writeable and not versioned:
        return "writable memory for a consumer from before DLPack 1.0", "read-only memory"
    return None


class _Retyped:
    """A producer that shows another's 16- and 8-bit floats as unsigned integers, and tells what they were."""

    def __init__(self, source: Any, packed: bool = False) -> None:
        self.source = source
        self.found: np.dtype | None = None
        self.packed = packed  # show torch's pairs of 4-bit codes as bytes, too
        self.packed_bytes = False
        self.described = "another dtype"
        self.remedy = "cast it first, or pass its bytes as uint8"

    def __dlpack_device__(self) -> Any:
        return self.source.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._capsule(options)
        dtype = _dtype_of(capsule)
        self.described = f"code {dtype.code}, {dtype.bits} bits, {dtype.lanes} lanes"
        if dtype.code == _FP4:
            self.remedy = "pass its bytes as uint8 (torch: t.view(torch.uint8)) to nf.QuantizedArray.from_parts"
        if dtype.lanes == 1:
            self.found = _DTYPES.get((dtype.code, dtype.bits))
            if self.found is not None:
                dtype.code = _UINT
        elif self.packed and (dtype.code, dtype.bits, dtype.lanes) == (_FP4, 4, 2):
            self.packed_bytes = True
            dtype.code, dtype.bits, dtype.lanes = _UINT, 8, 1
        return capsule

    def _capsule(self, options: dict[str, Any]) -> Any:
        try:
            return self.source.__dlpack__(**options)
        except TypeError:  # a producer from before version 1.0
            stream = options.get("stream")
            return self.source.__dlpack__(**({} if stream is None else {"stream": stream}))


def take_in(source: Any, copy: bool | None) -> tuple[Any, np.dtype]:
    """Return a raw array over the memory of any DLPack producer, and its dtype.

    Args:
        source: has ``__dlpack__`` and ``__dlpack_device__``.
        copy: True copies; False raises where a copy is needed.

    Raises:
        BufferError: a device that is neither CPU nor CUDA, or what the producer raises.
        DTypeError: a dtype that nvfp does not have.
    """
    shim = _Retyped(source)
    raw = _imported(shim, copy)
    if shim.found is None:
        dtype = DENSE.get(raw.dtype.name)
        if dtype != raw.dtype:
            raise DTypeError(message("from_dlpack", "a dtype of nvfp", raw.dtype, "cast it first"))
        return raw.view(dtype), dtype
    return (raw, shim.found) if is_narrow(shim.found) else (raw.view(shim.found), shim.found)


def take_in_codes(source: Any) -> Any:
    """Return the bytes of torch's packed 4-bit tensor as a raw uint8 array of its shape; None for any other dtype.

    Args:
        source: has ``__dlpack__`` and ``__dlpack_device__``.
    """
    shim = _Retyped(source, packed=True)
    try:
        raw = _imported(shim, None)
    except DTypeError:
        return None
    return raw if shim.packed_bytes else None


def _imported(shim: _Retyped, copy: bool | None) -> Any:
    kind = int(shim.__dlpack_device__()[0])
    if kind not in _HOST + _CUDA:
        raise BufferError(
            message("from_dlpack", "CPU or CUDA memory", f"device type {kind}", "move it to the host first")
        )
    options = {} if copy is None else {"copy": False}  # a copy that is wanted is made here, by nvfp's own kernel
    try:
        raw = (np if kind in _HOST else need("cupy", extra="cuda13")).from_dlpack(shim, **options)
    except (RuntimeError, TypeError) as error:
        if "dtype" not in str(error) and "lanes" not in str(error):
            raise
        raise DTypeError(message("from_dlpack", "a dtype of nvfp", shim.described, shim.remedy)) from error
    return _copied(raw) if copy else raw
