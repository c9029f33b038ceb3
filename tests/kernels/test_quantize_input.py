"""Input functions of `kernels.quantize`, and its column sums: the bits of two steps, on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from nvfp.device import Device
from nvfp.dtypes.formats import QuantDType, fp8_e4m3, fp8_e4m3_b128, mxfp4, mxfp8_e4m3, nvfp4
from nvfp.errors import ArgumentError, DTypeError, NvfpError, ShapeError
from nvfp.kernels._stochastic import Rng
from nvfp.kernels.activation import KINDS
from nvfp.kernels.bias_grad import bias_grad
from nvfp.kernels.input_fn import Activated, ActivationGradient, InputFn, Normalized, apply, result_shape
from nvfp.kernels.operand import OperandPair
from nvfp.kernels.quantize import quantize
from tests.devices import to_device, to_numpy
from tests.kernels.quantized import BF16, F16, F32, F64, same_bits, values

WORD = np.array(3.0, F32)
b128_square = fp8_e4m3_b128.replace(block=(128, 128))
GELU, SWIGLU, DGELU, DSWIGLU = ("gelu", False), ("swiglu", False), ("gelu", True), ("swiglu", True)
Case = tuple[str, QuantDType, dict[str, Any], tuple[str, bool]]
# Maxima given, taken, and not needed; every kind of function with both of bytes and of nibbles. (Each is a kernel.)
CASES: tuple[Case, ...] = (
    *(("delayed", fp8_e4m3, {"scale": WORD}, function) for function in (GELU, SWIGLU, DGELU, DSWIGLU)),
    *(("nvfp4 given", nvfp4, {"amax": WORD}, function) for function in (GELU, SWIGLU, DGELU, DSWIGLU)),
    *(("nvfp4", nvfp4, {}, function) for function in (GELU, DSWIGLU)),
    *(("current", fp8_e4m3, {}, function) for function in (GELU, DSWIGLU)),
    *(("1x128", fp8_e4m3_b128, {}, function) for function in (SWIGLU, DGELU)),
    *(("mxfp8", mxfp8_e4m3, {}, function) for function in (SWIGLU, DGELU)),
    ("128x128", b128_square, {}, DSWIGLU),
    ("mxfp4", mxfp4, {}, GELU),
    ("no tiles", mxfp8_e4m3.replace(block=64), {}, DGELU),
)


def raw(device: Device, arguments: dict[str, Any]) -> dict[str, Any]:
    return {k: to_device(v, device) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}


def check(
    device: Device,
    x: Any,
    fmt: QuantDType,
    f: InputFn | None,
    *,
    bias: Any = False,
    recorded: bool = True,
    **arguments: Any,
) -> None:
    """Compare one call with two; x and the arrays of f are on the device."""
    outs: list[Any] = [to_device(np.zeros((), F32), device) if recorded else None for _ in range(2)]
    got = quantize(x, fmt, input_fn=f, bias_grad=bias, amax_out=outs[0], **arguments)
    y = x if f is None else apply(x, f)
    want = quantize(y, fmt, amax_out=outs[1], **arguments)
    if recorded:
        assert same_bits(to_numpy(outs[0]), to_numpy(outs[1]))
    check_pairs(got, want)
    if bias is False:
        assert got.bias_grad is None
    else:
        total = bias_grad(y, dtype=None if bias is True else bias)
        assert got.bias_grad.dtype == total.dtype
        assert np.array_equal(to_numpy(got.bias_grad), to_numpy(total), equal_nan=True)


def check_pairs(got: OperandPair, want: OperandPair) -> None:
    for a, b in ((got.row, want.row), (got.col, want.col)):
        assert (a is None) == (b is None)
        if a is None or b is None:
            continue
        assert (a.shape, a.axis, a.transposed, a.rotation) == (b.shape, b.axis, b.transposed, b.rotation)
        assert len(a.arrays()) == len(b.arrays())
        assert all(same_bits(to_numpy(p), to_numpy(q)) for p, q in zip(a.arrays(), b.arrays(), strict=True))


def given_inputs(
    device: Device, kind: str, gradient: bool, shape: tuple[int, ...], dtype: Any = BF16, content: str = "nonfinite"
) -> tuple[Any, InputFn]:
    """A source, and a function of it whose result, or whose gradient's source, has this shape."""
    wide = (*shape[:-1], shape[-1] * 2) if KINDS[kind].gated else shape
    x = to_device(values(content, wide, dtype), device)
    return (
        (to_device(values("normal", shape, dtype), device), ActivationGradient(kind, x))
        if gradient
        else (x, Activated(kind))
    )


@pytest.mark.sanitizer
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[3][0]}{'-gradient' if case[3][1] else ''}")
def test_formats(device: Device, case: Case) -> None:
    _, fmt, arguments, (kind, gradient) = case
    for content, shape in (
        ("normal", (128, 256)),
        ("nonfinite", (37, 80)),
        ("wide", (131, 45)),
        ("nonfinite", (300, 144)),
    ):
        x, f = given_inputs(device, kind, gradient, shape, content=content)
        check(device, x, fmt, f, col=True, bias=gradient, **raw(device, arguments))


def test_one_side(device: Device) -> None:
    x, f = given_inputs(device, "gelu", False, (150, 160))
    check(device, x, fp8_e4m3, f, scale=to_device(WORD, device))
    check(device, x, mxfp8_e4m3, f, row=False, col=True)


@pytest.mark.parametrize("gradient", (False, True))
def test_every_function_and_dtype(device: Device, gradient: bool) -> None:
    cases = [(kind, dtype) for kind in KINDS for dtype in (BF16, F16, F32)]
    if device.type != "cpu":  # each is a kernel, which takes seconds to compile; `activation` has all of them
        cases = [("silu", F32), ("glu", BF16)] if gradient else [("sreglu", F16), ("qgelu", BF16)]
    for kind, dtype in cases:
        x, f = given_inputs(device, kind, gradient, (40, 144), dtype)
        assert result_shape(x.shape, f) == ((40, 288) if gradient and KINDS[kind].gated else (40, 144))
        check(device, x, mxfp8_e4m3, f, col=True, bias=gradient, recorded=False)


@settings(max_examples=12)
@given(data=st.data(), case=st.sampled_from(CASES))
def test_any_strides(device: Device, data: st.DataObject, case: Case) -> None:
    rows, columns = data.draw(st.integers(0, 140)), data.draw(st.integers(0, 9)) * data.draw(st.sampled_from((1, 16)))
    step, shift, pad = data.draw(st.integers(1, 2)), data.draw(st.integers(0, 8)), data.draw(st.integers(0, 8))
    _, fmt, arguments, (kind, gradient) = case
    wide = columns * 2 if KINDS[kind].gated else columns

    def view(n: int) -> Any:
        return to_device(values("wide", (rows * step, n + shift + pad), BF16), device)[::step, shift : shift + n]

    f: InputFn = ActivationGradient(kind, view(wide)) if gradient else Activated(kind)
    x = view(columns) if gradient else view(wide)
    check(device, x, fmt, f, col=True, bias=gradient, **raw(device, arguments))
    if not KINDS[kind].gated and not gradient:
        check(device, x.T, fmt, f, col=True, **raw(device, arguments))


def test_more_axes_layouts_and_random_numbers(device: Device) -> None:
    x, f = given_inputs(device, "swiglu", True, (3, 50, 64))
    check(device, x, mxfp8_e4m3, f, bias=True)
    check(device, x, nvfp4, f, axis=1)
    x, f = given_inputs(device, "gelu", True, (150, 144), content="normal")
    check(device, x, fp8_e4m3_b128, f, col=True, scale_layout="k_major128", bias=True)
    rng = Rng(7, 3, to_device(np.array(2, np.int64), device))
    for rotation in (None, "rht16"):
        check(device, x, nvfp4, f, col=True, rounding="stochastic", rng=rng, rotation=rotation, bias=True)
    check(device, x, nvfp4.replace(block=(16, 16), four_over_six="mae_256"), f, col=True, bias=True)
    check(device, x, fp8_e4m3, None, col=True, bias=F32)
    check(device, x[:, ::2], nvfp4, None, col=True, bias=True)


def test_calls_repeat_with_other_arrays(device: Device) -> None:
    """What is kept of a kind of call holds no array of an earlier one."""
    for content in ("normal", "wide", "normal"):
        x, f = given_inputs(device, "gelu", True, (64, 128), content=content)
        word = to_device(np.array(2.0 if content == "wide" else 0.5, F32), device)
        check(device, x, fp8_e4m3, f, col=True, bias=True, scale=word)
        check(device, x, nvfp4, None, col=True, amax=word)
        check(device, x, nvfp4, None, col=True, amax=(word, to_device(WORD, device)))


def test_what_does_not_fit(device: Device) -> None:
    x = to_device(values("normal", (4, 6), BF16), device)
    odd = to_device(values("normal", (4, 5), BF16), device)
    cases: tuple[tuple[type[NvfpError], str, Any, Any], ...] = (
        (ArgumentError, "input_fn as one of Activated", x, abs),
        (ArgumentError, "a kind out of gelu", x, Activated("tanh")),
        (ArgumentError, "a kind out of gelu", x, Activated([])),  # type: ignore[arg-type]
        (ShapeError, "an even last axis", odd, Activated("swiglu")),
        (ShapeError, "dy of shape", odd, ActivationGradient("gelu", x)),
        (DTypeError, "dy of bfloat16", to_device(values("normal", (4, 6)), device), ActivationGradient("gelu", x)),
        (
            DTypeError,
            "float32, bfloat16 or float16",
            to_device(values("normal", (4, 6), F64), device),
            Activated("gelu"),
        ),
        (ArgumentError, "no bias and no mean", x, Normalized("rms_norm", x[0], bias=x[0])),
    )
    for error, text, source, f in cases:
        for _ in range(2):  # also where the call is known
            with pytest.raises(error, match=text):
                quantize(source, mxfp8_e4m3, input_fn=f)
    with pytest.raises(DTypeError, match="x with bias_grad"):
        quantize(to_device(values("normal", (4, 6), F64), device), mxfp8_e4m3, bias_grad=True)
    with pytest.raises(ArgumentError, match="bias_grad as a bool or a dtype"):
        quantize(x, mxfp8_e4m3, bias_grad="float32")  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(DTypeError, match="scale as a float32 array"):
            quantize(x, fp8_e4m3, scale=to_device(np.array(1.0), device))
        quantize(x, fp8_e4m3, scale=to_device(WORD, device))
