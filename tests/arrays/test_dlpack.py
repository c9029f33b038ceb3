"""DLPack: zero copy in every dtype that has a code, flags, strides, streams, devices (frameworks: the next file)."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError
from tests.arrays.capsules import DTYPES, Capsule, flags, shares


def test_numpy_both_ways_without_a_copy() -> None:
    for dtype in ("float32", "float16", "int32", "bool", "complex64"):
        x = nf.asarray(np.ones((2, 3), dtype))
        a = np.from_dlpack(x)
        assert np.shares_memory(a, x.raw) and a.dtype == dtype
        b = np.ones(3, dtype)
        assert np.shares_memory(nf.from_dlpack(b).raw, b)
    assert nf.from_dlpack(np.ones(2), copy=True).tolist() == [1.0, 1.0]
    x = nf.ones((2,))
    assert nf.from_dlpack(x) is x


def test_device_pair_and_options() -> None:
    x = nf.ones((2,), device="cpu")
    assert x.__dlpack_device__() == (1, 0)
    x.__dlpack__(max_version=(1, 0), dl_device=(1, 0), copy=None, stream=None)
    assert np.from_dlpack(x, copy=True).ctypes.data != x.raw.ctypes.data


def test_what_cannot_be_exported_says_why() -> None:
    x = nf.ones((2,), requires_grad=True)
    with pytest.raises(BufferError, match=r"\[dlpack\] .*export x\.detach\(\)"):
        np.from_dlpack(x)
    for dtype in (nf.float6_e2m3fn, nf.float4_e2m1fn):
        with pytest.raises(BufferError, match="a dtype with a DLPack code"):
            nf.ones((2,)).astype(dtype).__dlpack__()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_negative_strides_are_copied_or_refused(dtype: str, device: Any) -> None:
    x = nf.arange(4.0).astype(dtype)[::-1]
    capsule = x.__dlpack__(max_version=(1, 0))
    assert flags(capsule) & 2
    back = nf.from_dlpack(Capsule(capsule, x.__dlpack_device__()))
    assert back.dtype is x.dtype and back.device is x.device and nf.array_equal(back, x)
    with pytest.raises(BufferError, match=r"\[dlpack\] expected positive strides"):
        x.__dlpack__(copy=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_versions_and_flags(dtype: str, device: Any) -> None:
    x = nf.ones((2, 3)).astype(dtype)
    for version, versioned in ((None, False), ((0, 8), False), ((1, 0), True), ((1, 3), True)):
        for copy in (None, False, True):
            capsule = x.__dlpack__(max_version=version, copy=copy)
            assert flags(capsule) == ((2 if copy else 0) if versioned else None)
            back = nf.from_dlpack(Capsule(capsule, x.__dlpack_device__()))
            assert back.dtype is x.dtype and nf.array_equal(back, x) and shares(back, x) == (not copy)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2"])
def test_read_only_memory(dtype: str) -> None:
    """Consumers that can be told are told; one that cannot gets a copy."""
    x = nf.ones((4,), device="cpu").astype(dtype)
    x.raw.flags.writeable = False
    assert flags(x.__dlpack__(max_version=(1, 0))) == 1
    legacy = x.__dlpack__()
    assert flags(legacy) is None
    assert not shares(nf.from_dlpack(Capsule(legacy, (1, 0))), x)
    with pytest.raises(BufferError, match="expected writable memory for a consumer from before DLPack"):
        x.__dlpack__(copy=False)
    back = nf.from_dlpack(x.raw.view(np.uint8))
    assert not back.raw.flags.writeable


def test_where_memory_is_wanted(device: Any) -> None:
    x = nf.arange(6.0).reshape((2, 3)).T.astype(nf.bfloat16)
    own = x.__dlpack_device__()
    assert own == ((1, 0) if device.type == "cpu" else (2, 0))
    assert shares(nf.from_dlpack(Capsule(x.__dlpack__(dl_device=own), own)), x)
    on_host = Capsule(x.__dlpack__(dl_device=(1, 0), max_version=(1, 0)), (1, 0))
    assert flags(on_host.capsule) == (0 if device.type == "cpu" else 2)
    assert nf.from_dlpack(on_host).tolist() == x.tolist()
    for other in ((2, 7), (8, 0), (1, 1)):
        with pytest.raises(BufferError, match="or the host"):
            x.__dlpack__(dl_device=other)
    if device.type == "cuda":
        with pytest.raises(BufferError, match="expected host memory, got CUDA memory with copy=False"):
            x.__dlpack__(dl_device=(1, 0), copy=False)


def test_cpu_memory_has_no_stream() -> None:
    x = nf.ones((2,), device="cpu")
    for stream in (-1, 0, 1, 2, 12345):
        with pytest.raises(BufferError, match="expected stream=None for CPU memory"):
            x.__dlpack__(stream=stream)


def test_quantized_arrays_export_their_parts(device: Any) -> None:
    q = nf.asarray(np.linspace(-3, 3, 64, dtype=np.float32).reshape(2, 32)).astype(nf.mxfp8)
    with pytest.raises(BufferError, match=r"export q\.codes and q\.scale"):
        q.__dlpack__()
    for part in (q.codes, q.scale):
        capsule = Capsule(part.__dlpack__(max_version=(1, 0)), part.__dlpack_device__())
        back = nf.from_dlpack(capsule)
        assert back.dtype is part.dtype and shares(back, part)
    for fmt in (nf.mxfp6_e2m3, nf.mxfp6_e3m2):  # no other library has fp6: one code per byte
        codes = q.astype(fmt).codes
        with pytest.raises(BufferError, match="raw codes as uint8"):
            codes.__dlpack__()


def test_thousands_of_capsules_leak_nothing() -> None:
    x = nf.ones((4,), dtype=nf.bfloat16, device="cpu")
    y = nf.ones((4,), device="cpu")[::-1]
    before = [sys.getrefcount(a.raw) for a in (x, y)]
    for _ in range(3000):
        x.__dlpack__()
        x.__dlpack__(max_version=(1, 0))
        nf.from_dlpack(Capsule(x.__dlpack__(max_version=(1, 0)), (1, 0)))
        y.__dlpack__()
    counts = [sys.getrefcount(a.raw) for a in (x, y)]
    assert counts == before


def test_a_used_capsule_is_refused() -> None:
    capsule = nf.ones((2,), dtype=nf.bfloat16, device="cpu").__dlpack__(max_version=(1, 0))
    nf.from_dlpack(Capsule(capsule, (1, 0)))
    with pytest.raises((ValueError, BufferError)):
        nf.from_dlpack(Capsule(capsule, (1, 0)))


def test_copies_on_import(device: Any) -> None:
    x = nf.ones((3,), dtype=nf.float8_e4m3fn)
    producer = Other(x.__dlpack_device__()[0], x)
    assert shares(nf.from_dlpack(producer), x) and shares(nf.from_dlpack(producer, copy=False), x)
    assert not shares(nf.from_dlpack(producer, copy=True), x)


class Other:
    """A producer of another device or dtype."""

    def __init__(self, device: int, array: Any) -> None:
        self.device, self.array = device, array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


def test_import_refuses_other_devices_and_dtypes() -> None:
    with pytest.raises(BufferError, match="CPU or CUDA memory"):
        nf.from_dlpack(Other(8, np.ones(2)))
    with pytest.raises((DTypeError, BufferError)):
        nf.from_dlpack(Other(1, np.zeros(2, np.longdouble)))


class Old:
    """A producer from before version 1.0: no keywords but stream."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.array.__dlpack__()


def test_old_producers_work() -> None:
    a = np.arange(3.0)
    assert np.shares_memory(nf.from_dlpack(Old(a)).raw, a)


@pytest.mark.gpu
@pytest.mark.parametrize("stream", [None, 1, 2, -1, "handle"])
def test_streams_of_the_consumer(stream: Any) -> None:
    """The consumer's stream waits for what the current one has still to do (-1: it does not ask for that)."""
    import cupy

    other, busy = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    n = 1 << 26
    with busy:
        x = nf.zeros((n,), dtype=nf.bfloat16)
        for _ in range(50):
            x = x + 1  # still running when the capsule is made
        capsule = x.__dlpack__(stream=other.ptr if stream == "handle" else stream, max_version=(1, 0))
        if stream == -1:
            busy.synchronize()
    consumer = {"handle": other, 2: cupy.cuda.Stream.ptds}.get(stream, cupy.cuda.Stream.null)
    with consumer:
        back = nf.from_dlpack(Capsule(capsule, (2, 0)))
        total = float(nf.min(back)), float(nf.max(back))
    assert total == (50.0, 50.0)
    for wrong in (0, -3, other):
        with pytest.raises(BufferError, match="expected stream=None, -1, 1, 2 or a handle"):
            x.__dlpack__(stream=wrong)


@pytest.mark.gpu
def test_the_stream_given_to_a_producer() -> None:
    import cupy

    asked: list[Any] = []
    x = nf.ones((4,))

    class Producer:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, **options: Any) -> Any:
            asked.append(options.get("stream"))
            return x.__dlpack__(**options)

    stream = cupy.cuda.Stream(non_blocking=True)
    nf.from_dlpack(Producer())
    with stream:
        nf.from_dlpack(Producer())
    assert asked[0] in (None, 1) and asked[1] == stream.ptr


@pytest.mark.gpu
def test_cuda_to_host_needs_a_copy() -> None:
    x = nf.ones((2,))
    assert x.__dlpack_device__()[0] == 2
    assert nf.from_dlpack(x, device="cpu").tolist() == [1.0, 1.0]
    with pytest.raises(ArgumentError):
        nf.from_dlpack(x, device="cpu", copy=False)
