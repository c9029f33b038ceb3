"""Rounding by random numbers in the CUDA kernels, run on the CPU (see `emulator`) against the exact twin."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes import elements as el
from nvfp.dtypes.block import quantize_exact
from nvfp.dtypes.conventions import PLAIN
from nvfp.dtypes.formats import QuantDType, fp8_e4m3, fp8_e4m3_b128, mxfp8_e5m2, nvfp4
from nvfp.dtypes.rotation import rotate_exact
from nvfp.dtypes.stochastic import COL_LANE, ROW_LANE, encode_random
from nvfp.kernels.bias_grad import bias_grad
from nvfp.kernels.cuda import quantize
from nvfp.kernels.cuda._loader import INCLUDE
from nvfp.kernels.cuda._quantize_plan import quantize_defines
from nvfp.kernels.operand import OperandPair
from tests.kernels.cuda import emulator
from tests.kernels.quantized import BF16, F32, check_operand, nvfp4_2d, same_bits, values
from tests.kernels.test_quantize_stochastic import check_both, numbers, rng_on

NONE = (None, None)
MXINT8 = QuantDType("mxint8_", "int8", 32, "float8_e8m0fnu")


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.install(monkeypatch)


def run(x: np.ndarray, fmt: QuantDType, **options: Any) -> OperandPair:
    arguments = {
        "row": True, "col": True, "scale": None, "amax": NONE, "tensor_scale": NONE, "amax_out": NONE,
        "amax_epsilon": 0.0, "rounding": "stochastic", "rng": rng_on(Device("cpu")), "overflow": "saturate",
        "scale_layout": "plain", "steps": PLAIN, "axis": x.ndim - 1,
        **options,
    }  # fmt: skip
    if "bias" not in options:
        return OperandPair(*quantize.quantize(x, fmt, **arguments))
    row, col, sums = quantize.quantize_input(x, fmt, None, **arguments)
    return OperandPair(row, col, bias_grad=sums)


@pytest.mark.parametrize("fmt", [nvfp4, mxfp8_e5m2, nvfp4_2d, fp8_e4m3], ids=lambda fmt: fmt.name)
def test_tiles(fmt: QuantDType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that start a group of random numbers, and rows that do not; the generic kernel gives the same."""
    for kind, shape in (("wide", (70, 200)), ("nonfinite", (64, 128)), ("normal", (67, 75))):
        x = values(kind, shape, BF16)
        check_both(x, fmt, run(x, fmt))
    check_both(x.T, fmt, run(x.T, fmt))
    monkeypatch.setattr(quantize, "_tile_call", lambda job, where: None)
    check_both(x, fmt, run(x, fmt))


def test_rotated_columns() -> None:
    """Both copies in one pass, whole tiles and ragged ones; maxima that are not given are taken in one pass too."""
    for kind, shape in (("nonfinite", (128, 128)), ("wide", (133, 200))):
        x = values(kind, shape, BF16)
        turned = rotate_exact(x, 0)
        seen = (np.zeros((), F32), np.zeros((), F32))
        pair = run(x, nvfp4, rotation="rht16", amax_out=seen)
        for side, source, axis, lane in ((pair.row, x, 1, ROW_LANE), (pair.col, turned, 0, COL_LANE)):
            assert side is not None
            assert side.rotation == ("none" if axis else "rht16")
            random = numbers(source.shape, nvfp4, lane)
            exact = quantize_exact(source, nvfp4, axis=axis, rounding="stochastic", random=random)
            check_operand(side, exact, nvfp4, axis, swap=axis == 0)
            magnitudes = np.abs(source.astype(F32))
            assert seen[lane] == magnitudes[np.isfinite(magnitudes)].max()


def test_column_sums_of_rotated_columns() -> None:
    """The pass that makes both copies adds up the columns of what it reads; codes and scales stay as they are."""
    x = values("wide", (133, 144), BF16)
    plain, summed = run(x, nvfp4, rotation="rht16"), run(x, nvfp4, rotation="rht16", bias=np.dtype(F32))
    for a, b in zip((plain.row, plain.col), (summed.row, summed.col), strict=True):
        assert a is not None and b is not None and same_bits(a.codes, b.codes) and same_bits(a.scale, b.scale)
    assert same_bits(summed.bias_grad, bias_grad(x, dtype=np.dtype(F32)))


def test_sums_next_to_the_grid() -> None:
    """E2M1 in pairs, for all numbers r: products one float32 away from where a + r steps / 256 meets the grid."""
    text = (
        '#include "stochastic.cuh"\nextern "C" void codes(const float* x, unsigned char* y, long n) {'
        " for (long i = 0; i < n; ++i) for (unsigned r = 0; r < 256; ++r)"
        " y[256 * i + r] = e2m1_random2(x[i], 0.0f, r) >> 9; }"
    )
    macros = quantize_defines(BF16, nvfp4, True, "stochastic")
    library = emulator.build(text, [INCLUDE / f"{name}.cuh" for name in ("stochastic", "encode")], macros)
    grid = np.concatenate([np.arange(513) / 512, np.arange(256, 513) / 256, np.arange(256, 513) / 128])
    near = grid.astype(F32).view(np.int32)[:, None] + np.array([-2, -1, 0, 1])
    tiny = np.exp2(np.linspace(-140, 3, 500)).astype(F32)
    x = np.concatenate([np.maximum(near, 0).astype(np.uint32).view(F32).ravel(), tiny, F32.type([1e30, np.inf])])
    got = np.empty((x.size, 256), np.uint8)
    library.codes(x.ctypes.data_as(ctypes.c_void_p), got.ctypes.data_as(ctypes.c_void_p), ctypes.c_long(x.size))
    r = np.broadcast_to(np.arange(256, dtype=np.uint8), got.shape)
    assert np.array_equal(got, encode_random(np.broadcast_to(x[:, None], got.shape), el.float4_e2m1fn, r))


@pytest.mark.parametrize("fmt", [fp8_e4m3_b128, MXINT8], ids=lambda fmt: fmt.name)
def test_other_formats(fmt: QuantDType) -> None:
    x = values("nonfinite", (40, 130), F32)
    check_both(x, fmt, run(x, fmt))
    cube = values("normal", (3, 40, 5), BF16)
    side = run(cube, fmt, axis=1, col=False).row
    assert side is not None
    random = numbers(cube.shape, fmt, 0)
    check_operand(side, quantize_exact(cube, fmt, axis=1, rounding="stochastic", random=random), fmt, 1)


@pytest.mark.parametrize("fmt", [nvfp4, fp8_e4m3], ids=lambda fmt: fmt.name)
def test_toward_zero(fmt: QuantDType) -> None:
    x = values("nonfinite", (64, 70), BF16)
    pair = run(x, fmt, rounding="toward_zero", rng=None)
    for side, axis in ((pair.row, 1), (pair.col, 0)):
        assert side is not None
        check_operand(side, quantize_exact(x, fmt, axis=axis, rounding="toward_zero"), fmt, axis, swap=axis == 0)
