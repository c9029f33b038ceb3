"""Scales to tiles and back, 16 bytes at a time where rows allow it and byte by byte elsewhere, run on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from nvfp.dtypes.scale_layout import to_tiles128x4
from nvfp.kernels.cuda import scale_layout
from nvfp.kernels.cuda._tiles import write_tiles
from tests.kernels.cuda import emulator


@pytest.mark.parametrize("shape", [(128, 16), (200, 64), (33, 80), (300, 48), (70, 20), (5, 7)], ids=str)
def test_tiles(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]) -> None:
    emulator.install(monkeypatch)
    scale = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    tiles = scale_layout.scale_layout(scale, "tiles128x4", inverse_shape=None, out=None)
    assert np.array_equal(tiles, to_tiles128x4(scale))
    wider = np.full((shape[0] + 1, shape[1] + 16), 9, np.uint8)
    back = scale_layout.scale_layout(tiles, "plain", inverse_shape=shape, out=wider[:-1, :-16])
    assert np.array_equal(back, scale)
    assert (wider[-1] == 9).all()
    assert (wider[:, -16:] == 9).all()


def test_rows_that_share_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.install(monkeypatch)
    scale = np.random.default_rng(0).integers(0, 256, (9, 32), np.uint8)
    rows = np.repeat(scale, 16, 0)[:140]
    tiles = np.full(to_tiles128x4(rows).size, 5, np.uint8)
    write_tiles(scale, tiles, 140, repeat=16)
    assert np.array_equal(tiles, to_tiles128x4(rows))
