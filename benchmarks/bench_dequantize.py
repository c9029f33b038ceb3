"""Time `dequantize`: codes and scales in, bfloat16 out (on the CPU float32 too)."""

from __future__ import annotations

from functools import partial
from typing import Any

from _formats import lines
from _harness import BFLOAT16, FLOAT32, Bench, main

from nvfp.dtypes.formats import fp8_e4m3, mxfp8, nvfp4
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.quantize import quantize


def bench(b: Bench) -> None:
    x = b.normal(b.matrix)
    for fmt in (fp8_e4m3, mxfp8, nvfp4):
        pair = quantize(x, fmt, col=True)
        for name, side in (("row", pair.row), ("column", pair.col)):
            assert side is not None
            wanted = fmt is fp8_e4m3 and name == "row"
            b.row(
                f"dequantize {fmt} {name} copy",
                partial(dequantize, side, BFLOAT16),
                moved=side.nbytes + x.nbytes,
                peer=partial(_torch, b, side) if wanted else None,
            )
    if not b.cuda:
        _limits(b)
    small = quantize(b.normal((128, 128)), fp8_e4m3).row
    assert small is not None
    b.host("dequantize fp8 into out", partial(dequantize, small, BFLOAT16, out=b.empty((128, 128))), limit=9)


def _limits(b: Bench) -> None:
    """Every block format along one axis to float32: at least 2 GB/s of it."""
    x = b.normal(b.matrix, FLOAT32)
    for name, fmt in lines(x.shape[1]).items():
        side = quantize(x, fmt).row
        assert side is not None
        b.row(
            f"dequantize float32 {name}", partial(dequantize, side, FLOAT32), moved=side.nbytes + x.nbytes,
            least=("float32 out", x.nbytes, 2e9),
        )  # fmt: skip


def _torch(b: Bench, side: Any, torch: Any) -> Any:
    codes, scale = b.tensor(side.codes, "float8_e4m3fn"), b.tensor(side.scale)
    return lambda: codes.to(torch.bfloat16) * scale


if __name__ == "__main__":
    main(bench)
