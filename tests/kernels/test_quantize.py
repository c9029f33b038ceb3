"""`kernels.quantize` against the exact twin `dtypes.block`, bit for bit, on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.block import quantize_exact
from nvfp.dtypes.formats import QuantDType, fp8_e4m3, fp8_e4m3_b128, fp8_e5m2, mxfp8_e4m3, nvfp4
from nvfp.dtypes.scale_layout import to_k_major128, to_tiles128x4
from nvfp.kernels.dequantize import dequantize, plain_scales
from nvfp.kernels.operand import OperandPair
from nvfp.kernels.quantize import other_side, quantize
from tests.devices import to_device, to_numpy
from tests.kernels.quantized import (
    BF16,
    BUILT,
    DTYPES,
    F16,
    F32,
    F64,
    KINDS,
    MADE,
    b128_2d,
    check_operand,
    check_sides,
    nvfp4_2d,
    same_bits,
    values,
)

ROWS = (*BUILT, *MADE)
by_name = {"ids": lambda fmt: fmt.name}


def word(value: float, device: Device) -> Any:
    return to_device(np.array(value, np.float32), device)


@pytest.mark.sanitizer
@pytest.mark.parametrize("fmt", BUILT, **by_name)
def test_both_sides_of_a_ragged_matrix(device: Device, fmt: QuantDType) -> None:
    x = values("normal", (37, 75))
    check_sides(quantize(to_device(x, device), fmt, col=True), x, fmt)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fmt", ROWS, **by_name)
def test_kinds_of_values(device: Device, fmt: QuantDType, kind: str) -> None:
    x = values(kind, (50, 200))
    check_sides(quantize(to_device(x, device), fmt, col=True), x, fmt)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fmt", (*BUILT, MADE[2], MADE[3], MADE[10]), **by_name)
def test_input_dtypes(device: Device, fmt: QuantDType, dtype: np.dtype) -> None:
    for kind in ("wide", "tiny", "nonfinite", "huge"):
        x = values(kind, (33, 130), dtype)
        check_sides(quantize(to_device(x, device), fmt, col=True), x, fmt)


@pytest.mark.parametrize("fmt", BUILT, **by_name)
def test_float64_is_rounded_once(device: Device, fmt: QuantDType) -> None:
    # Just beside a tie of the element: float32 would round to the tie, and the tie to even.
    x = np.full((2, 64), 17.0 * (1 + 2.0**-40))
    x[0, 0], x[1] = 448.0, -17.0 * (1 - 2.0**-40)
    check_sides(quantize(to_device(x, device), fmt, col=True), x, fmt)


@pytest.mark.parametrize("shape", [(0, 64), (64, 0), (1, 1), (1, 33), (33, 1), (130, 1), (3, 257)], ids=str)
@pytest.mark.parametrize("fmt", (*BUILT, MADE[3], MADE[11]), **by_name)
def test_matrix_shapes(device: Device, fmt: QuantDType, shape: tuple[int, int]) -> None:
    for dtype in DTYPES:
        x = values("normal", shape, dtype)
        check_sides(quantize(to_device(x, device), fmt, col=True), x, fmt)


@pytest.mark.parametrize("shape", [(0,), (1,), (33,), (2, 0, 3), (3, 5, 40), (2, 3, 4, 33)], ids=str)
@pytest.mark.parametrize("fmt", BUILT, **by_name)
def test_every_axis(device: Device, fmt: QuantDType, shape: tuple[int, ...]) -> None:
    x = values("wide", shape)
    for axis in range(-len(shape), len(shape)):
        if isinstance(fmt.block, tuple) and (len(shape) < 2 or axis % len(shape) < len(shape) - 2):
            continue
        pair = quantize(to_device(x, device), fmt, axis=axis)
        assert pair.col is None
        check_operand(pair.row, quantize_exact(x, fmt, axis=axis), fmt, axis % len(shape))


def test_zero_dimensions(device: Device) -> None:
    x = np.array(-3.0, np.float32)
    row = quantize(to_device(x, device), fp8_e4m3).row
    assert row is not None
    check_operand(row, quantize_exact(x, fp8_e4m3), fp8_e4m3, 0)


@pytest.mark.parametrize("shape", [(3, 40000), (700, 300), (1, 100003), (40000, 3)], ids=str)
@pytest.mark.parametrize("fmt", (*BUILT, MADE[3], MADE[17]), **by_name)
def test_sizes_of_many_panels(device: Device, fmt: QuantDType, shape: tuple[int, int]) -> None:
    x = values("nonfinite", shape, BF16)
    check_sides(quantize(to_device(x, device), fmt, col=True), x, fmt)


@pytest.mark.sanitizer
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fmt", BUILT, **by_name)
def test_strides(device: Device, fmt: QuantDType, dtype: np.dtype) -> None:
    base = values("normal", (70, 2, 96), dtype)
    flipped = base[::-1, 0, ::-2]
    assert flipped.strides[0] < 0 > flipped.strides[1]
    broadcast = np.broadcast_to(base[:1, 0], (20, 96))
    for x in (
        base[:, 0],
        base[::3, 1, 5:50],
        base[:, 0].T,
        base[1:40:2, 1].T,
        flipped,
        flipped.T,
        broadcast,
        broadcast.T,
    ):
        check_sides(quantize(to_device(x, device), fmt, col=True), x, fmt)
    deep = base.transpose(1, 2, 0)[:, ::2]
    for axis in range(1, 3):
        row = quantize(to_device(deep, device), fmt, axis=axis).row
        assert row is not None
        check_operand(row, quantize_exact(deep, fmt, axis=axis), fmt, axis)


def test_leading_axes_that_do_not_merge(device: Device) -> None:
    x = values("normal", (4, 3, 5, 64)).transpose(2, 0, 1, 3)[:, ::2]
    for fmt in (mxfp8_e4m3, nvfp4_2d, fp8_e4m3):
        row = quantize(to_device(x, device), fmt).row
        assert row is not None
        check_operand(row, quantize_exact(x, fmt), fmt, 3)


def test_read_only_and_unaligned_input() -> None:
    x = values("normal", (8, 64))
    locked = x.copy()
    locked.flags.writeable = False
    check_sides(quantize(locked, mxfp8_e4m3, col=True), x, mxfp8_e4m3)
    shifted = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(8, 64)
    assert not shifted.flags.aligned
    check_sides(quantize(shifted, mxfp8_e4m3, col=True), x, mxfp8_e4m3)


@pytest.mark.parametrize("fmt", (*BUILT, MADE[3]), **by_name)
def test_one_side_at_a_time(device: Device, fmt: QuantDType) -> None:
    x = values("wide", (45, 70))
    raw = to_device(x, device)
    both = quantize(raw, fmt, col=True)
    for row in (True, False):
        pair = quantize(raw, fmt, row=row, col=not row)
        got, wanted = (pair.row, both.row) if row else (pair.col, both.col)
        assert (pair.row is None, pair.col is None) == (not row, row)
        assert got is not None
        assert wanted is not None
        assert same_bits(got.codes, to_numpy(wanted.codes))
        assert same_bits(got.scale, to_numpy(wanted.scale))


@pytest.mark.sanitizer
@pytest.mark.parametrize("fmt", (*BUILT, *(f for f in MADE if f.square)), **by_name)
def test_other_side(device: Device, fmt: QuantDType) -> None:
    x = values("normal", (45, 70))
    raw = to_device(x, device)
    for row in (True, False):
        pair = quantize(raw, fmt, row=row, col=not row)
        which = "col" if row else "row"
        if not fmt.square:
            with pytest.raises(ValueError, match=f"its {which} side"):
                pair.side(which)
            pair.make = lambda side: quantize(raw, fmt, row=side == "row", col=side == "col").side(side)
        made = pair.side(which)
        assert pair.side(which) is made
        check_sides(pair, x, fmt)
    with pytest.raises(ValueError, match="nothing"):
        other_side(OperandPair(None, None), "row")


@pytest.mark.parametrize("fmt", (fp8_e4m3, fp8_e5m2, MADE[0], MADE[1], MADE[10], MADE[11]), **by_name)
@pytest.mark.parametrize("dtype", (F32, BF16), ids=str)
def test_given_scale(device: Device, fmt: QuantDType, dtype: np.dtype) -> None:
    x = values("nonfinite", (33, 50), dtype)
    for multiplier in (37.5, 1e-3, 2.0**100):
        state = word(multiplier, device)
        pair = quantize(to_device(x, device), fmt, col=True, scale=state)
        check_sides(pair, x, fmt, scale=np.float32(multiplier))
        state[...] = 1.0  # the operand holds its own factor
        check_sides(pair, x, fmt, scale=np.float32(multiplier))


@pytest.mark.parametrize("fmt", (fp8_e4m3, MADE[0], MADE[1], MADE[12], nvfp4, nvfp4_2d, MADE[14]), **by_name)
def test_given_amax(device: Device, fmt: QuantDType) -> None:
    x = values("normal", (33, 50))
    for amax in (0.0, 3.5, 2.0**-140, 2.0**-120, 1e30, np.inf):
        pair = quantize(to_device(x, device), fmt, col=True, amax=word(amax, device))
        check_sides(pair, x, fmt, amax=np.float32(amax))


@pytest.mark.parametrize("fmt", (nvfp4, MADE[18]), **by_name)
def test_given_amax_per_side(device: Device, fmt: QuantDType) -> None:
    x = values("normal", (33, 50))
    words = (word(3.0, device), word(5.0, device))
    pair = quantize(to_device(x, device), fmt, col=True, amax=words)
    check_operand(pair.row, quantize_exact(x, fmt, axis=1, amax=np.float32(3)), fmt, 1)
    check_operand(pair.col, quantize_exact(x, fmt, axis=0, amax=np.float32(5)), fmt, 0, swap=True)
    half = quantize(to_device(x, device), fmt, col=True, amax=(None, words[1]))
    check_operand(half.row, quantize_exact(x, fmt, axis=1), fmt, 1)


@pytest.mark.parametrize("fmt", (nvfp4, nvfp4_2d, MADE[14]), **by_name)
def test_given_tensor_scale(device: Device, fmt: QuantDType) -> None:
    x = values("wide", (33, 50))
    for factor in (0.0, 0.5, 1e-45, 3e38):
        given = word(factor, device)
        pair = quantize(to_device(x, device), fmt, col=True, tensor_scale=given)
        check_sides(pair, x, fmt, tensor_scale=np.float32(factor))
        given[...] = 7.0
        check_sides(pair, x, fmt, tensor_scale=np.float32(factor))
    options = {"tensor_scale": 0.25, "amax": 4.0}
    pair = quantize(to_device(x, device), fmt, col=True, **{k: word(v, device) for k, v in options.items()})
    check_sides(pair, x, fmt, **{k: np.float32(v) for k, v in options.items()})


@pytest.mark.parametrize("fmt", (fp8_e4m3, MADE[0], MADE[2], MADE[3]), **by_name)
def test_amax_epsilon(device: Device, fmt: QuantDType) -> None:
    x = values("normal", (33, 50)) * np.float32(1e-3)
    x[:, :10] = 0
    for epsilon in (1e-12, 1e-2):
        pair = quantize(to_device(x, device), fmt, col=True, amax_epsilon=epsilon)
        check_sides(pair, x, fmt, amax_epsilon=epsilon)


@pytest.mark.parametrize("fmt", (*BUILT, MADE[8], MADE[11]), **by_name)
def test_nonsaturating(device: Device, fmt: QuantDType) -> None:
    x = values("nonfinite", (33, 50))
    options: dict[str, Any] = {} if fmt.block is not None else {"scale": word(500.0, device)}
    exact = {"scale": np.float32(500)} if options else {}
    pair = quantize(to_device(x, device), fmt, col=True, overflow="nonsat", **options)
    check_sides(pair, x, fmt, overflow="nonsat", **exact)


@pytest.mark.parametrize("fmt", (*BUILT, MADE[1]), **by_name)
def test_amax_out(device: Device, fmt: QuantDType) -> None:
    x = values("normal", (33, 50), F16)
    x[3, 4], x[5, 6] = np.nan, -np.inf
    finite = x[np.isfinite(x)].astype(F32)
    expected = np.abs(finite).max() if fmt.nonfinite == "nan_block" else np.float32(np.inf)
    for old in (0.0, 1e30):
        both = (word(old, device), word(old, device))
        given = {"scale": word(2.0, device)} if fmt.block is None else {}
        pair = quantize(to_device(x, device), fmt, col=True, amax_out=both, **given)
        for out in both:
            assert to_numpy(out) == max(old, expected)
        single = word(old, device)
        again = quantize(to_device(x, device), fmt, row=False, col=True, amax_out=single, **given)
        assert to_numpy(single) == max(old, expected)
        assert pair.col is not None
        assert again.col is not None
        assert same_bits(again.col.codes, to_numpy(pair.col.codes))
    untouched = word(3.0, device)
    quantize(to_device(x[:0], device), fmt, amax_out=untouched)
    assert to_numpy(untouched) == 3.0


@pytest.mark.sanitizer
@pytest.mark.parametrize("fmt", (mxfp8_e4m3, nvfp4, nvfp4_2d, MADE[4], MADE[16]), **by_name)
def test_tiled_scales(device: Device, fmt: QuantDType) -> None:
    x = values("normal", (150, 200))
    raw = to_device(x, device)
    plain = quantize(raw, fmt, col=True)
    tiled = quantize(raw, fmt, col=True, scale_layout="tiles128x4")
    across = (fmt.block_shape or (1, 1))[0]
    for want, got in ((plain.row, tiled.row), (plain.col, tiled.col)):
        assert want is not None
        assert got is not None
        assert got.scale_layout == "tiles128x4"
        rows = np.repeat(to_numpy(want.scale), across, axis=0)[: want.stored_shape[0]]
        assert same_bits(got.scale, to_tiles128x4(rows))
        assert same_bits(got.codes, to_numpy(want.codes))


@pytest.mark.sanitizer
@pytest.mark.parametrize("fmt", (fp8_e4m3_b128, b128_2d, MADE[2], MADE[3], fp8_e4m3.replace(block=32)), **by_name)
def test_scales_along_k(device: Device, fmt: QuantDType) -> None:
    square = isinstance(fmt.block, tuple)
    for shape in ((150, 270), (128, 512), (1, 129), (5, 0), (0, 5)):
        raw = to_device(values("normal", shape), device)
        plain, laid = quantize(raw, fmt, col=True), quantize(raw, fmt, col=True, scale_layout="k_major128")
        for want, got in ((plain.row, laid.row), (plain.col, laid.col)):
            assert want is not None and got is not None
            scale = to_numpy(want.scale)
            assert got.scale_layout == "k_major128"
            assert same_bits(got.scale, to_k_major128(scale.T if square else scale))
            assert same_bits(got.codes, to_numpy(want.codes))
            assert same_bits(plain_scales(got).scale, scale)
            assert same_bits(dequantize(got, F32), to_numpy(dequantize(want, F32)))
        if square:
            alone = quantize(raw, fmt, scale_layout="k_major128")
            assert plain.col is not None and same_bits(alone.side("col").scale, to_numpy(plain.col.scale))


def test_nan_blocks_leave_their_neighbours_exact(device: Device) -> None:
    clean = values("normal", (4, 96))
    for fmt in (mxfp8_e4m3, nvfp4):
        good = quantize(to_device(clean, device), fmt, amax=None).row
        assert good is not None
        for bad in (np.nan, np.inf, -np.inf):
            x = clean.copy()
            x[1, 40] = bad
            got = quantize(to_device(x, device), fmt).row
            assert got is not None
            length = fmt.block_shape[1] if fmt.block_shape else 0
            scale, wanted = to_numpy(got.scale), to_numpy(good.scale).copy()
            wanted[1, 40 // length] = fmt.scale.nan_code
            assert (scale == wanted).all()
            codes = to_numpy(got.codes)[1].reshape(96 // length, -1)[40 // length]
            assert (codes == (fmt.element.nan_code if fmt.element.has_nan else 0)).all()


def test_arguments_that_do_not_fit(device: Device) -> None:
    x, one = to_device(values("normal", (32, 64)), device), word(1.0, device)
    with pytest.raises(TypeError, match="float32, bfloat16"):
        quantize(to_device(np.arange(4), device), mxfp8_e4m3)
    for fmt, name in ((mxfp8_e4m3, "scale"), (nvfp4, "scale"), (mxfp8_e4m3, "amax"), (fp8_e4m3, "tensor_scale")):
        with pytest.raises(ValueError, match=f"for {name}="):
            quantize(x, fmt, **{name: one})
    with pytest.raises(ValueError, match="both"):
        quantize(x, fp8_e4m3, scale=one, amax=one)
    with pytest.raises(ValueError, match="amax_epsilon"):
        quantize(x, nvfp4, amax_epsilon=1e-3)
    with pytest.raises(ValueError, match="its sides share it"):
        quantize(x, nvfp4_2d, col=True, amax=(one, word(1.0, device)))
    with pytest.raises(TypeError, match="0-d"):
        quantize(x, fp8_e4m3, scale=2.0)
    with pytest.raises(TypeError, match="float32 array of shape"):
        quantize(x, fp8_e4m3, scale=to_device(np.ones(1, np.float32), device))
    with pytest.raises(ValueError, match="axis=-1 for col"):
        quantize(x, mxfp8_e4m3, col=True, axis=0)
    with pytest.raises(ValueError, match="axis=-1 for col"):
        quantize(x[None], mxfp8_e4m3, col=True)
    with pytest.raises(ValueError, match="last two axes"):
        quantize(x[None], nvfp4_2d, axis=0)
    with pytest.raises(ValueError, match="an axis of 2"):
        quantize(x, mxfp8_e4m3, axis=2)
    with pytest.raises(ValueError, match="row or col"):
        quantize(x, mxfp8_e4m3, row=False)
    with pytest.raises(ValueError, match="tiles128x4"):
        quantize(x, fp8_e4m3, scale_layout="tiles128x4")
    for fmt, axis in ((fp8_e4m3, 1), (mxfp8_e4m3, 1), (fp8_e4m3_b128, 0)):
        with pytest.raises(ValueError, match="float32 block scales of a matrix, blocked along its last axis"):
            quantize(x, fmt, axis=axis, scale_layout="k_major128")
    with pytest.raises(ValueError, match="overflow"):
        quantize(x, fp8_e4m3, overflow="wrap")  # type: ignore[arg-type]
    for name in ("rounding", "overflow", "scale_layout", "convention"):  # what cannot be hashed is no word either
        for wrong in ([], ["te"], {}, np.ones(2)):
            with pytest.raises(ValueError, match=rf"\[quantize\] expected {name} out of"):
                quantize(x, fp8_e4m3, **{name: wrong})


def test_rows_that_cannot_be() -> None:
    x = np.ones((2, 64), np.float32)
    for fmt, words in (
        (nvfp4.replace(block=None), "tensor scale"),
        (nvfp4.replace(power_of_two_scales=True), "power_of_two"),
        (nvfp4.replace(scale_rule="floor"), "scale_rule"),
    ):
        with pytest.raises(ValueError, match=words):
            quantize(x, fmt)


def test_float64_ranges(device: Device) -> None:
    x = np.array([[1e300, -1e-300, 1.0, 0.0] * 16, [1e-300, -1e-320, 0.0, -0.0] * 16], F64)
    for fmt in BUILT:
        check_sides(quantize(to_device(x, device), fmt, col=True), x, fmt)
