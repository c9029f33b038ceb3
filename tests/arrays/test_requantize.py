"""`requantize`: the bits of quantizing the values again, codes that stay where nothing changes, gradients, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, ShapeError
from tests.arrays.test_from_parts import ROWS, parts, values


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_another_axis(device: Any, row: Any) -> None:
    q = nf.quantize(nf.asarray(values((17, 33))), row)
    got = q.requantize(axis=0)
    assert (got.dtype, got.axis, got.shape) == (row, 0, q.shape)
    if row.square:  # the same blocks: nothing is lost
        np.testing.assert_array_equal(np.asarray(got), np.asarray(q))
        assert np.asarray(got.scale).tobytes() == np.asarray(q.scale).tobytes()
        assert parts(got) == parts(q.T.requantize(axis=1).T) and parts(got.requantize(axis=1)) == parts(q)
    else:
        assert parts(got) == parts(nf.quantize(nf.asarray(np.asarray(q)), row, axis=0))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_nothing_changes(device: Any, row: Any) -> None:
    q = nf.quantize(nf.asarray(values((17, 33))), row, axis=0)
    for got in (q.requantize(), nf.requantize(q, row, axis=-2), nf.requantize(q, axis=0, rounding="toward_zero")):
        assert parts(got) == parts(q) and got.axis == q.axis and got is not q
        assert not np.shares_memory(np.asarray(got.codes), np.asarray(q.codes))
    assert parts(q.mT.requantize()) == parts(q.mT)


def test_axes_before_the_last_two() -> None:
    for row in (nf.fp8_e4m3, nf.QuantDType("fp4", element="float4_e2m1fn", block=None, scale="float32")):
        q = nf.quantize(nf.asarray(values((3, 5, 7))), row, axis=2)
        for axis in (0, 1):
            got = q.requantize(axis=axis)
            assert got.axis == axis and parts(got) == parts(nf.quantize(nf.asarray(values((3, 5, 7))), row, axis=axis))
    q = nf.quantize(nf.asarray(values((3, 5, 7))), nf.mxfp8, axis=2)
    assert parts(q.requantize(axis=0)) == parts(nf.quantize(nf.asarray(np.asarray(q)), nf.mxfp8, axis=0))


@pytest.mark.parametrize("row", [row for row in ROWS if row is not nf.mxfp8], ids=str)
def test_another_dtype_and_options(device: Any, row: Any) -> None:
    q = nf.quantize(nf.asarray(values((6, 64))), nf.mxfp8, axis=0)
    dense = nf.asarray(np.asarray(q))
    assert parts(q.requantize(row)) == parts(nf.quantize(dense, row, axis=0)) == parts(q.astype(row))
    options: list[dict[str, Any]] = [{}, {"overflow": "nonsat"}]
    if not row.leveled:  # 4-over-6 and one A per row are rounded to even only
        options += [{"rounding": "toward_zero"}, {"rounding": "stochastic"}]
    for given in options:
        rng = [nf.random.default_rng(3) if given.get("rounding") == "stochastic" else None for _ in range(2)]
        got = q.requantize(row, axis=1, rng=rng[0], **given)
        assert parts(got) == parts(nf.quantize(dense, row, axis=1, rng=rng[1], **given)), given


def test_scales_and_conventions_quantize_again() -> None:
    q = nf.asarray(values((4, 64))).astype(nf.mxfp8)
    dense = q.astype(nf.float32)
    assert parts(nf.requantize(q, convention="ocp")) == parts(nf.quantize(dense, nf.mxfp8, convention="ocp"))
    assert parts(q.requantize("nvfp4", tensor_scale=1.0)) == parts(nf.quantize(dense, nf.nvfp4, tensor_scale=1.0))
    assert parts(q.requantize(nf.fp8_e4m3, scale=0.5)) == parts(nf.quantize(dense, nf.fp8_e4m3, scale=0.5))


def test_a_nan_block_spreads_along_the_new_axis() -> None:
    x = values((64, 64))
    x[3, 7] = np.nan
    got = np.isnan(np.asarray(nf.asarray(x).astype(nf.mxfp8).requantize(axis=0)))
    assert got[:32, :32].all() and got.sum() == 32 * 32


@pytest.mark.parametrize(("dtype", "axis"), [(None, None), (None, 0), ("fp8_e4m3", 0), ("nvfp4", None)])
def test_the_gradient_passes_straight_through(device: Any, dtype: str | None, axis: int | None) -> None:
    x = nf.asarray(values((4, 64)), requires_grad=True)
    weight = values((4, 64), seed=1)
    q: Any = x.astype(nf.mxfp8)
    (q.requantize(dtype, axis=axis) * nf.asarray(weight)).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(np.asarray(x.grad), weight)


def test_refusals() -> None:
    x = nf.asarray(values((4, 64)))
    q = x.astype(nf.mxfp8)
    with pytest.raises(DTypeError, match=r"\[requantize\] expected a quantized array, got Array; use nf.quantize"):
        nf.requantize(x, nf.mxfp8)  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match=r"\[requantize\] expected a quantized dtype, got bfloat16; use q.astype"):
        q.requantize(nf.bfloat16)
    for axis in (2, -3):
        with pytest.raises(ShapeError, match="an axis of 2 dimensions"):
            q.requantize(axis=axis)
    with pytest.raises(DTypeError, match="axis in whole numbers"):
        q.requantize(axis=1.0)  # type: ignore[arg-type]
    square = nf.quantize(nf.asarray(values((2, 32, 32))), nf.nvfp4.replace(block=(16, 16)))
    with pytest.raises(ShapeError, match="one of the last two axes"):
        square.requantize(axis=0)
    with pytest.raises(ArgumentError, match="scale"):
        q.requantize(scale=1.0)


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("dtype", [None, "nvfp4"])
def test_options_are_checked_where_codes_stay_too(dtype: str | None, axis: int | None) -> None:
    q = nf.quantize(nf.asarray(values((4, 64))), nf.mxfp8)
    wrong: dict[str, tuple[dict[str, Any], type[Exception]]] = {
        "rounding out of": ({"rounding": "bogus"}, ArgumentError),
        "overflow out of": ({"overflow": "x"}, ArgumentError),
        "rounding='stochastic' with rng": ({"rng": nf.random.default_rng(0)}, ArgumentError),
        "with rng": ({"rng": 5}, ArgumentError),
        "rng=a Generator": ({"rng": 5, "rounding": "stochastic"}, DTypeError),
    }
    for text, (given, error) in wrong.items():
        with pytest.raises(error, match=text):
            q.requantize(dtype, axis=axis, **given)


def test_stochastic_rounding_of_codes_that_stay_takes_no_draw() -> None:
    rng, q = nf.random.default_rng(1), nf.quantize(nf.asarray(values((4, 64))), nf.mxfp8)
    assert parts(q.requantize(rounding="stochastic", rng=rng)) == parts(q)
    assert rng.random((), device="cpu").item() == nf.random.default_rng(1).random((), device="cpu").item()
