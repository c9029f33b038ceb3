"""Rounding by random numbers in the CUDA kernels, run on the CPU (see `emulator`) against the exact twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.block import quantize_exact
from nvfp.dtypes.conventions import PLAIN
from nvfp.dtypes.formats import QuantDType, fp8_e4m3, fp8_e4m3_b128, mxfp8_e5m2, nvfp4
from nvfp.kernels.cuda import quantize
from nvfp.kernels.operand import OperandPair
from tests.kernels.cuda import emulator
from tests.kernels.quantized import BF16, F32, check_operand, nvfp4_2d, values
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
    return OperandPair(*quantize.quantize(x, fmt, **arguments))


@pytest.mark.parametrize("fmt", [nvfp4, mxfp8_e5m2, nvfp4_2d, fp8_e4m3], ids=lambda fmt: fmt.name)
def test_tiles(fmt: QuantDType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that start a group of random numbers, and rows that do not; the generic kernel gives the same."""
    for kind, shape in (("wide", (70, 200)), ("nonfinite", (64, 128)), ("normal", (67, 75))):
        x = values(kind, shape, BF16)
        check_both(x, fmt, run(x, fmt))
    check_both(x.T, fmt, run(x.T, fmt))
    monkeypatch.setattr(quantize, "_tile_call", lambda job, where: None)
    check_both(x, fmt, run(x, fmt))


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
