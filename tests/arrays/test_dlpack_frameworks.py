"""DLPack with torch and jax, both ways: zero copy in every dtype they have, and the traps of each."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.arrays.array import wrap
from nvfp.errors import DTypeError
from tests.arrays.capsules import DTYPES, shares
from tests.devices import need_oracle


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_both_ways_without_a_copy(dtype: str) -> None:
    torch = need_oracle("torch")
    x = nf.asarray(np.array([[0.0, 1.0, 2.0], [3.0, 4.0, 0.5]], np.float32)).astype(dtype)
    t = torch.from_dlpack(x)
    assert t.dtype is getattr(torch, dtype) and t.data_ptr() == x.raw.ctypes.data and tuple(t.shape) == (2, 3)
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
    with pytest.raises(DTypeError, match=r"code 17, 4 bits, 2 lanes; pass its bytes as uint8 \(torch: t.view"):
        nf.from_dlpack(torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2))
    with pytest.raises(BufferError):
        torch.from_dlpack(nf.ones((2,), requires_grad=True))
    with pytest.raises(BufferError, match="stream=None for CPU"):
        nf.ones((2,), device="cpu").__dlpack__(stream=1)
    zero = torch.from_dlpack(nf.asarray(2.5, dtype=nf.bfloat16))
    assert zero.shape == () and zero.item() == 2.5
    q = nf.asarray(np.linspace(-3, 3, 32, dtype=np.float32)).astype(nf.nvfp4)
    codes = torch.from_dlpack(q.codes)
    assert codes.view(torch.float4_e2m1fn_x2).shape == (16,)
    assert torch.from_dlpack(q.scale).dtype is torch.float8_e4m3fn


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["nvfp4", "mxfp4", "mxfp8_e4m3", "mxfp8_e5m2", "fp8_e4m3", "mxfp6_e2m3", "mxint8"])
def test_quantized_arrays_of_torch_tensors(dtype: str, device: Any) -> None:
    """Codes and scales go out to torch and come back as they are, without a copy; torch's own 4-bit dtype too."""
    torch = need_oracle("torch")
    if device.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    q = nf.asarray(np.linspace(-3, 3, 256, dtype=np.float32).reshape(4, 64)).astype(dtype)
    codes = nf.from_dlpack(torch.from_dlpack(q.codes)) if q.dtype.element.bits != 6 else wrap(q.operand.codes)
    codes = torch.from_dlpack(codes)
    if q.dtype.element.packed:
        codes = codes.view(torch.float4_e2m1fn_x2)
    scale = torch.from_dlpack(q.scale)
    word = None if q.tensor_scale is None else torch.from_dlpack(q.tensor_scale)
    back = nf.QuantizedArray.from_parts(codes, scale, q.dtype, tensor_scale=word)
    assert nf.array_equal(back, q) and back.shape == q.shape and shares(wrap(back.operand.codes), wrap(q.operand.codes))
    assert shares(wrap(back.operand.scale), wrap(q.operand.scale))


@pytest.mark.oracle
@pytest.mark.parametrize("strides", ["transposed", "sliced", "expanded", "scalar", "empty"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2"])
def test_torchs_strides(dtype: str, strides: str) -> None:
    torch = need_oracle("torch")
    t = torch.arange(24.0).reshape(4, 6).to(getattr(torch, dtype))
    t = {
        "transposed": lambda: t.T, "sliced": lambda: t[1::2, ::3], "expanded": lambda: t[:1].expand(3, 6),
        "scalar": lambda: t[2, 3], "empty": lambda: t[:0],
    }[strides]()  # fmt: skip
    x = nf.from_dlpack(t)
    back = torch.from_dlpack(x)
    assert back.shape == t.shape and back.dtype is t.dtype
    assert torch.equal(back.to(torch.float32), t.to(torch.float32))
    if t.numel():
        assert back.data_ptr() == t.data_ptr() and (back.stride() == t.stride() or strides == "expanded")


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in ("float64", "int64")])  # jax has 32 bits by default
def test_jax_both_ways(dtype: str) -> None:
    jax = need_oracle("jax")
    raw = aligned((2, 3))  # jax copies unless memory begins at a multiple of 64 bytes
    raw[...] = [[0.0, 1.0, 2.0], [3.0, 4.0, 0.5]]
    x = nf.from_dlpack(raw).astype(dtype)
    room = aligned(x.shape, x.raw.dtype)
    room[...] = x.raw
    x = wrap(room, x.dtype)
    j = jax.numpy.from_dlpack(x)
    assert str(j.dtype) == dtype and j.unsafe_buffer_pointer() == x.raw.ctypes.data
    back = nf.from_dlpack(j)
    assert back.tolist() == x.tolist() and back.raw.ctypes.data == j.unsafe_buffer_pointer()
    again = jax.numpy.from_dlpack(back)  # jax arrays are read-only, and jax 0.10 cannot be told
    assert nf.from_dlpack(again).tolist() == x.tolist()
    assert jax.numpy.from_dlpack(x[::-1]).tolist() == x[::-1].tolist()


def aligned(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """An empty array that begins at a multiple of 64 bytes."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.empty(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size].view(dtype).reshape(shape)


@pytest.mark.oracle
def test_jaxs_packed_dtype_is_refused_with_a_hint() -> None:
    jax = need_oracle("jax")
    with pytest.raises(DTypeError, match="code 17, 4 bits"):
        nf.from_dlpack(jax.numpy.arange(4.0).astype("float4_e2m1fn"))


@pytest.mark.oracle
def test_no_reference_is_leaked() -> None:
    torch = need_oracle("torch")
    x = nf.ones((4,), dtype=nf.bfloat16)
    counts = [sys.getrefcount(x.raw)]  # not inside an assert: pytest keeps what it shows
    for _ in range(3000):
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
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_on_cuda(dtype: str) -> None:
    torch = need_oracle("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    x = nf.ones((2, 3)).astype(dtype)
    t = torch.from_dlpack(x)
    assert t.is_cuda and t.data_ptr() == x.raw.data.ptr and nf.from_dlpack(t).dtype is x.dtype


@pytest.mark.oracle
@pytest.mark.gpu
def test_torchs_streams_both_ways() -> None:
    import cupy

    torch = need_oracle("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    side, ours = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    with torch.cuda.stream(side):
        t = torch.zeros(1 << 24, device="cuda")
        torch.cuda._sleep(50_000_000)
        t += 7
        with ours:
            x = nf.from_dlpack(t) + 1  # on another stream, which has to wait
    ours.synchronize()
    assert float(nf.min(x)) == 8.0
    with ours:
        y = x
        for _ in range(50):
            y = y + 1
        with torch.cuda.stream(side):
            back = torch.from_dlpack(y) * 1
    side.synchronize()
    assert back.min().item() == 58.0
