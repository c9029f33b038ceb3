"""`nf.quant_error`: every figure against a slow count, one element at a time; and inputs that are no usual numbers."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import nvfp as nf
from nvfp.dtypes.block import dequantize_exact, quantize_exact
from nvfp.dtypes.formats import FORMATS
from nvfp.errors import ArgumentError, DTypeError, ShapeError
from nvfp.inspect import ErrorReport

E3M2_B24 = nf.QuantDType("e3m2_b24", element="float6_e3m2fn", block=24, scale="float8_e5m2")
INT4_B32 = nf.QuantDType("int4_b32", element="int4", block=32, scale="bfloat16")
ROWS = [
    *FORMATS.values(), E3M2_B24, INT4_B32,
    nf.nvfp4.replace(block=(16, 16), name="nvfp4_2d"),
    nf.nvfp4.replace(per_row_tensor_scale=True, name="nvfp4_rows"),
    nf.nvfp4.replace(four_over_six="mse_448", name="nvfp4_46"),
    nf.mxfp4.replace(scale_rule="floor", name="mxfp4_floor"),
]  # fmt: skip
by_name: dict[str, Any] = {"ids": lambda row: row.name}


def values(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-9, 5, shape))).astype(np.float32)


def counted(x: np.ndarray, y: np.ndarray, top: np.ndarray, row: Any) -> dict[str, Any]:
    """The docstring's formulas, element by element."""
    element, n = row.element, x.size
    step = element.smallest_normal if element.integer else 2.0 ** (element.emax - element.mantissa_bits)
    signal: list[float] = []
    errors: list[float] = []
    relative: list[float] = []
    found = {"saturated": 0, "flushed": 0, "nonfinite": 0, "nonfinite_input": 0}
    for a, b, t in zip(x.ravel().tolist(), y.ravel().tolist(), top.ravel().tolist(), strict=True):
        found["nonfinite"] += not math.isfinite(b)
        found["nonfinite_input"] += not math.isfinite(a)
        reach = element.max + step / 2 + (step if element.integer and a < 0 else 0)
        clipped = math.isfinite(b) and t > 0 and abs(a) > t * (reach / element.max)
        found["saturated"] += clipped
        found["flushed"] += math.isfinite(a) and a != 0 and b == 0
        if math.isfinite(a) and math.isfinite(b):
            signal.append(a * a)
            errors.append(b - a)
            if t > 0 and not clipped and abs(a) >= t * (element.smallest_normal / element.max):
                relative.append(abs(b - a) / abs(a))
    noise = math.fsum(e * e for e in errors)
    return {
        "sqnr_db": 10 * math.log10(math.fsum(signal) / noise) if noise else math.inf if errors else math.nan,
        "max_abs_error": max(map(abs, errors), default=math.nan),
        "max_rel_error": max(relative, default=None),
        "mean_error": math.fsum(errors) / len(errors) if errors else math.nan,
        "saturated": found["saturated"] / n, "flushed": found["flushed"] / n,
        "nonfinite": found["nonfinite"], "nonfinite_input": found["nonfinite_input"],
    }  # fmt: skip


def exact_values(x: np.ndarray, row: Any, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Values, and those of the largest code, by the exact codec."""
    blocks = quantize_exact(x, row, axis=axis)
    top = dataclasses.replace(blocks, codes=np.full_like(blocks.codes, row.element.max_code))
    return dequantize_exact(blocks, row, axis=axis), dequantize_exact(top, row, axis=axis)


def same(report: ErrorReport, want: dict[str, Any]) -> None:
    got = report.as_dict()
    for name, value in want.items():
        assert got[name] == (None if value is None else pytest.approx(value, rel=1e-9, abs=1e-15, nan_ok=True)), name


@pytest.mark.parametrize("row", ROWS, **by_name)
@pytest.mark.parametrize("axis", [0, 1])
def test_every_figure(device: Any, row: Any, axis: int) -> None:
    x = values((33, 50))
    x[3, 7], x[20, 2], x[1] = np.inf, np.nan, 0
    report = nf.quant_error(nf.asarray(x), row, axis=axis)
    same(report, counted(x, *exact_values(x, row, axis), row))
    q = nf.quantize(nf.asarray(x), row, axis=axis)
    assert (report.dtype, report.axis, report.shape, report.bits) == (row, axis, x.shape, row.element.bits)
    assert report.bytes_per_value == q.nbytes / x.size and report.bits_per_value == 8 * report.bytes_per_value
    assert nf.quant_error(x, q) == report == nf.quant_error(nf.asarray(x), q, axis=axis)


@settings(max_examples=25)
@given(
    row=st.sampled_from(ROWS), shape=st.tuples(st.integers(1, 20), st.integers(1, 60)), seed=st.integers(0, 99),
    dtype=st.sampled_from(["float32", "bfloat16", "float16", "float64"]), transposed=st.booleans(),
)  # fmt: skip
def test_any_shape_dtype_and_order(row: Any, shape: tuple[int, int], seed: int, dtype: str, transposed: bool) -> None:
    x = nf.asarray(values(shape, seed)).astype(dtype)
    q = nf.quantize(x, row)
    want = counted(np.asarray(x, np.float64), *exact_values(np.asarray(x), row, 1), row)
    same(nf.quant_error(x.T, q.T) if transposed else nf.quant_error(x, row), want)


def test_saturated_is_what_overflows(device: Any) -> None:
    """With scales that clip, as many elements as `overflow="nonsat"` makes NaN or inf."""
    x = nf.asarray(values((40, 64)) * 40)
    for row in (nf.fp8_e4m3, nf.fp8_e5m2):
        for scale in (1e-4, 0.3, 1.0):
            lost = nf.quantize(x, row, scale=scale, overflow="nonsat")
            count = np.count_nonzero(~np.isfinite(np.asarray(lost)))
            report = nf.quant_error(x, row, scale=scale)
            assert report.saturated == count / x.size and report.nonfinite == 0
            unsaturated = nf.quant_error(x, row, scale=scale, overflow="nonsat")
            assert (unsaturated.nonfinite, unsaturated.saturated) == (count, 0)
    assert nf.quant_error(x, nf.fp8_e4m3, scale=1e-4).saturated > 0.5


def test_clipping_of_the_floor_rule_and_of_integers() -> None:
    """e2m1 clips beyond 7, half a step above 6; integers have one negative code more."""
    x = nf.asarray(np.float32([[7.0, 6.9, 7.1, -7.1, 4.0, 0.0, 0.1, -0.2]]))
    report = nf.quant_error(x, nf.mxfp4.replace(scale_rule="floor"))
    assert (report.saturated, report.flushed) == (2 / 8, 2 / 8)
    assert nf.quant_error(x, nf.mxfp4).saturated == 0
    step = np.float32(2.0**-6)
    x = nf.asarray(step * np.float32([[127, -127.4, 127.4, 127.6, -127.6]]))
    assert nf.quant_error(x, nf.mxint8).saturated == 1 / 5
    assert nf.quant_error(nf.asarray([np.inf, 1.0]), nf.fp8_e4m3).saturated == 0.5


def test_nan_blocks_count_as_not_finite_only() -> None:
    x = values((2, 64))
    spoiled = x.copy()
    spoiled[0, 5] = np.nan
    report, rest = nf.quant_error(spoiled, nf.mxfp8), nf.quant_error(np.delete(x, np.s_[:32]), nf.mxfp8)
    assert (report.nonfinite, report.nonfinite_input, rest.nonfinite) == (32, 1, 0)
    assert report.sqnr_db == pytest.approx(rest.sqnr_db) and report.max_abs_error == rest.max_abs_error


@pytest.mark.parametrize("x", [np.full((4, 32), np.nan, np.float32), np.full((2, 64), -np.inf, np.float32)])
@pytest.mark.parametrize("row", [nf.nvfp4, nf.mxfp8])
def test_without_a_finite_pair_the_errors_are_unknown(device: Any, x: np.ndarray, row: Any) -> None:
    """A format that made everything NaN has no error of 0; neither has one whose blocks are NaN by their own doing."""
    report = nf.quant_error(x, row)
    assert (report.nonfinite, report.nonfinite_input, report.max_rel_error) == (128, 128, None)
    assert all(math.isnan(value) for value in (report.sqnr_db, report.max_abs_error, report.mean_error))
    large = nf.quant_error(np.full((1, 32), 4e4, np.float32), nf.fp8_e4m3, scale=1.0, overflow="nonsat")
    assert (large.nonfinite, large.nonfinite_input) == (32, 0) and math.isnan(large.sqnr_db)
    assert repr(large).startswith("ErrorReport(fp8_e4m3: SQNR nan dB; largest error nan, relative none; mean nan")


@pytest.mark.parametrize("row", ROWS, **by_name)
def test_empty_zeros_and_exact_values(device: Any, row: Any) -> None:
    empty = nf.quant_error(nf.zeros((0, 32)), row)
    assert (empty.sqnr_db, empty.saturated, empty.bytes_per_value) == (math.inf, 0.0, row.bits_per_value / 8)
    zeros = nf.quant_error(nf.zeros((3, 48)), row)
    assert (zeros.sqnr_db, zeros.max_abs_error, zeros.flushed, zeros.max_rel_error) == (math.inf, 0.0, 0.0, None)
    assert nf.quant_error(nf.zeros((2, 0)), row).shape == (2, 0)


@pytest.mark.parametrize("size", [1e-300, 1e-40, 1e30])
def test_sums_neither_overflow_nor_vanish(size: float) -> None:
    """Squares of these are beyond float64, or below it."""
    x = np.array([[1.0, -0.7, 0.3, 0.9]]) * size
    report = nf.quant_error(x, nf.mxfp8)
    y = np.asarray(nf.quantize(nf.asarray(x), nf.mxfp8), np.float64) / size
    want = 10 * np.log10(np.sum((x / size) ** 2) / np.sum((y - x / size) ** 2))
    assert report.sqnr_db == pytest.approx(want, rel=1e-9, abs=1e-12)
    clipped = nf.quant_error(np.full(4, 1e300), nf.fp8_e4m3, scale=1.0)
    assert (clipped.saturated, clipped.nonfinite) == (1.0, 0) and abs(clipped.sqnr_db) < 1e-9


def test_normal_numbers_are_within_half_a_step() -> None:
    for row in ROWS:
        if row.element.integer or row.scale_family == "two_level":
            continue  # two-level scales are rounded, so a block's largest number may be clipped a little
        u = 2.0 ** -(row.element.mantissa_bits + 1)
        found = nf.quant_error(values((64, 128)), row).max_rel_error
        assert found is not None and u / 2 < found <= u / (1 + u) * (1 + 1e-6), row


def test_sources_of_other_kinds(device: Any) -> None:
    x = values((4, 64))
    want = nf.quant_error(nf.asarray(x), "nvfp4")
    assert nf.quant_error(x, nf.nvfp4) == want == nf.quant_error(x.tolist(), nf.nvfp4)
    variable = nf.asarray(x, requires_grad=True)
    assert nf.quant_error(variable, nf.nvfp4) == want and variable.grad is None
    narrow = nf.asarray(x).astype(nf.float8_e4m3fn)
    assert nf.quant_error(narrow, nf.fp8_e4m3, scale=1.0).sqnr_db == math.inf
    q = nf.asarray(x).astype(nf.mxfp8)
    assert nf.quant_error(q, nf.mxfp8).sqnr_db == math.inf and nf.quant_error(q, nf.mxfp4).sqnr_db < 25
    assert nf.quant_error(nf.asarray(3.0), nf.fp8_e4m3).shape == ()


def test_options_reach_quantize() -> None:
    x = nf.asarray(values((8, 256)))
    assert nf.quant_error(x, nf.mxfp8, convention="ocp").saturated > 0 == nf.quant_error(x, nf.mxfp8).saturated
    cut = nf.quant_error(nf.abs(x), nf.mxfp8, rounding="toward_zero")
    assert cut.mean_error < 0 and cut.sqnr_db < nf.quant_error(nf.abs(x), nf.mxfp8).sqnr_db - 4
    random = [nf.quant_error(x, nf.nvfp4, rounding="stochastic", rng=nf.random.default_rng(s)) for s in (0, 0, 1)]
    assert random[0] == random[1] != random[2]
    assert nf.quant_error(x, nf.nvfp4, tensor_scale=1e3).flushed > nf.quant_error(x, nf.nvfp4).flushed


def test_refusals() -> None:
    x = nf.asarray(values((4, 32)))
    q = x.astype(nf.mxfp8)
    with pytest.raises(ShapeError, match=r"\[quant_error\] expected a quantized array of shape \(2, 32\)"):
        nf.quant_error(x[:2], q)
    with pytest.raises(ArgumentError, match="no options beside a quantized array, got axis, overflow"):
        nf.quant_error(x, q, axis=0, overflow="nonsat")
    with pytest.raises(DTypeError, match="a quantized dtype or array, got bfloat16"):
        nf.quant_error(x, nf.bfloat16)
    with pytest.raises(DTypeError, match="a floating array, got int64"):
        nf.quant_error([1, 2], nf.mxfp8)
    with pytest.raises(DTypeError, match="a floating array, got complex64"):
        nf.quant_error(np.zeros(2, np.complex64), nf.mxfp8)


def test_record() -> None:
    report = nf.quant_error(nf.asarray([[0.01, -1.0, 2.9, 6.0]]), nf.mxfp4)
    assert json.loads(json.dumps(report.as_dict()))["dtype"] == "mxfp4"
    assert report.as_dict()["shape"] == [1, 4] and hash(report) is not None
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.bits = 5  # type: ignore[misc]
    assert "largest error 0, relative none" in repr(nf.quant_error(nf.zeros((4,)), nf.mxfp4))
