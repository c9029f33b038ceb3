"""DLPack with NumPy and torch: zero copy in every dtype that has a code, and the traps."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError
from tests.devices import need_oracle

TORCH = {
    "float32": "float32",
    "float64": "float64",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "uint8": "uint8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "bool": "bool",
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
    "float8_e8m0fnu": "float8_e8m0fnu",
}


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


def test_negative_strides_are_copied_or_refused() -> None:
    x = nf.arange(4.0)[::-1]
    assert np.from_dlpack(x).tolist() == [3.0, 2.0, 1.0, 0.0]
    with pytest.raises(BufferError, match="positive strides"):
        x.__dlpack__(copy=False)


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


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", TORCH)
def test_torch_both_ways_without_a_copy(dtype: str) -> None:
    torch = need_oracle("torch")
    x = nf.asarray(np.array([[0.0, 1.0, 2.0], [3.0, 4.0, 0.5]], np.float32)).astype(dtype)
    t = torch.from_dlpack(x)
    assert t.dtype is getattr(torch, TORCH[dtype]) and t.data_ptr() == x.raw.ctypes.data and tuple(t.shape) == (2, 3)
    np.testing.assert_array_equal(t.to(torch.float32).numpy(), np.asarray(x, np.float32))
    back = nf.from_dlpack(t)
    assert back.dtype is x.dtype and back.raw.ctypes.data == x.raw.ctypes.data
    strided = nf.from_dlpack(t[:, ::2])
    np.testing.assert_array_equal(np.asarray(strided, np.float32), np.asarray(x, np.float32)[:, ::2])
    assert torch.from_dlpack(x.T).stride() == (1, 3)
    assert nf.asarray(t).dtype is x.dtype and torch.asarray(x).dtype is t.dtype


@pytest.mark.oracle
def test_torch_traps() -> None:
    torch = need_oracle("torch")
    assert torch.from_dlpack(nf.arange(3.0)[::-1]).tolist() == [2.0, 1.0, 0.0]  # torch aborts on negative strides
    with pytest.raises(BufferError):
        nf.from_dlpack(torch.ones(2, requires_grad=True))
    with pytest.raises(DTypeError, match="from_dlpack"):
        nf.from_dlpack(torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2))
    zero = torch.from_dlpack(nf.asarray(2.5, dtype=nf.bfloat16))
    assert zero.shape == () and zero.item() == 2.5
    q = nf.asarray(np.linspace(-3, 3, 32, dtype=np.float32)).astype(nf.nvfp4)
    codes = torch.from_dlpack(q.codes)
    assert codes.view(torch.float4_e2m1fn_x2).shape == (16,)
    assert torch.from_dlpack(q.scale).dtype is torch.float8_e4m3fn


@pytest.mark.oracle
def test_no_reference_is_leaked() -> None:
    torch = need_oracle("torch")
    x = nf.ones((4,), dtype=nf.bfloat16)
    counts = [sys.getrefcount(x.raw)]  # not inside an assert: pytest keeps what it shows
    for _ in range(200):
        torch.from_dlpack(x)
        x.__dlpack__()
    t = torch.from_dlpack(x)
    counts.append(sys.getrefcount(x.raw))
    del t
    gc.collect()
    counts.append(sys.getrefcount(x.raw))
    assert counts[2] == counts[0] < counts[1]


@pytest.mark.oracle
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TORCH)
def test_torch_on_cuda(dtype: str) -> None:
    torch = need_oracle("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    x = nf.ones((2, 3)).astype(dtype)
    t = torch.from_dlpack(x)
    assert t.is_cuda and t.data_ptr() == x.raw.data.ptr and nf.from_dlpack(t).dtype is x.dtype


@pytest.mark.gpu
def test_cuda_to_host_needs_a_copy() -> None:
    x = nf.ones((2,))
    assert x.__dlpack_device__()[0] == 2
    assert nf.from_dlpack(x, device="cpu").tolist() == [1.0, 1.0]
    with pytest.raises(ArgumentError):
        nf.from_dlpack(x, device="cpu", copy=False)
