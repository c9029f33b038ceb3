"""Formats that users make from data: the same calls as for nvfp's own rows, with no change to the library."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import nvfp as nf
from nvfp.dtypes.block import dequantize_exact, quantize_exact
from nvfp.dtypes.codec import decode
from nvfp.errors import DTypeError, ShapeError

E3M2_B24 = nf.QuantDType("e3m2_b24", element="float6_e3m2fn", block=24, scale="float8_e5m2")
INT4_B32 = nf.QuantDType("int4_b32", element="int4", block=32, scale="bfloat16")
USERS = [
    E3M2_B24,
    INT4_B32,
    INT4_B32.replace(block=(16, 8), name="int4_2d"),
    nf.QuantDType("int4_fp16", element="int4", block=7, scale="float16", tensor_scale=True),
    nf.QuantDType("int8_bf16", element="int8", block=128, scale=ml_dtypes.bfloat16, nonfinite="saturate"),
    nf.QuantDType("e2m3_tensor", element="float6_e2m3fn", block=None, scale="bfloat16"),
    nf.mxfp4.replace(block=5, scale_rule="even", name="mxfp4_5"),
]
by_name: dict[str, Any] = {"ids": lambda row: row.name}
kinds = pytest.mark.parametrize("fmt", USERS, **by_name)


def values(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-4, 5, shape))).astype(np.float32)


@kinds
def test_quantize_and_dequantize(device: Any, fmt: Any) -> None:
    x = values((50, 77))
    for axis in (0, 1):
        q, exact = nf.quantize(nf.asarray(x), fmt, axis=axis), quantize_exact(x, fmt, axis=axis)
        assert (q.dtype, q.axis, q.shape) == (fmt, axis, (50, 77))
        np.testing.assert_array_equal(np.asarray(q), dequantize_exact(exact, fmt, axis=axis))
        scale = exact.scale if fmt.scale_family == "float32" else decode(exact.scale, fmt.scale).astype(np.float32)
        assert q.scale.dtype == fmt.scale.dtype
        np.testing.assert_array_equal(np.asarray(q.scale.astype(nf.float32)), scale)
        again = nf.QuantizedArray.from_parts(
            q.codes, q.scale, fmt, axis=axis, tensor_scale=q.tensor_scale, shape=q.shape
        )
        np.testing.assert_array_equal(np.asarray(again), np.asarray(q))
        raw = nf.asarray(np.asarray(q.scale).view(fmt.scale.storage), device=q.device)  # codes of the scale format
        again = nf.QuantizedArray.from_parts(q.codes, raw, fmt, axis=axis, tensor_scale=q.tensor_scale, shape=q.shape)
        np.testing.assert_array_equal(np.asarray(again), np.asarray(q))


@kinds
def test_matmul(device: Any, fmt: Any) -> None:
    x, w = values((6, 90)), values((11, 90), seed=1)
    a, b = nf.quantize(nf.asarray(x), fmt), nf.quantize(nf.asarray(w), fmt)
    want = np.asarray(a).astype(np.float64) @ np.asarray(b).astype(np.float64).T
    for got in (
        nf.matmul(a, b.T),
        nf.matmul(a, nf.asarray(np.asarray(b)).T),
        nf.matmul(nf.asarray(np.asarray(a)), b.T),
    ):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@kinds
def test_finfo_files_and_pickles(device: Any, fmt: Any, tmp_path: Path) -> None:
    found = nf.finfo(fmt)
    assert (found.max, found.bits, found.block) == (fmt.element.max, fmt.element.bits, fmt.block)
    assert nf.isdtype(fmt, "quantized")
    q = nf.quantize(nf.asarray(values((48, 40))), fmt)
    nf.save(tmp_path / "q.safetensors", {"q": q})
    for back in (nf.load(tmp_path / "q.safetensors")["q"], pickle.loads(pickle.dumps(q))):
        assert back.dtype == fmt
        np.testing.assert_array_equal(np.asarray(back), np.asarray(q))
        assert np.asarray(back.codes).tobytes() == np.asarray(q.codes).tobytes()


def test_finfo_of_user_formats() -> None:
    limits = [
        (E3M2_B24, (28.0, -28.0, 0.25, 0.0625, 0.25), 8 + 8 / 24, 28.0 * 57344),
        (INT4_B32, (7.0, -8.0, 1.0, 1.0, 1.0), 4.5, 7.0 * float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)),
        (nf.nvfp4.replace(block=(16, 16)), (6.0, -6.0, 1.0, 0.5, 0.5), 4 + 8 / 256, 2688.0),
        (nf.nvfp4.replace(per_row_tensor_scale=True), (6.0, -6.0, 1.0, 0.5, 0.5), 4.5, 2688.0),
        (nf.nvfp4.replace(four_over_six="mae_256"), (6.0, -6.0, 1.0, 0.5, 0.5), 4.5, 1536.0),
        (nf.nvfp4.replace(four_over_six="mse_448"), (6.0, -6.0, 1.0, 0.5, 0.5), 4.5, 2688.0),
        (nf.mxint8, (127 / 64, -2.0, 1 / 64, 1 / 64, 1 / 64), 8.25, 127 / 64 * 2.0**127),
    ]
    for fmt, (largest, least, normal, subnormal, eps), bits, scaled in limits:
        found = nf.finfo(fmt)
        got = (found.max, found.min, found.smallest_normal, found.smallest_subnormal, found.eps)
        assert got == (largest, least, normal, subnormal, eps), fmt
        assert (found.bits_per_value, found.scaled_max, found.bits) == (bits, scaled, fmt.element.bits)
        assert found.scale.max == fmt.scale.max and found.dtype == fmt.element.dtype
        assert nf.isdtype(fmt, fmt) and nf.isdtype(fmt, ("numeric", "quantized")) and not nf.isdtype(fmt, "numeric")
    assert not nf.isdtype(E3M2_B24, nf.nvfp4)


def test_int4_is_twos_complement_two_per_byte(device: Any) -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = 7, -7, 1, -1, 3.5, -8
    q = nf.quantize(nf.asarray(x), INT4_B32.replace(nonfinite="saturate", name="w4"))
    assert np.asarray(q.codes).shape == (1, 16)
    scale = float(np.asarray(q.scale.astype(nf.float32))[0, 0])
    assert scale == float(ml_dtypes.bfloat16(8 / 7))
    codes = np.asarray(q.codes)[0, :3].tolist()
    assert [(c & 15, c >> 4) for c in codes] == [(6, 16 - 6), (1, 16 - 1), (3, 16 - 7)]
    np.testing.assert_array_equal(np.asarray(q)[0, :6], np.float32(scale) * np.float32([6, -6, 1, -1, 3, -7]))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_format(data: st.DataObject) -> None:
    """Elements, blocks and scales in any combination: the exact twin's values."""
    element = data.draw(
        st.sampled_from(["int4", "int8", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e5m2"])
    )
    scale = data.draw(st.sampled_from(["float8_e8m0fnu", "float8_e5m2", "float16", "bfloat16", "float32"]))
    block = data.draw(st.integers(1, 40) | st.tuples(st.integers(1, 9), st.integers(1, 9)))
    rule = data.draw(st.sampled_from(["ceil", "floor", "even"])) if scale == "float8_e8m0fnu" else "ceil"
    fmt = nf.QuantDType(element=element, block=block, scale=scale, scale_rule=rule)  # type: ignore[arg-type]
    shape = data.draw(st.tuples(st.integers(1, 12), st.integers(1, 45)))
    x, axis = values(shape, seed=data.draw(st.integers(0, 9))), data.draw(st.sampled_from([0, 1]))
    q = nf.quantize(nf.asarray(x, device="cpu"), fmt, axis=axis)
    np.testing.assert_array_equal(np.asarray(q), dequantize_exact(quantize_exact(x, fmt, axis=axis), fmt, axis=axis))


def test_conventions_by_name(device: Any) -> None:
    x = nf.asarray(np.float32([[3.75, 1.0, -0.0, 2.0]]))
    q = nf.quantize(x, nf.mxfp8, convention="ocp")
    assert q.dtype == nf.mxfp8 and np.asarray(q)[0, 0] == 3.5
    assert np.asarray(nf.fake_quant(x, nf.mxfp8, convention="ocp"))[0, 0] == 3.5
    with pytest.raises(ValueError, match="mlx"):
        nf.quantize(x, nf.nvfp4, convention="mlx")


def test_overflow_and_rounding(device: Any) -> None:
    x = nf.asarray(np.float32([465.0, 1e6, 4.75, -0.7]))
    assert np.asarray(x.astype(nf.float8_e4m3fn, overflow="nonsat").astype(nf.float32)).tolist()[2] == 5.0
    assert np.isnan(np.asarray(x.astype(nf.float8_e4m3fn, overflow="nonsat").astype(nf.float32))[:2]).all()
    cut = x.astype(nf.float8_e4m3fn, rounding="toward_zero").astype(nf.float32)
    assert np.asarray(cut).tolist() == [448.0, 448.0, 4.5, -0.6875]
    q = nf.quantize(x, nf.fp8_e4m3, scale=1.0, rounding="toward_zero")
    assert np.asarray(q).tolist() == [448.0, 448.0, 4.5, -0.6875]
    assert np.isnan(np.asarray(nf.quantize(x, nf.fp8_e4m3, scale=1.0, overflow="nonsat"))[:2]).all()
    assert np.asarray(nf.fake_quant(x, nf.fp8_e4m3, scale=1.0, rounding="toward_zero")).tolist()[2] == 4.5
    bf16 = nf.asarray([-1.0, np.nan], dtype=nf.bfloat16)
    beyond = (1e300, 1e-300, np.float64(1e300), nf.asarray(np.float64(1e300)))  # inf or 0 in float32
    for factor in (-1.0, np.nan, np.inf, nf.asarray(-1.0), nf.asarray(np.nan), *bf16, np.asarray(bf16)[0], *beyond):
        if x.device.type == "cpu" or not isinstance(factor, nf.Array):  # reading a word on CUDA would wait
            with pytest.raises(ValueError, match="scale positive and finite"):
                nf.quantize(x, nf.fp8_e4m3, scale=factor)
            with pytest.raises(ValueError, match="tensor_scale positive and finite"):
                nf.fake_quant(x, nf.nvfp4, tensor_scale=factor)
    for factor in (False, 1j, nf.asarray(2.0).astype(nf.fp8_e4m3)):
        with pytest.raises(DTypeError, match="scale as a real number"):
            nf.quantize(x, nf.fp8_e4m3, scale=factor)
    assert nf.quantize(x, nf.fp8_e4m3, scale=nf.asarray(2.0, dtype=nf.bfloat16)).scale.item() == 2
    zeros = nf.zeros((16,)).astype(nf.nvfp4)
    assert np.asarray(nf.quantize(x, nf.nvfp4, tensor_scale=zeros.tensor_scale)).tolist() == [0.0] * 4
    with pytest.raises(ValueError, match="narrow dtype for rounding"):
        x.astype(nf.bfloat16, rounding="toward_zero")


def test_errors_are_short_and_name_the_cause() -> None:
    x = nf.asarray(np.zeros((40, 64), np.float32))
    with pytest.raises(DTypeError, match="got an instance of Array; pass one of these") as found:
        nf.quantize(x, x)
    assert len(str(found.value)) < 500
    with pytest.raises(ShapeError, match=r"\[quantize\] expected an array with axes for axis -1, got shape \(\)"):
        nf.asarray(3.0).astype(nf.mxfp8)
