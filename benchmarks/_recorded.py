"""Figures of peers that cannot be imported here: measured once on one H200, in milliseconds.

Driver 580.159, CUDA 13.0, cuBLAS 13.1.0.3; random data. TransformerEngine 2.20.2 and torch 2.11: one call
at a time by CUDA events with a synchronize after each, median of 15. cuBLASLt (first heuristic) and torch's
matrix products: 12 calls in a row, median of 3 groups. A few percent between runs are noise.
"""

from __future__ import annotations

from dataclasses import dataclass

Key = tuple[str, tuple[int, ...]]  # name of the row, shape

# What the H200 reaches: bytes/s of a large device-to-device copy (read plus written), FLOP/s of cuBLASLt at 8192^3.
H200_ROOFS = {"copy": 4.25e12, "bfloat16": 780e12, "float8": 1436e12, "float8 fast": 1513e12}


@dataclass(frozen=True)
class Recorded:
    """A peer's time in seconds, and the peer's name and version."""

    peer: str
    seconds: float


_TE, _TORCH, _CUBLASLT = "TE 2.20.2", "torch 2.11 compiled", "cuBLASLt 13.1"
_MATRIX = (16384, 8192)  # bfloat16
_MS: dict[Key, tuple[str, float]] = {
    ("quantize fp8 delayed row", _MATRIX): (_TE, 0.1129),
    ("quantize fp8 delayed row+col", _MATRIX): (_TE, 0.1714),
    ("quantize fp8 current row", _MATRIX): (_TE, 0.1939),
    ("quantize fp8 current row+col", _MATRIX): (_TE, 0.2460),
    ("quantize block 1x128 row+col", _MATRIX): (_TE, 0.2122),
    ("quantize block 1x128 plain scales row+col", _MATRIX): (_TE, 0.2122),
    ("quantize block 128x128 row+col", _MATRIX): (_TE, 0.1556),
    ("quantize mxfp8 row", _MATRIX): (_TORCH, 0.197),
    **{(f"gemm {name}", (n, n, n)): (_CUBLASLT, ms) for n, name, ms in (
        (4096, "bfloat16", 0.177), (8192, "bfloat16", 1.406), (8192, "bfloat16 + bias", 1.382),
        (4096, "float8", 0.104), (8192, "float8", 0.766),
        (4096, "float8 fast", 0.097), (8192, "float8 fast", 0.727),
        (8192, "bfloat16 + bias, gelu, aux", 1.451), (8192, "bfloat16, sums of a", 1.467),
        (4096, "float8, a scale per row, fast", 0.097), (8192, "float8, a scale per row, fast", 0.722),
        (8192, "float8 to float8, amax, fast", 0.723),
        (4096, "float8 accumulate float32", 0.119), (8192, "float8 accumulate float32", 0.825),
        (4096, "block 1x128 by 1x128", 0.142), (8192, "block 1x128 by 1x128", 1.066),
        (4096, "block 1x128 by 128x128", 0.112), (8192, "block 1x128 by 128x128", 0.845),
        (4096, "block 1x128 by 1x128 accumulate float32", 0.151),
        (8192, "block 1x128 by 1x128 accumulate float32", 1.111),
    )},
    # TE's Linear without bias, gradients cleared at each step, ten steps in a row, median of five.
    **{(f"linear {name} forward+backward, in a row", shape): (_TE, ms) for shape, times in (
        ((8192, 4096, 16384), (4.890, 2.938, 3.063, 3.616)),
        ((16384, 8192, 8192), (9.989, 5.804, 5.893, 6.939)),
        ((8192, 4096, 4096), (1.067, 1.240, 1.181, 1.306)),
    ) for name, ms in zip(("bf16", "delayed", "current", "block"), times, strict=True)},
    # Whole training steps, wall: torch.compile in bfloat16, TE in FP8 (one step at a time).
    **{(f"train {name}", shape): (peer, ms) for shape, times in (
        ((12, 768, 12, 1024, 16), (33.4, 75.6, 76.5, 75.7)),
        ((24, 2048, 16, 2048, 4), (140.0, 158.8, 166.7, 211.1)),
    ) for name, peer, ms in zip(("bf16", "delayed", "current", "block"), (_TORCH, _TE, _TE, _TE), times, strict=True)},
}  # fmt: skip

RECORDED = {key: Recorded(peer, ms / 1e3) for key, (peer, ms) in _MS.items()}
