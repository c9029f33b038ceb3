"""`quantize(convention=)`: other stacks' rules by name, against the exact twin and the bytes of these stacks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from nvfp.device import Device
from nvfp.dtypes import elements as el
from nvfp.dtypes.block import quantize_exact
from nvfp.dtypes.codec import decode, encode
from nvfp.dtypes.conventions import CONVENTIONS, STACKS, apply_convention
from nvfp.dtypes.formats import FORMATS, QuantDType, fp8_e4m3, fp8_e4m3_b128, mxfp4, mxfp8_e4m3, mxint8, nvfp4
from nvfp.dtypes.grid import block_lengths, expand
from nvfp.dtypes.packing import unpack
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.quantize import quantize
from tests.data.load import cases, load
from tests.devices import to_device, to_numpy
from tests.kernels.quantized import BF16, F32, check_operand, check_sides, values

ROWS = (
    *FORMATS.values(),
    mxfp4.replace(scale_rule="even", name="mxfp4_even"),
    mxfp4.replace(scale_rule="floor", block=24, name="mxfp4_24"),
    mxfp8_e4m3.replace(block=(8, 16), name="mxfp8_2d"),
    nvfp4.replace(block=(16, 16), name="nvfp4_2d"),
)
KNOWN = [
    (stack, fmt) for stack in STACKS for fmt in ROWS if any(c.stack == stack and c.covers(fmt) for c in CONVENTIONS)
]
by_name = {"ids": lambda value: getattr(value, "name", value)}


@pytest.mark.parametrize(("stack", "fmt"), KNOWN, **by_name)
def test_every_convention_is_exact(device: Device, stack: str, fmt: QuantDType) -> None:
    for kind in ("normal", "tiny", "ties", "zeros", "nonfinite", "huge"):
        x = values(kind, (33, 130), BF16 if kind == "ties" else F32)
        pair = quantize(to_device(x, device), fmt, col=True, convention=stack)
        check_sides(pair, x, fmt, convention=stack)
    deep = values("wide", (3, 40, 5))
    row = quantize(to_device(deep, device), fmt, axis=1, convention=stack).row
    assert row is not None
    check_operand(row, quantize_exact(deep, fmt, axis=1, convention=stack), fmt, 1)


@pytest.mark.parametrize("stack", ["te", "modelopt", "compressed-tensors"])
def test_given_words(device: Device, stack: str) -> None:
    x, word = values("normal", (33, 50)), np.array(0.0123, F32)
    for options in ({"amax": word}, {"tensor_scale": word}, {"amax": word, "tensor_scale": np.array(0.5, F32)}):
        there = {name: to_device(value, device) for name, value in options.items()}
        pair = quantize(to_device(x, device), nvfp4, col=True, convention=stack, **there)
        check_sides(pair, x, nvfp4, convention=stack, **options)


@pytest.mark.parametrize("stack", [None, "te", "modelopt", "compressed-tensors"])
def test_words_at_the_ends_of_float32(device: Device, stack: str | None) -> None:
    """Subnormal, huge, 0, inf and NaN factors: the exact twin's bits, no warning; what is no factor counts as 1."""
    x = np.concatenate([values("normal", (9, 50)), values("tiny", (9, 50)), values("huge", (9, 50))])
    for fmt in (nvfp4, nvfp4.replace(four_over_six="mse_256")):
        if fmt.leveled and stack not in (None, "te"):
            continue
        for number in (2.0**-149, 3e-39, 1.2e-38, 1e-30, 1e30, 3.4e38, 0.0, np.inf, np.nan):
            word = np.array(number, F32)
            for options in ({"amax": word}, {"tensor_scale": word}):
                there = {name: to_device(value, device) for name, value in options.items()}
                row = quantize(to_device(x, device), fmt, convention=stack, **there).row
                assert row is not None
                check_operand(row, quantize_exact(x, fmt, convention=stack, **options), fmt, 1)


def test_what_is_known() -> None:
    assert STACKS == ("te", "ocp", "torchao", "modelopt", "compressed-tensors", "mlx", "microxcaling")
    known = {(stack, fmt.name) for stack, fmt in KNOWN}
    for stack, names in {
        "te": {"fp8_e4m3", "fp8_e5m2", "fp8_e4m3_b128", "mxfp8_e4m3", "mxfp8_e5m2", "nvfp4"},
        "ocp": {name for name in FORMATS if name.startswith("mx")},
        "torchao": {"fp8_e4m3", *(name for name in FORMATS if name.startswith("mxfp"))},
        "modelopt": {"nvfp4"},
        "compressed-tensors": {"nvfp4", "mxfp8_e4m3", "mxfp4"},
        "mlx": {"mxfp8_e4m3"},
        "microxcaling": {name for name in FORMATS if name.startswith("mx")},
    }.items():
        assert {name for s, name in known if s == stack and name in FORMATS} == names, stack


@pytest.mark.parametrize(
    ("stack", "fmt"),
    [("modelopt", mxfp8_e4m3), ("mlx", nvfp4), ("te", mxint8), ("ocp", fp8_e4m3), ("torchao", nvfp4),
     ("compressed-tensors", nvfp4.replace(tensor_scale=False)), ("numpy", nvfp4)],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_name(stack: str, fmt: QuantDType) -> None:
    with pytest.raises(ValueError, match=stack):
        quantize(np.ones((2, 64), F32), fmt, convention=stack)
    with pytest.raises(ValueError, match="rounding"):
        quantize(np.ones((2, 64), F32), nvfp4, convention="te", rounding="toward_zero")


def test_rules_that_differ() -> None:
    """One line for each thing that a convention changes."""

    def made(stack: str | None, fmt: QuantDType, *x: float) -> tuple[list[int], list[int]]:
        blocks = quantize_exact(x, fmt, convention=stack)
        return blocks.scale.reshape(-1).tolist(), blocks.codes.tolist()

    nan = float("nan")
    assert made("te", mxfp8_e4m3, nan, 448.0) == ([127], [0x7F, 0x7E])  # NaN does not reach amax
    assert made(None, mxfp8_e4m3, nan, 448.0) == ([255], [0x7F, 0x7F])
    assert made("ocp", mxfp8_e4m3, 3.75) == ([120], [0x7E])  # floor: saturates
    assert made("mlx", mxfp8_e4m3, 0.0) == ([127], [0])
    assert made("compressed-tensors", mxfp8_e4m3, 448.0) == ([128], [0x76])  # rounds amax as FP4
    assert made("compressed-tensors", mxfp4, 7.0, -0.0) == ([128], [6, 0])  # no -0
    assert made("ocp", mxfp4, 7.0, -0.0) == ([127], [7, 8])
    assert made("torchao", mxfp4.replace(scale_rule="even"), 3.0e38, 1.0) == ([255], [0, 0])
    assert made("microxcaling", mxint8, -1.999, 1.0)[1] == [0x81, 64]
    assert made("ocp", mxint8, -1.999, 1.0)[1] == [0x80, 64]
    zeros = [0.0] * 16
    assert made("modelopt", nvfp4, *zeros, 1.0)[0] == [0x38, 0x7E]
    assert made("compressed-tensors", nvfp4, *zeros, 1.0)[0] == [0x20, 0x7E]
    assert made("modelopt", nvfp4, 1e-9, *zeros[1:], 1.0)[0] == [0x01, 0x7E]
    assert made("torchao", fp8_e4m3, 1e-13)[1] == [
        int(encode(np.float32(1e-13) * np.float32(448e12), el.float8_e4m3fn))
    ]
    assert apply_convention(fp8_e4m3_b128, "te")[0] is fp8_e4m3_b128


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_values(data: st.DataObject) -> None:
    stack, fmt = data.draw(st.sampled_from(KNOWN))
    numbers = st.floats(width=32) | st.sampled_from([0.0, -0.0, 6.0, 7.0, 448.0, 1.75, 2.0**-126, 3e38])
    x = np.array(data.draw(st.lists(numbers, min_size=1, max_size=70)), F32)[None]
    row = quantize(x, fmt, convention=stack).row
    assert row is not None
    check_operand(row, quantize_exact(x, fmt, axis=1, convention=stack), fmt, 1)


@pytest.mark.parametrize("case", cases("blocks_mx", "data"))
def test_bytes_of_mx_stacks(device: Device, case: str) -> None:
    """NVIDIA's headers by Transformer Engine's name, gfloat by OCP's, torchao and microxcaling by their own."""
    reference, row, rule, data = case.split(".", 3)
    stack = {"cuda_headers": "te", "gfloat": "ocp"}.get(reference, reference)
    fmt = FORMATS[row].replace(scale_rule=rule) if stack == "torchao" else FORMATS[row]
    stack_or_none = stack if (stack, fmt) in KNOWN or stack == "torchao" else None  # the headers' FP6 and FP4
    made = quantize(to_device(load("blocks_mx")[f"input.f32.mx.{data}.x"], device), fmt, convention=stack_or_none).row
    assert made is not None
    scale, theirs, codes = load("blocks_mx")[f"{case}.scale"], load("blocks_mx")[f"{case}.data"], to_numpy(made.codes)
    np.testing.assert_array_equal(to_numpy(made.scale), scale)
    marked = np.repeat(scale == 0xFF, codes.shape[1] // scale.shape[1], axis=1)
    np.testing.assert_array_equal(codes[~marked], theirs[~marked])


@pytest.mark.parametrize("case", cases("blocks_checkpoints", "data"))
def test_bytes_of_checkpoints(device: Device, case: str) -> None:
    """NVFP4 weights as modelopt and compressed-tensors write them; the latter stores the encode factor."""
    name, _, _, data = case.split(".", 3)
    tensors = load("blocks_checkpoints")
    x = tensors[f"input.f32.nvfp4.{data}.x"]
    made = quantize(to_device(x, device), nvfp4, convention=name.replace("_", "-")).row
    assert made is not None
    np.testing.assert_array_equal(to_numpy(made.scale), tensors[f"{case}.scale"])
    np.testing.assert_array_equal(to_numpy(made.codes), tensors[f"{case}.data"])
    stored = to_numpy(made.tensor_scale)
    if name == "modelopt":
        assert stored == tensors[f"{case}.scale_2"].reshape(())
    else:
        assert stored == np.float32(1) / tensors[f"{case}.global_scale"].reshape(())
    back = to_numpy(dequantize(made, F32))
    assert np.abs(back - x).max() < 0.2 * np.abs(x).max()
    assert unpack(to_numpy(made.codes), x.shape[1]).shape == x.shape


def test_values_in_the_order_of_te(device: Device) -> None:
    """code * ((scale * A) * (1 / 2688)), each a float32 operation; without A it follows from the tensor scale."""
    one = np.float32(1)
    for fmt in (nvfp4, nvfp4.replace(block=(16, 16))):
        x = values("normal", (33, 130))
        pair = quantize(to_device(x, device), fmt, col=True)
        for side, axis in ((pair.row, 1), (pair.col, 0)):
            assert side is not None
            blocks = quantize_exact(x, fmt, axis=axis)
            lengths = block_lengths(x.shape, fmt, axis)
            codes, s = decode(blocks.codes, fmt.element).astype(F32), decode(blocks.scale, fmt.scale).astype(F32)
            ways = (None, blocks.tensor_scale * np.float32(2688)), (np.abs(x).max(), np.abs(x).max())
            for given_amax, whole in ways:
                factor = s * whole * (one / np.float32(2688))
                word = None if given_amax is None else to_device(np.array(given_amax, F32), device)
                got = dequantize(side, F32, convention="te", amax=word)
                np.testing.assert_array_equal(to_numpy(got), codes * expand(factor, lengths, x.shape))
    row = quantize(to_device(x, device), mxfp8_e4m3).row
    assert row is not None
    np.testing.assert_array_equal(to_numpy(dequantize(row, F32, convention="te")), to_numpy(dequantize(row, F32)))
    with pytest.raises(ValueError, match="convention"):
        dequantize(row, F32, convention="ocp")
    assert hex(int((one / np.float32(2688)).view(np.uint32))) == "0x39c30c31"
