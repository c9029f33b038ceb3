"""Column copies through the tiles of `dequantize_columns`, and 8 codes at a time along rows, run on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from nvfp.dtypes.formats import QuantDType, fp8_e4m3, fp8_e4m3_b128, mxfp8_e4m3, nvfp4
from nvfp.kernels.cuda import dequantize
from nvfp.kernels.cuda._launch import count_launches
from tests.kernels.cuda import emulator
from tests.kernels.quantized import BF16, F32, same_bits, values
from tests.oracles.dequantize import dequantize as dequantize_oracle
from tests.oracles.quantize import quantize

FORMATS = (fp8_e4m3, fp8_e4m3_b128, mxfp8_e4m3, nvfp4)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_columns_by_tiles(monkeypatch: pytest.MonkeyPatch, fmt: QuantDType) -> None:
    """One launch, whole tiles and ragged ones, and nothing written beside the output."""
    emulator.install(monkeypatch)
    wide = F32 if fmt is fp8_e4m3 else BF16
    for shape, dtype in (((304, 72), BF16), ((48, 136), wide), ((256, 64), BF16)):
        side = quantize(values("nonfinite", shape, BF16), fmt, col=True).col
        assert side is not None
        for factors in (True, False):
            padded = np.full((shape[0] + 1, shape[1] + 8), 77, dtype)
            out = padded[:-1, :-8]
            with count_launches() as count:
                assert dequantize.dequantize(side, np.dtype(dtype), tensor_factors=factors, out=out) is out
            assert count.n == 1
            assert same_bits(out, dequantize_oracle(side, dtype, tensor_factors=factors))
            assert (padded[-1] == 77).all()
            assert (padded[:, -8:] == 77).all()


def test_rows_that_cannot_go_by_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.install(monkeypatch)
    for shape in ((70, 37), (37, 70)):  # lines of output, or of codes, off 16 and 8 bytes
        side = quantize(values("nonfinite", shape, BF16), mxfp8_e4m3, col=True).col
        assert side is not None
        got = dequantize.dequantize(side, BF16, tensor_factors=True, out=None)
        assert same_bits(got, dequantize_oracle(side, BF16))


def test_constants_of_launcher_and_source_agree() -> None:
    text = (emulator.SOURCES / "dequantize.cu").read_text()
    assert f"TILE_ROWS = {dequantize._TILE_ROWS}, TILE_COLUMNS = 128 * (PACK + 1)" in text
