"""Row-scaled NVFP4 and 4-over-6: Transformer Engine's bytes, its worked examples, and what rows may say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvfp.dtypes.block import dequantize_exact, quantize_exact
from nvfp.dtypes.formats import QuantDType, mxfp8, nvfp4
from nvfp.dtypes.packing import unpack
from tests.data.load import cases, load
from tests.dtypes.test_block import ROW

VARIANTS = [c for c in cases("blocks_nvfp4_variants", "data") if ".rht." not in c]


def row_of(case: str) -> QuantDType:
    """The format that a case of the reference is about."""
    variant = case.split(".")[2]
    changes: dict[str, Any] = {}
    if "row_scaled" in variant:
        changes["per_row_tensor_scale"] = True
    if variant.startswith("4over6"):
        changes["four_over_six"] = "_".join(variant.split("_")[-2:])
    if "_2d_" in variant:
        changes["block"] = (16, 16)
    return nvfp4.replace(**changes)


@pytest.mark.parametrize("side", ["", "columnwise_"], ids=["row", "col"])
@pytest.mark.parametrize("case", VARIANTS)
def test_transformer_engine(case: str, side: str) -> None:
    """Byte for byte; where it writes code 0 for -0, nvfp keeps 8."""
    tensors, fmt = load("blocks_nvfp4_variants"), row_of(case)
    x = load("blocks_nvfp4")[f"input.f32.nvfp4.{case.split('.', 3)[3]}.x"]
    square = fmt.square and bool(side)  # the column side is the transpose of the row side
    blocks = quantize_exact(x if square or not side else x.T, fmt)
    codes, scale = blocks.codes, np.repeat(blocks.scale, (fmt.block_shape or (1, 1))[0], axis=0)[: x.shape[0]]
    if square:
        codes, scale = codes.T, np.repeat(blocks.scale.T, 16, axis=0)[: x.shape[1]]
    elif side:
        scale = blocks.scale
    np.testing.assert_array_equal(scale, tensors[f"{case}.{side}scale"])
    theirs = unpack(tensors[f"{case}.{side}data"], codes.shape[1])
    np.testing.assert_array_equal(np.where(codes == 8, 0, codes), np.where(theirs == 8, 0, theirs))
    amax = tensors[f"{case}.{side}amax"]
    np.testing.assert_array_equal(np.ravel(blocks.tensor_scale), amax / np.float32(6 * fmt.scale_bound))


BLOCK = np.float32([1, 0.75, -0.75, 0.25, 0.5, 0.125, -0.375] + 9 * [0])


@pytest.mark.parametrize(
    ("x", "mode", "scale", "codes"),
    [(BLOCK, "mae_256", 0x7C, [4, 3, -3, 1, 2, 0.5, -1.5]), (np.float32([1, 0.5] + 14 * [0]), "mae_256", 0x78, [6, 3]),
     (BLOCK, "mae_448", 0x7E, [6, 4, -4, 1.5, 3, 1, -2]), (BLOCK / 2, "mae_448", 0x7A, [4, 3, -3, 1, 2, 0.5, -1.5])],
)  # fmt: skip
def test_worked_examples(x: np.ndarray, mode: Any, scale: int, codes: list[float]) -> None:
    fmt = nvfp4.replace(four_over_six=mode)
    blocks = quantize_exact(x, fmt, amax=1.0)
    assert blocks.scale.tolist() == [scale]
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    assert grid[blocks.codes][: len(codes)].tolist() == codes
    assert blocks.tensor_scale == np.float32(1) / np.float32(6 * fmt.scale_bound)


@pytest.mark.parametrize("mode", ["mae_256", "mse_256", "mae_448", "mse_448"])
def test_the_error_is_never_larger_than_of_map_to_6(mode: Any) -> None:
    x = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
    fmt, plain = nvfp4.replace(four_over_six=mode), nvfp4
    errors = [np.abs(dequantize_exact(quantize_exact(x, f), f) - x).mean() for f in (fmt, plain)]
    assert errors[0] < errors[1]


def test_rows_that_stand_alone() -> None:
    """A row's codes and scales are those that it would have as a tensor of its own; any axis can be the row."""
    x = np.random.default_rng(0).standard_normal((5, 33, 3)).astype(np.float32) * 2.0 ** np.arange(5)[:, None, None]
    fmt = nvfp4.replace(per_row_tensor_scale=True)
    blocks = quantize_exact(x, fmt, axis=1)
    assert blocks.tensor_scale is not None
    assert blocks.tensor_scale.shape == (5, 3)
    values = dequantize_exact(blocks, fmt, axis=1)
    for i, j in np.ndindex(5, 3):
        own = quantize_exact(x[i, :, j], nvfp4)
        np.testing.assert_array_equal(blocks.codes[i, :, j], own.codes)
        np.testing.assert_array_equal(blocks.scale[i, :, j], own.scale)
        assert blocks.tensor_scale[i, j] == own.tensor_scale
        np.testing.assert_array_equal(values[i, :, j], dequantize_exact(own, nvfp4))


def test_worked_example_of_row_scales() -> None:
    """te-numerics B5.8: the two blocks of B5.4 as two rows. The first is as it was, the second has its own A."""
    blocks = quantize_exact(np.reshape(ROW, (2, 16)), nvfp4.replace(per_row_tensor_scale=True))
    assert blocks.scale.ravel().tolist() == [0x7E, 0x7E]
    whole = quantize_exact(np.asarray(ROW), nvfp4)
    assert np.array_equal(blocks.codes.ravel(), whole.codes)
    assert blocks.tensor_scale is not None
    assert blocks.tensor_scale.ravel().tolist() == [np.float32(a / 2688) for a in (6.5, 0.4375)]


@pytest.mark.parametrize(
    ("row", "changes", "words"),
    [(nvfp4, {"four_over_six": "mae_300"}, "four_over_six out of"),
     (mxfp8, {"four_over_six": "mae_256"}, "for four_over_six"),
     (nvfp4, {"four_over_six": "mae_256", "block": (12, 16)}, "for four_over_six"),
     (mxfp8, {"per_row_tensor_scale": True}, "for per_row_tensor_scale"),
     (nvfp4, {"per_row_tensor_scale": True, "block": (16, 16)}, "for per_row_tensor_scale")],
)  # fmt: skip
def test_rows_that_cannot_be(row: QuantDType, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        row.replace(**changes)
