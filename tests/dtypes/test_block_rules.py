"""What holds for every quantized dtype: axes, ragged and square blocks, non-finite input, given scales, new rows."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.dtypes import elements as el
from nvfp.dtypes.block import ExactBlocks, dequantize_exact, quantize_exact
from nvfp.dtypes.codec import decode, encode
from nvfp.dtypes.formats import FORMATS, QuantDType, fp8_e4m3, fp8_e5m2, mxfp8, nvfp4
from nvfp.errors import ArgumentError, ShapeError
from tests.dtypes.inputs import f32

SQUARE = nvfp4.replace(block=(16, 16))
PLAIN4 = QuantDType("e2m1_b16", el.float4_e2m1fn, 16, el.float8_e4m3fn)
ROWS = [
    *FORMATS.values(), SQUARE, PLAIN4,
    mxfp8.replace(block=(32, 32)), mxfp8.replace(block=(4, 8)), mxfp8.replace(scale_rule="even"),
    QuantDType("int8_b32", el.int8, 32, el.float8_e8m0fnu),
    QuantDType("fp6_b8", el.float6_e2m3fn, 8, el.float8_e5m2, tensor_scale=True),
    QuantDType("fp6_bf16", el.float6_e3m2fn, 16, el.bfloat16),
    QuantDType("int8_fp16", el.int8, 16, el.float16, tensor_scale=True),
    QuantDType("fp4_fp4", el.float4_e2m1fn, 4, el.float4_e2m1fn, nonfinite="saturate"),
    QuantDType("fp8_tensor_e8m0", el.float8_e4m3fn, None, el.float8_e8m0fnu),
    QuantDType("fp8_tensor_e5m2", el.float8_e4m3fn, None, el.float8_e5m2),
    QuantDType("fp8_b16_nan", el.float8_e4m3fn, 16, el.float32),
]  # fmt: skip
rows = pytest.mark.parametrize("fmt", ROWS, ids=str)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same(a: ExactBlocks, b: ExactBlocks) -> None:
    np.testing.assert_array_equal(a.codes, b.codes)
    np.testing.assert_array_equal(a.scale, b.scale)
    np.testing.assert_array_equal(a.tensor_scale, b.tensor_scale)


@rows
def test_error_is_bounded(fmt: QuantDType) -> None:
    """Half a step at the top of a block; and what a rounded scale, or a rule that lets maxima saturate, adds."""
    x = normal(37, 53)
    y = dequantize_exact(quantize_exact(x, fmt), fmt)
    bound = 2.0**-fmt.element.significand_bits
    bound += {"float32": 0.0, "e8m0": 0.125 if fmt.scale_rule != "ceil" else 0.0, "two_level": 0.25}[fmt.scale_family]
    assert np.abs(y - x).max() <= bound * np.abs(x).max() * 1.001


@rows
def test_axis_is_moved_not_special(fmt: QuantDType) -> None:
    x = normal(3, 20, 37)
    if (fmt.block_shape or (1, 1))[0] == 1:
        for axis in (0, 1, -3):
            moved = np.moveaxis(x, axis, -1)
            a, b = quantize_exact(x, fmt, axis=axis), quantize_exact(moved, fmt)
            scale = a.scale if fmt.block is None else np.moveaxis(a.scale, axis, -1)
            same(ExactBlocks(np.moveaxis(a.codes, axis, -1), scale, a.tensor_scale), b)
    a, b = quantize_exact(x, fmt, axis=1), quantize_exact(x.swapaxes(1, 2), fmt, axis=2)
    scale = a.scale if fmt.block is None else a.scale.swapaxes(1, 2)
    same(ExactBlocks(a.codes.swapaxes(1, 2), scale, a.tensor_scale), b)


@rows
def test_ragged_blocks_are_filled_with_zeros(fmt: QuantDType) -> None:
    x = normal(19, 43)
    filled = np.zeros((64, 128), np.float32)
    filled[:19, :43] = x
    a, b = quantize_exact(x, fmt), quantize_exact(filled, fmt)
    np.testing.assert_array_equal(a.codes, b.codes[:19, :43])
    if fmt.block is not None:
        across, along = fmt.block_shape or (1, 1)
        assert a.scale.shape == (-(-19 // across), -(-43 // along))
        np.testing.assert_array_equal(a.scale, b.scale[: a.scale.shape[0], : a.scale.shape[1]])


@pytest.mark.parametrize("fmt", [f for f in ROWS if f.scale_family == "e8m0" and f.scale_rule == "ceil"], ids=str)
def test_requantizing_changes_nothing(fmt: QuantDType) -> None:
    """Values on the grid of an E8M0 block stay on it: its maximum needs the same power of two, or a smaller one."""
    y = dequantize_exact(quantize_exact(normal(8, 64, seed=1), fmt), fmt)
    np.testing.assert_array_equal(dequantize_exact(quantize_exact(y, fmt), fmt), y)


@rows
def test_empty_and_scalars(fmt: QuantDType) -> None:
    for shape in ((0, 5), (5, 0), (2, 0, 3)):
        blocks = quantize_exact(np.zeros(shape, np.float32), fmt)
        assert blocks.codes.shape == shape
        assert dequantize_exact(blocks, fmt).shape == shape
    if fmt.block is None:
        blocks = quantize_exact(f32(3.0), fmt)
        assert abs(float(dequantize_exact(blocks, fmt)) - 3) <= 3 / 16
    else:
        with pytest.raises(ShapeError, match="0-d array"):
            quantize_exact(f32(3.0), fmt)


@rows
def test_zeros_come_back_as_zeros_of_their_sign(fmt: QuantDType) -> None:
    x = f32([[0.0, -0.0, 0.0, 0.0]])
    blocks = quantize_exact(x, fmt)
    y = dequantize_exact(blocks, fmt)
    assert (y == 0).all()
    assert np.signbit(y).tolist() == [[False, not fmt.element.integer, False, False]]
    scale = blocks.scale if fmt.scale_family == "float32" else decode(blocks.scale, fmt.scale)
    assert np.isfinite(scale).all()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.int32])
@rows
def test_input_dtypes(fmt: QuantDType, dtype: Any) -> None:
    """16-bit floats and small integers are exact in float32."""
    x = (normal(4, 48) * 8).astype(dtype)
    same(quantize_exact(x, fmt), quantize_exact(x.astype(np.float32), fmt))


@rows
def test_strides_do_not_matter(fmt: QuantDType) -> None:
    x = normal(40, 80)
    for view in (x.T, x[::-1, ::-1], x[:, ::2], np.broadcast_to(x[:1], (40, 80))):
        same(quantize_exact(view, fmt), quantize_exact(np.ascontiguousarray(view), fmt))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("fmt", [f for f in ROWS if f.nonfinite == "nan_block" and f.block is not None], ids=str)
def test_nan_block_and_exact_neighbours(fmt: QuantDType, bad: float) -> None:
    x = normal(33, 64)
    x[3, 0] = 100.0  # the largest finite magnitude shares a block with the bad element, and still is A
    clean = quantize_exact(x, fmt)
    x[3, 1] = bad
    blocks = quantize_exact(x, fmt)
    y = dequantize_exact(blocks, fmt)
    nan = np.isnan(y)
    across, along = fmt.block_shape or (1, 1)
    first = 3 // across * across
    assert nan[first : first + across, :along].all()
    assert nan.sum() == min(across, 33 - first) * along
    fill = fmt.element.nan_code if fmt.element.has_nan else 0
    assert (blocks.codes[nan] == fill).all()
    np.testing.assert_array_equal(blocks.codes[~nan], clean.codes[~nan])
    np.testing.assert_array_equal(blocks.tensor_scale, clean.tensor_scale)


def test_nan_codes_of_the_scale_formats() -> None:
    x = np.full((1, 32), np.nan, np.float32)
    assert quantize_exact(x, mxfp8).scale.tolist() == [[0xFF]]
    assert (quantize_exact(x, mxfp8).codes == 0x7F).all()
    assert quantize_exact(x, nvfp4).scale.tolist() == [[0x7F, 0x7F]]
    assert (quantize_exact(x, nvfp4).codes == 0).all()
    assert float(quantize_exact(x, nvfp4).tensor_scale or 0) == 0


@pytest.mark.parametrize("fmt", [fp8_e4m3, fp8_e5m2, fp8_e4m3.replace(block=4)], ids=str)
def test_saturating_formats_follow_the_element(fmt: QuantDType) -> None:
    x = f32([1.0, np.inf, -np.inf, np.nan])
    blocks = quantize_exact(x, fmt)
    top = fmt.element.max_code
    assert float(blocks.scale.reshape(-1)[0]) == 1, "amax is infinite"
    assert blocks.codes[1:].tolist() == [top, top | 0x80, 0x7F]
    x[1:3] = 2.0
    assert quantize_exact(x, fmt).codes[1:].tolist() == [top, top, 0x7F], "NaN does not reach amax"
    infinite = {0x7F, 0xFF} if fmt.element is el.float8_e4m3fn else {0x7C, 0xFC}
    nonsat = quantize_exact(f32([np.inf, -np.inf]), fmt, overflow="nonsat")
    assert set(nonsat.codes.tolist()) == infinite


def test_mx_that_saturates_gives_254_for_inf() -> None:
    """Transformer Engine's own rule for MXFP8, as a row."""
    fmt = mxfp8.replace(nonfinite="saturate")
    blocks = quantize_exact(f32([np.inf, -1.0, np.nan]), fmt)
    assert blocks.scale.tolist() == [254]
    assert blocks.codes.tolist() == [0x7E, 0x80, 0x7F]
    assert quantize_exact(f32([np.nan] * 4), fmt).scale.tolist() == [0]


def test_delayed_scaling_stores_the_inverse() -> None:
    x = normal(5, 7)
    blocks = quantize_exact(x, fp8_e4m3, scale=np.float32(37.5))
    np.testing.assert_array_equal(blocks.codes, encode(x * np.float32(37.5), el.float8_e4m3fn))
    assert blocks.scale == np.float32(1) / np.float32(37.5)
    assert blocks.multiplier == 37.5


def test_given_amax() -> None:
    x = normal(4, 32)
    same(quantize_exact(x, fp8_e4m3, amax=np.abs(x).max()), quantize_exact(x, fp8_e4m3))
    same(quantize_exact(x, nvfp4, amax=np.abs(x).max()), quantize_exact(x, nvfp4))
    assert float(quantize_exact(x, fp8_e4m3, amax=896.0).scale) == 2
    double = quantize_exact(x, nvfp4, amax=2 * np.abs(x).max())
    assert double.scale.max() < 0x7E


def test_given_tensor_scale() -> None:
    x = normal(4, 32)
    blocks = quantize_exact(x, nvfp4, tensor_scale=np.float32(0.25))
    assert blocks.tensor_scale == 0.25
    same(blocks, quantize_exact(x, nvfp4, amax=672.0, tensor_scale=0.25))  # 2688 / 672 = 1 / 0.25
    same(blocks, quantize_exact(x, nvfp4, amax=672.0))
    both = quantize_exact(x, nvfp4, amax=1344.0, tensor_scale=0.25)
    assert both.tensor_scale == 0.25
    np.testing.assert_array_equal(both.codes, quantize_exact(x, nvfp4, amax=1344.0).codes)


def test_amax_epsilon() -> None:
    blocks = quantize_exact(f32([2.0**-20]), fp8_e4m3, amax_epsilon=1.0)
    assert float(blocks.scale) == float(np.float32(1) / np.float32(448))


def test_float64_input_is_rounded_to_odd_first() -> None:
    """A double beside a tie of the scaled value (MX scales are exact): one rounding in all."""
    x = np.zeros(32)
    x[0], x[1], x[2] = 448.0, 17 + 2.0**-40, 17 - 2.0**-40
    assert dequantize_exact(quantize_exact(x, mxfp8), mxfp8)[1:3].tolist() == [18, 16]
    huge = quantize_exact(np.array([1e300, -1e300]), mxfp8)
    assert huge.scale.tolist() == [247]
    assert np.isfinite(decode(huge.codes, el.float8_e4m3fn)).all()


@pytest.mark.parametrize(
    ("fmt", "argument", "value", "need"),
    [
        (mxfp8, "scale", 1.0, "one float32 scale per tensor"),
        (nvfp4, "scale", 1.0, "one float32 scale per tensor"),
        (mxfp8, "amax", 1.0, "a scale per tensor"),
        (fp8_e4m3, "tensor_scale", 1.0, "a tensor scale"),
        (PLAIN4, "tensor_scale", 1.0, "a tensor scale"),
        (nvfp4, "amax_epsilon", 1e-6, "float32 scales"),
    ],
)
def test_arguments_without_a_use_are_refused(fmt: QuantDType, argument: str, value: float, need: str) -> None:
    with pytest.raises(ArgumentError, match=f"{need} for {argument}="):
        quantize_exact(np.ones(32), fmt, **{argument: value})  # type: ignore[arg-type]


def test_errors() -> None:
    with pytest.raises(ShapeError, match="got 2; pass one of its axes"):
        quantize_exact(np.ones((2, 2)), mxfp8, axis=2)
    with pytest.raises(ShapeError, match="one of the last two axes"):
        quantize_exact(np.ones((2, 2, 2)), SQUARE, axis=0)
    with pytest.raises(ShapeError, match="1-d array"):
        quantize_exact(np.ones(4), SQUARE)
    rows = nvfp4.replace(per_row_tensor_scale=True)
    for argument in ("amax", "tensor_scale"):
        with pytest.raises(ArgumentError, match=f"for {argument}="):
            quantize_exact(np.ones(4), rows, **{argument: 1.0})
    with pytest.raises(ShapeError, match=r"codes of shape \(5,\), got \(4,\)"):
        dequantize_exact(quantize_exact(np.ones(4), nvfp4), nvfp4, (5,))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_mx_scale_covers_the_block(values: list[float]) -> None:
    """Nothing saturates under the ceil rule: every block maximum is at most the largest value times its scale."""
    blocks = quantize_exact(f32(values), mxfp8)
    for at, byte in enumerate(blocks.scale.tolist()):
        assert max(map(abs, values[32 * at : 32 * at + 32])) <= 448 * 2.0 ** (byte - 127)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16])
def test_dequantize_casts_once_at_the_end(dtype: Any) -> None:
    blocks = quantize_exact(normal(4, 32), nvfp4)
    wide = dequantize_exact(blocks, nvfp4)
    narrow = dequantize_exact(blocks, nvfp4, dtype=dtype)
    assert narrow.dtype == dtype
    np.testing.assert_array_equal(narrow, wide.astype(dtype))
