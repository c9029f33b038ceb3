"""Time `gemm`: dense, FP8 as it is, and block formats expanded where the device cannot multiply them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from _harness import BFLOAT16, FLOAT32, Bench, main
from _timing import time_in_a_row

from nvfp.dtypes.formats import QuantDType, fp8_e4m3, fp8_e4m3_b128, mxfp8, nvfp4
from nvfp.kernels.gemm import gemm, native_scale_layout
from nvfp.kernels.operand import Operand
from nvfp.kernels.quantize import quantize


def bench(b: Bench) -> None:
    for n in b.size((4096, 8192), (4096,), (1024,), (512,)):
        _cube(b, n)
    small, out = b.normal((128, 128)), b.empty((128, 128))
    b.host("gemm bfloat16, cached, into out", partial(gemm, small, small, out=out), limit=13)
    x = _row(small, fp8_e4m3)
    b.host("gemm fp8, cached, into out", partial(gemm, x, x.T, out=out), limit=13)
    x1 = _row(small, fp8_e4m3_b128)
    b.host("gemm block 1x128, cached, into out", partial(gemm, x1, x1.T, out=out), limit=13)
    b.host("gemm fp8, cached", partial(gemm, x, x.T, dtype=BFLOAT16))


def _cube(b: Bench, n: int) -> None:
    """Y [n, n] = x [n, k] w [n, k]^T with k = n: the forward product of a Linear.

    Timed as the recorded figures were: 12 calls in a row, the median of three groups, each after a short rest.
    """
    x, w, bias, out = b.normal((n, n)), b.normal((n, n)), b.normal((n,)), b.empty((n, n))
    burst = partial(time_in_a_row, steps=12, groups=3, idle=0.2)

    def row(name: str, call: Any, roof: str, peer: Any = None) -> None:
        known = (f"gemm {name}", (n, n, n))
        b.row(f"gemm {name} {n}^3", call, flops=2 * n**3, roof=roof, peer=peer, known=known, timer=burst)

    def matmul(torch: Any) -> Any:
        return partial(torch.matmul, b.tensor(x), b.tensor(w).t())

    row("bfloat16", partial(gemm, x, w.T, out=out), "bfloat16", matmul)
    row("bfloat16 + bias", partial(gemm, x, w.T, bias=bias, out=out), "bfloat16")
    aux = b.empty((n, n))
    row(
        "bfloat16 + bias, gelu, aux",
        partial(gemm, x, w.T, bias=bias, out=out, epilogue="gelu", aux_out=aux),
        "bfloat16",
    )
    row("bfloat16, dgelu, sums", partial(gemm, x, w.T, out=out, epilogue="dgelu", aux=aux, bias_grad=bias), "bfloat16")
    row("bfloat16, sums of a", partial(gemm, x, w.T, out=out, bias_grad=bias), "bfloat16")
    wide = b.normal((n, n), FLOAT32)
    if not b.cuda:
        row(
            "float32",
            partial(gemm, wide, wide.T),
            "float32",
            lambda torch: partial(torch.matmul, b.tensor(wide), b.tensor(wide).t()),
        )
    elif n <= 4096:
        row("float32", partial(gemm, wide, wide.T), "float32")
        row("float32, tf32", partial(gemm, wide, wide.T, tf32=True), "float32")
    _narrow(b, n, x, w, out, row, matmul)


def _narrow(b: Bench, n: int, x: Any, w: Any, out: Any, row: Callable[..., None], matmul: Any) -> None:
    """The same products of quantized operands."""
    x8, w8 = _row(x, fp8_e4m3), _row(w, fp8_e4m3)
    for fast in (True, False) if b.cuda else (False,):
        name = "float8 fast" if fast else "float8"
        peer = partial(_scaled_mm, b, x8, w8, fast)
        row(name, partial(gemm, x8, w8.T, out=out, fast_accumulation=fast), name, peer)
    lines = fp8_e4m3.replace(block=n)
    x0, w0 = _row(x, lines), _row(w, lines)
    row("float8, a scale per row, fast", partial(gemm, x0, w0.T, out=out, fast_accumulation=True), "float8 fast")
    words = {"out_format": fp8_e4m3, "out_scale": b.word(0.5), "amax_out": b.word()}
    row("float8 to float8, amax, fast", partial(gemm, x8, w8.T, fast_accumulation=True, **words), "float8 fast")
    gelu = {"epilogue": "dgelu", "aux": w}
    row("float8, dgelu, fast", partial(gemm, x8, w8.T, out=out, fast_accumulation=True, **gelu), "float8 fast")
    total = b.xp.zeros((n, n), FLOAT32)
    row("float8 accumulate float32", partial(gemm, x8, w8.T, out=total, accumulate=True), "float8")
    square = fp8_e4m3_b128.replace(block=(128, 128))
    x1, w1, w2 = _row(x, fp8_e4m3_b128), _row(w, fp8_e4m3_b128), _row(w, square)
    roof = "float8" if x1.scale_layout == "k_major128" else "bfloat16"  # multiplied as they are, or expanded
    row("block 1x128 by 1x128", partial(gemm, x1, w1.T, out=out), roof, matmul)
    row("block 1x128 by 128x128", partial(gemm, x1, w2.T, out=out), roof, matmul)
    row("block 1x128 by 1x128 accumulate float32", partial(gemm, x1, w1.T, out=total, accumulate=True), roof)
    for fmt in (mxfp8, nvfp4):
        row(f"{fmt}, expanded", partial(gemm, _row(x, fmt), _row(w, fmt).T, out=out), "bfloat16", matmul)
    if b.cuda and n == 8192:
        b.row("gemm float8 fast 8192^3, without rests", partial(gemm, x8, w8.T, out=out, fast_accumulation=True),
              flops=2 * n**3, roof="float8 fast", timer=partial(time_in_a_row, steps=100, groups=5))  # fmt: skip


def _row(x: Any, fmt: QuantDType) -> Operand:
    found = quantize(x, fmt, scale_layout=native_scale_layout(x, fmt)).row
    assert found is not None
    return found


def _scaled_mm(b: Bench, x: Operand, w: Operand, fast: bool, torch: Any) -> Any:
    left, right = (b.tensor(side.codes, "float8_e4m3fn") for side in (x, w))
    scales = {"scale_a": b.tensor(x.scale), "scale_b": b.tensor(w.scale)}
    return partial(torch._scaled_mm, left, right.t(), **scales, out_dtype=torch.bfloat16, use_fast_accum=fast)


if __name__ == "__main__":
    main(bench)
