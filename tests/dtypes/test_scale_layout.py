"""Tiles of 128 x 4 scales: the published offsets, both directions, padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.dtypes.scale_layout import from_tiles128x4, tile_offset, tiles128x4_size, to_tiles128x4
from nvfp.errors import DTypeError, ShapeError
from tests.dtypes.inputs import u8
from tests.oracles.scale_layout import scale_layout

sides = st.tuples(st.integers(0, 300), st.integers(0, 11))


def test_published_offsets() -> None:
    positions = [(0, 0), (37, 2), (127, 3), (200, 5), (128, 0)]
    assert [tile_offset(r, c, 8) for r, c in positions] == [0, 86, 511, 1673, 1024]


@given(shape=sides)
def test_every_scale_has_its_own_place(shape: tuple[int, int]) -> None:
    offsets = {tile_offset(r, c, shape[1]) for r, c in np.ndindex(shape)}
    assert len(offsets) == shape[0] * shape[1]
    assert all(0 <= o < tiles128x4_size(shape) for o in offsets)


@given(shape=sides)
def test_round_trip_and_formula(shape: tuple[int, int]) -> None:
    matrix = np.random.default_rng(0).integers(1, 255, shape).astype(np.uint8)
    tiles = to_tiles128x4(matrix)
    np.testing.assert_array_equal(tiles, scale_layout(matrix, "tiles128x4"))
    np.testing.assert_array_equal(from_tiles128x4(tiles, shape), matrix)
    assert (tiles == 0).sum() == tiles.size - matrix.size, "padding is zero"


def test_padding_is_never_read() -> None:
    shape = (130, 5)
    matrix = np.arange(650, dtype=np.uint32).reshape(shape).astype(np.uint8)
    poisoned = np.full(tiles128x4_size(shape), 0xFF, np.uint8)
    for r, c in np.ndindex(shape):
        poisoned[tile_offset(r, c, 5)] = matrix[r, c]
    np.testing.assert_array_equal(from_tiles128x4(poisoned, shape), matrix)
    np.testing.assert_array_equal(scale_layout(poisoned, "plain", inverse_shape=shape), matrix)


def test_strided_input() -> None:
    matrix = np.arange(24, dtype=np.uint8).reshape(4, 6)
    for view in (matrix.T, matrix[::-1, ::2]):
        np.testing.assert_array_equal(to_tiles128x4(view), to_tiles128x4(view.copy()))


def test_errors() -> None:
    with pytest.raises(DTypeError, match="got float32"):
        to_tiles128x4(np.ones((2, 2), np.float32))
    with pytest.raises(ShapeError, match=r"got \(2,\)"):
        to_tiles128x4(u8([1, 2]))
    with pytest.raises(ShapeError, match=r"1024 bytes for scales of shape \(128, 8\), got 512"):
        from_tiles128x4(np.zeros(512, np.uint8), (128, 8))
