"""The tiles of 128 x 128 that write both copies, run on the CPU (see `emulator`): whole and ragged, a few rows.

Every row and dtype goes through them in `tests/kernels/test_quantize.py` where there is a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvfp.dtypes.block import quantize_exact
from nvfp.dtypes.conventions import PLAIN
from nvfp.dtypes.formats import QuantDType, fp8_e4m3, mxfp8_e4m3, nvfp4
from nvfp.dtypes.scale_layout import to_k_major128, to_tiles128x4
from nvfp.kernels.cuda import quantize
from nvfp.kernels.operand import Operand
from tests.kernels.cuda import emulator
from tests.kernels.quantized import BF16, F32, check_operand, same_bits, values

F16 = np.dtype(np.float16)
NONE = (None, None)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.install(monkeypatch)


def run(x: np.ndarray, fmt: QuantDType, **options: Any) -> tuple[Operand | None, Operand | None]:
    arguments = {
        "axis": 1, "row": True, "col": True, "scale": None, "amax": NONE, "tensor_scale": NONE, "amax_out": NONE,
        "amax_epsilon": 0.0, "rounding": "even", "rng": None, "overflow": "saturate", "scale_layout": "plain",
        "steps": PLAIN, **options,
    }  # fmt: skip
    return quantize.quantize(x, fmt, **arguments)


def check(x: np.ndarray, fmt: QuantDType, *sides: Operand | None, **options: Any) -> None:
    for side, axis in zip(sides, (1, 0), strict=False):
        if side is not None:
            check_operand(side, quantize_exact(x, fmt, axis=axis, **options), fmt, axis, swap=axis == 0)


@pytest.mark.parametrize(
    ("fmt", "dtype"),
    [
        (fp8_e4m3, F32), (mxfp8_e4m3, BF16), (mxfp8_e4m3.replace(nonfinite="saturate"), F16), (nvfp4, BF16),
        (fp8_e4m3.replace(block=32), BF16), (nvfp4.replace(block=(16, 16)), BF16),
        (fp8_e4m3.replace(block=(64, 64)), F16),
    ],
    ids=str,
)  # fmt: skip
def test_whole_and_ragged_tiles(fmt: QuantDType, dtype: Any) -> None:
    for kind, shape in (("nonfinite", (128, 128)), ("wide", (150, 270))):
        x = values(kind, shape, dtype)
        check(x, fmt, *run(x, fmt))


def test_two_words_and_saturated_scales_in_a_whole_tile() -> None:
    x = values("normal", (128, 128), BF16)
    words = (np.array(0.03, F32), np.array(500.0, F32))
    row, col = run(x, nvfp4, amax=words)
    check(x, nvfp4, row, amax=words[0])
    check(x, nvfp4, None, col, amax=words[1])
    check(x, nvfp4, None, run(x, nvfp4, row=False, tensor_scale=(None, words[0]))[1], tensor_scale=words[0])


@pytest.mark.parametrize("fmt", (mxfp8_e4m3, nvfp4), ids=str)
def test_tiles_of_scales(fmt: QuantDType) -> None:
    for shape in ((128, 128), (150, 280)):
        x = values("normal", shape, BF16)
        for want, got in zip(run(x, fmt), run(x, fmt, scale_layout="tiles128x4"), strict=True):
            assert want is not None
            assert got is not None
            assert same_bits(got.scale, to_tiles128x4(want.scale))
            assert same_bits(got.codes, want.codes)


def test_scales_along_k() -> None:
    fmt, x = fp8_e4m3.replace(block=32), values("normal", (129, 256), BF16)
    for want, got in zip(run(x, fmt), run(x, fmt, scale_layout="k_major128"), strict=True):
        assert want is not None
        assert got is not None
        assert same_bits(got.scale, to_k_major128(want.scale))


def test_a_nan_does_not_hide_the_amax_of_delayed_scaling() -> None:
    x = values("normal", (128, 130), BF16)
    x[5, 7], x[127, 129] = np.nan, 1e4
    seen = np.array(0.0, F32)
    check(x, fp8_e4m3, *run(x, fp8_e4m3, scale=np.array(2.0, F32), amax_out=(seen, None)), scale=np.float32(2))
    assert seen == x[127, 129]
