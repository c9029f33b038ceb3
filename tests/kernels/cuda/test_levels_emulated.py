"""Row-scaled formats and 4-over-6 in the CUDA kernels, run on the CPU (see `emulator`) against the exact twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvfp.dtypes.block import quantize_exact
from nvfp.dtypes.conventions import PLAIN
from nvfp.dtypes.formats import QuantDType
from nvfp.kernels.cuda import quantize
from nvfp.kernels.operand import Operand
from tests.kernels.cuda import emulator
from tests.kernels.quantized import BF16, F32, check_operand, values
from tests.kernels.test_quantize_levels import FORMATS, ROWS

NONE = (None, None)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.install(monkeypatch)


def run(x: np.ndarray, fmt: QuantDType, axis: int, **options: Any) -> tuple[Operand | None, Operand | None]:
    arguments = {
        "row": True, "col": False, "scale": None, "amax": NONE, "tensor_scale": NONE, "amax_out": NONE,
        "amax_epsilon": 0.0, "rounding": "even", "rng": None, "overflow": "saturate", "scale_layout": "plain",
        "steps": PLAIN, **options,
    }  # fmt: skip
    return quantize.quantize(x, fmt, axis=axis, **arguments)


@pytest.mark.parametrize("fmt", [FORMATS[i] for i in (0, 1, 3, 5, 6)], ids=lambda fmt: fmt.name)
def test_bits(fmt: QuantDType) -> None:
    for kind, shape in (("normal", (32, 48)), ("nonfinite", (40, 33)), ("tiny", (16, 16)), ("normal", (5, 0))):
        x = values(kind, shape, BF16)
        row, col = run(x, fmt, 1, col=not fmt.square)
        assert row is not None
        check_operand(row, quantize_exact(x, fmt, axis=1), fmt, 1)
        if col is not None:
            check_operand(col, quantize_exact(x, fmt, axis=0), fmt, 0, swap=True)


def test_axes_and_words() -> None:
    cube = values("wide", (3, 20, 5))
    for axis in (0, 1):
        side, _ = run(cube, ROWS, axis)
        assert side is not None
        check_operand(side, quantize_exact(cube, ROWS, axis=axis), ROWS, axis)
    x = values("normal", (40, 32), BF16)
    given = np.asarray(0.003, F32)
    side, _ = run(x, FORMATS[1], 1, tensor_scale=(given, None))
    assert side is not None
    check_operand(side, quantize_exact(x, FORMATS[1], axis=1, tensor_scale=given), FORMATS[1], 1)
