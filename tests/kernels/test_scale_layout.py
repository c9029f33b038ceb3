"""`kernels.scale_layout` against the formula of `dtypes.scale_layout`, on every device."""

from __future__ import annotations

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.scale_layout import from_k_major128, tile_offset, tiles128x4_size
from nvfp.kernels.scale_layout import scale_layout
from tests.devices import to_device, to_numpy

SHAPES = [(1, 1), (128, 4), (129, 5), (37, 3), (300, 9), (0, 4), (4, 0)]


@pytest.mark.sanitizer
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_there_and_back(device: Device, shape: tuple[int, int]) -> None:
    scale = np.random.default_rng(0).integers(1, 256, shape, np.uint8)
    tiles = scale_layout(to_device(scale, device), "tiles128x4")
    flat = to_numpy(tiles)
    assert flat.shape == (tiles128x4_size(shape),)
    wanted = np.zeros_like(flat)
    for r, c in np.ndindex(shape):
        wanted[tile_offset(r, c, shape[1])] = scale[r, c]
    assert (flat == wanted).all()
    poisoned = np.where(wanted == 0, 0xEE, flat).astype(np.uint8)  # padding is not read
    back = scale_layout(to_device(poisoned, device), "plain", inverse_shape=shape)
    assert (to_numpy(back) == scale).all()


def test_strides_and_out(device: Device) -> None:
    base = np.random.default_rng(0).integers(0, 256, (40, 300), np.uint8)
    for scale in (base.T, base[::-2, ::7], np.broadcast_to(base[:1], (130, 300))):
        plain = scale_layout(to_device(np.ascontiguousarray(scale), device), "tiles128x4")
        out = to_device(np.full(plain.shape, 9, np.uint8), device)
        assert scale_layout(to_device(scale, device), "tiles128x4", out=out) is out
        assert (to_numpy(out) == to_numpy(plain)).all()
        back = to_device(np.empty(scale.shape, np.uint8), device)
        assert scale_layout(out, "plain", inverse_shape=scale.shape, out=back) is back
        assert (to_numpy(back) == scale).all()


@pytest.mark.sanitizer
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_along_k(device: Device, shape: tuple[int, int]) -> None:
    base = np.random.default_rng(0).uniform(1, 2, (2 * shape[0], shape[1])).astype(np.float32)
    for scale in (base[: shape[0]], base[::-2]):
        laid = scale_layout(to_device(scale, device), "k_major128")
        wanted = np.zeros((shape[1], -(-shape[0] // 4) * 4), np.float32)
        for r, c in np.ndindex(shape):
            wanted[c, r] = scale[r, c]
        np.testing.assert_array_equal(to_numpy(laid), wanted)
        np.testing.assert_array_equal(to_numpy(from_k_major128(laid, shape[0])), scale)
        out = to_device(np.full(wanted.shape, 9, np.float32), device)
        assert scale_layout(to_device(scale, device), "k_major128", out=out) is out
        np.testing.assert_array_equal(to_numpy(out), wanted)


def test_what_does_not_fit(device: Device) -> None:
    scale = to_device(np.zeros((4, 4), np.uint8), device)
    with pytest.raises(TypeError, match="uint8"):
        scale_layout(to_device(np.zeros((4, 4), np.float32), device), "tiles128x4")
    with pytest.raises(ValueError, match="inverse_shape"):
        scale_layout(scale, "plain")
    with pytest.raises(ValueError, match="512 bytes"):
        scale_layout(scale[0], "plain", inverse_shape=(4, 4))
    with pytest.raises(ValueError, match="matrix"):
        scale_layout(scale[0], "tiles128x4")
    with pytest.raises(ValueError, match="out"):
        scale_layout(scale, "tiles128x4", out=scale)
    with pytest.raises(ValueError, match="layout out of"):
        scale_layout(scale, "tiles")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="float32 scales for k_major128"):
        scale_layout(scale, "k_major128")
