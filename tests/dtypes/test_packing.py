"""4-bit packing: low nibble first, any axis, odd lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from nvfp.dtypes.packing import pack, packed_length, unpack
from nvfp.errors import ArgumentError, DTypeError, ShapeError
from tests.dtypes.inputs import u8

shapes = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=7)


@given(codes=hnp.arrays(np.uint8, shapes, elements=st.integers(0, 15)), data=st.data())
def test_round_trip(codes: np.ndarray, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-codes.ndim, codes.ndim - 1))
    packed = pack(codes, axis)
    assert packed.shape[axis] == packed_length(codes.shape[axis])
    assert packed.flags.c_contiguous
    np.testing.assert_array_equal(unpack(packed, codes.shape[axis], axis), codes)


def test_low_nibble_first() -> None:
    packed = pack(u8([[1, 2, 3], [4, 5, 6]]))
    assert packed.tolist() == [[0x21, 0x03], [0x54, 0x06]]
    assert pack(u8([[1, 2, 3], [4, 5, 6]]), axis=0).tolist() == [[0x41, 0x52, 0x63]]
    assert unpack(u8([0x21, 0x43]), 3).tolist() == [1, 2, 3]


def test_published_bytes() -> None:
    """One checkpoint row, stated by hand: the second element is the high nibble (H09)."""
    raw = u8([0x21, 0x43, 0x65, 0x87, 0xA9, 0xCB, 0xED, 0x0F])
    assert unpack(raw, 16).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0]


def test_strided_input() -> None:
    codes = np.arange(16, dtype=np.uint8).reshape(4, 4)
    for view in (codes.T, codes[::-1, ::2]):
        np.testing.assert_array_equal(pack(view), pack(view.copy()))


def test_errors() -> None:
    with pytest.raises(DTypeError, match="got int64"):
        pack([1, 2])
    with pytest.raises(ArgumentError, match=r"got 16"):
        pack(u8([16]))
    with pytest.raises(ShapeError, match="got 1;"):
        pack(u8([1]), axis=1)
    with pytest.raises(ShapeError, match="2 bytes for 3 codes on axis -1, got 3"):
        unpack(u8([1, 2, 3]), 3)
    with pytest.raises(ShapeError):
        pack(u8(3))
