"""`kernels.transpose` on every device."""

from __future__ import annotations

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.packing import pack, unpack
from nvfp.kernels.transpose import transpose
from tests.devices import to_device, to_numpy

DTYPES = [np.dtype(d) for d in ("uint8", "float16", "float32", "int64")]
SHAPES = [(1, 1), (1, 70), (70, 1), (0, 5), (5, 0), (33, 65), (200, 130), (3, 40, 17), (2, 3, 16, 16), (40000, 3)]
SHAPES += [(288, 304), (2, 64, 272)]  # whole pieces, tiles of them cut


def numbers(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype).reshape(shape)


@pytest.mark.sanitizer
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_move(device: Device, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    x = numbers(shape, dtype)
    got = to_numpy(transpose(to_device(x, device)))
    wanted = np.ascontiguousarray(np.swapaxes(x, -1, -2))
    assert got.dtype == dtype
    assert got.flags.c_contiguous
    assert got.shape == wanted.shape
    assert got.tobytes() == wanted.tobytes()  # NaNs keep their payload


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides_and_out(device: Device, dtype: np.dtype) -> None:
    base = numbers((6, 40, 50), dtype)
    for x in (base[::-2, ::-1, ::3], base.transpose(1, 2, 0), base[0].T, np.broadcast_to(base[0], (3, 40, 50))):
        wanted = np.ascontiguousarray(np.swapaxes(x, -1, -2))
        out = to_device(np.empty(wanted.shape, dtype), device)
        assert transpose(to_device(x, device), out=out) is out
        assert to_numpy(out).tobytes() == wanted.tobytes()


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 2), (2, 1), (7, 9), (64, 64), (33, 130), (130, 33), (0, 4), (3, 5, 6), (288, 304)], ids=str
)
def test_packed_codes(device: Device, shape: tuple[int, ...]) -> None:
    codes = np.random.default_rng(0).integers(0, 16, shape, np.uint8)
    packed = pack(codes)
    packed[..., -1] |= 0xF0 if shape[-1] % 2 else 0  # the unused nibble is not read
    got = to_numpy(transpose(to_device(packed, device), packed=True, columns=shape[-1]))
    assert (got == pack(np.swapaxes(codes, -1, -2))).all()
    assert (unpack(got, shape[-2]) == np.swapaxes(codes, -1, -2)).all()


def test_what_does_not_fit(device: Device) -> None:
    x = to_device(np.zeros((4, 6), np.uint8), device)
    with pytest.raises(ValueError, match="two axes"):
        transpose(x[0])
    with pytest.raises(TypeError, match="1, 2, 4 or 8"):
        transpose(to_device(np.zeros((2, 2), np.complex128), device))
    with pytest.raises(TypeError, match="uint8"):
        transpose(to_device(np.zeros((2, 2), np.int8), device), packed=True)
    with pytest.raises(ValueError, match="columns"):
        transpose(x, packed=True, columns=10)
    with pytest.raises(ValueError, match="columns"):
        transpose(x, columns=5)
    with pytest.raises(ValueError, match="out"):
        transpose(x, out=x)
    with pytest.raises(ValueError, match="contiguous"):
        transpose(x, out=to_device(np.zeros((4, 6), np.uint8), device).T)
