"""How near two results must be: one table, each row with its reason. Bits that are promised stand in no row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

ANY = "any"


@dataclass(frozen=True)
class Tolerance:
    """|actual - expected| <= atol + rtol * |expected|, because of ``reason``.

    ``atol`` is in units of the problem's own scale where the row says so (see `check`).
    """

    rtol: float
    atol: float
    reason: str


_GEMM = "float32 accumulation in any order, then one rounding to the output dtype"
_FAST = "Hopper FP8 tensor cores keep about 14 bits; the error grows with K (2.0e-3 of the scale at K = 8192)"
_SLOW = "Hopper FP8 without fast accumulation: 1.2e-4 of the scale whatever K"
_DRAWN = "as gemm_fp8, drawn operands: the H200 gave 2.4e-4 of the scale in one element of K = 37"
_GELU = "as the gemm rows; cuBLASLt's dgelu rounds 16-bit results twice (7.5e-3 on an H200) and its tails are coarser"
_NORM = "float32 sums over a row or over the rows, one rounding; atol in units of what the sums add up"
_CUDNN = "weights, their gradients and O are rounded to 16 bits in between; atol in units of sums of magnitudes"
_HEAD = "logits and their gradient are rounded to 16 bits, logits now and then to the other neighbour"
_BLOCK = (
    "Hopper FP8 sums of 128 products in the tensor core (1.2e-4 of the norm; single elements on an H200 up to 2.6e-4), "
    "float32 sums of these"
)
_TE = "both sides' sums of equally quantized products: Transformer Engine's in Hopper's FP8 tensor cores"
_RECIPE = "three GEMMs against float64 over the same quantized operands: GEMM's row plus the output's rounding"
_FFT = "log2(n) roundings of sums of up to 210 values below 1.5"
_LINALG = (
    "matrices of condition below 30: rounding times condition; 16-bit floats compute in float32, so theirs is one "
    "rounding of the result"
)

# For gemm and linear rows atol counts in units of (|a| @ |b|): the scale in which float32 sums err.
TABLE: dict[tuple[str, str], Tolerance] = {
    ("gemm", "float64"): Tolerance(1e-12, 1e-13, "float64 BLAS"),
    ("gemm", "float32"): Tolerance(1e-5, 1e-6, _GEMM),
    ("gemm", "float16"): Tolerance(2.0**-10, 1e-6, _GEMM),
    ("gemm", "bfloat16"): Tolerance(2.0**-8, 1e-6, _GEMM),
    ("gemm_fp8", "float32"): Tolerance(1e-5, 2e-4, _SLOW),
    ("gemm_fp8", "float16"): Tolerance(2.0**-10, 2e-4, _SLOW),
    ("gemm_fp8", "bfloat16"): Tolerance(2.0**-8, 2e-4, _SLOW),
    ("gemm_fp8_drawn", "float32"): Tolerance(1e-5, 4e-4, _DRAWN),
    ("gemm_fp8_drawn", "float16"): Tolerance(2.0**-10, 4e-4, _DRAWN),
    ("gemm_fp8_drawn", "bfloat16"): Tolerance(2.0**-8, 4e-4, _DRAWN),
    ("gemm_block128", "float32"): Tolerance(1e-5, 4e-4, _BLOCK),
    ("gemm_block128", "float16"): Tolerance(2.0**-10, 4e-4, _BLOCK),
    ("gemm_block128", "bfloat16"): Tolerance(2.0**-8, 4e-4, _BLOCK),
    ("gemm_fp8_fast", "float32"): Tolerance(1e-5, 2.5e-3, _FAST),
    ("gemm_fp8_fast", "float16"): Tolerance(2.0**-10, 2.5e-3, _FAST),
    ("gemm_fp8_fast", "bfloat16"): Tolerance(2.0**-8, 2.5e-3, _FAST),
    ("gemm_gelu", "float32"): Tolerance(1e-3, 3e-4, _GELU),
    ("gemm_gelu", "float16"): Tolerance(2e-3, 3e-4, _GELU),
    ("gemm_gelu", "bfloat16"): Tolerance(2.0**-7, 3e-4, _GELU),
    ("gemm_dgelu", "float32"): Tolerance(1e-3, 1e-3, _GELU),
    ("gemm_dgelu", "float16"): Tolerance(2e-3, 1e-3, _GELU),
    ("gemm_dgelu", "bfloat16"): Tolerance(2.0**-7, 1e-3, _GELU),
    ("gemm_to_fp8", "float8_e4m3fn"): Tolerance(2.0**-4 * 1.01, 3e-4, "half a step of E4M3; the sums err as gemm_fp8"),
    ("gemm_to_fp8", "float8_e5m2"): Tolerance(2.0**-3 * 1.01, 3e-4, "half a step of E5M2; the sums err as gemm_fp8"),
    ("gemm_tf32", "float32"): Tolerance(1e-5, 2.0**-10, "both factors rounded to 11 significand bits"),
    ("activation", "float64"): Tolerance(1e-12, 1e-12, "tanh and exp of the platform's libm"),
    ("activation", "float32"): Tolerance(2e-6, 1e-6, "tanh of two libraries, within 2 ulp each"),
    ("activation", "float16"): Tolerance(2.0**-10, 1e-6, "computed in float32, one rounding"),
    ("activation", "bfloat16"): Tolerance(2.0**-8, 1e-6, "computed in float32, one rounding"),
    ("dropout", "float32"): Tolerance(2 * 2.0**-23, 0.0, "the factor is rounded, then the product"),
    ("dropout", "float16"): Tolerance(2.0**-10, 1e-7, "computed in float32, one rounding; subnormals"),
    ("dropout", "bfloat16"): Tolerance(2.0**-8, 0.0, "computed in float32, one rounding"),
    ("hadamard", "bfloat16"): Tolerance(2.0**-8, 2e-7, "float32 sums of 16, one rounding; atol in sums of |x|"),
    ("rope", "float32"): Tolerance(2.0**-23, 4e-7, "sine and cosine, two products; atol in units of max |x|"),
    ("rope", "float16"): Tolerance(2.0**-10, 4e-7, "computed in float32, one rounding"),
    ("rope", "bfloat16"): Tolerance(2.0**-8, 4e-7, "computed in float32, one rounding"),
    ("cross_entropy", "float32"): Tolerance(2e-6, 2e-6, "float32 sums of exp in two stages"),
    ("cross_entropy", "float16"): Tolerance(2.0**-10, 2e-6, "computed in float32, one rounding"),
    ("cross_entropy", "bfloat16"): Tolerance(2.0**-8, 2e-6, "computed in float32, one rounding"),
    ("linear_cross_entropy", "float32"): Tolerance(1e-5, 4e-6, "two products around a cross_entropy"),
    ("linear_cross_entropy", "float16"): Tolerance(2.0**-10, 2.0**-10, _HEAD),
    ("linear_cross_entropy", "bfloat16"): Tolerance(2.0**-8, 2.0**-7, _HEAD),
    ("softmax", "float32"): Tolerance(4e-6, 2e-6, "float32 exp and sums of exp in two stages"),
    ("softmax", "float16"): Tolerance(2.0**-10, 2e-6, "computed in float32, one rounding"),
    ("softmax", "bfloat16"): Tolerance(2.0**-8, 2e-6, "computed in float32, one rounding"),
    ("attention", "float32"): Tolerance(1e-5, 4e-6, _GEMM + "; atol in units of sums of magnitudes"),
    ("attention", "float16"): Tolerance(2.0**-10, 2.0**-10, _CUDNN),
    ("attention", "bfloat16"): Tolerance(2.0**-8, 2.0**-7, _CUDNN),
    ("attention_cudnn", "bfloat16"): Tolerance(2.0**-8, 2.0**-7, _CUDNN),
    ("attention_cudnn", "float16"): Tolerance(2.0**-10, 2.0**-10, _CUDNN),
    ("elementwise", "float64"): Tolerance(2e-14, 1e-15, "exp, log, power, trigonometry of two libraries, some ulp"),
    ("elementwise", "float32"): Tolerance(2e-6, 2e-7, "exp, log, power, trigonometry of two libraries, some ulp"),
    ("elementwise", "float16"): Tolerance(2.0**-10, 2e-7, "computed in float32, one rounding"),
    ("elementwise", "bfloat16"): Tolerance(2.0**-8, 2e-7, "computed in float32, one rounding"),
    ("reduce", "float32"): Tolerance(1e-5, 1e-6, "float32 sums in two stages; atol in units of sum |x|"),
    ("reduce", "float16"): Tolerance(2.0**-10, 1e-6, "float32 sums, one rounding"),
    ("reduce", "bfloat16"): Tolerance(2.0**-8, 1e-6, "float32 sums, one rounding"),
    ("bias_grad", "float32"): Tolerance(1e-5, 1e-6, "float32 sums in two stages; atol in units of sum |dy|"),
    ("bias_grad", "bfloat16"): Tolerance(2.0**-8, 1e-6, "float32 sums, one rounding"),
    ("bias_grad", "float16"): Tolerance(2.0**-10, 1e-6, "float32 sums, one rounding"),
    ("l2_norm", "float32"): Tolerance(2e-6, 0.0, "squares in float32 over 8192 elements, pieces in float64, a root"),
    ("norm", "float32"): Tolerance(1e-5, 2e-6, _NORM),
    ("norm", "float16"): Tolerance(2.0**-10, 2e-6, _NORM),
    ("norm", "bfloat16"): Tolerance(2.0**-8, 2e-6, _NORM),
    ("norm_te", "float32"): Tolerance(2e-6, 2e-6, "float32 of two libraries; atol in units of the largest value"),
    ("embedding", "float32"): Tolerance(1e-6, 1e-6, "float32 sums per row, in pieces; atol in units of 1 + sum |dy|"),
    ("embedding", "float16"): Tolerance(2.0**-10, 1e-6, "float32 sums, one rounding"),
    ("embedding", "bfloat16"): Tolerance(2.0**-8, 1e-6, "float32 sums, one rounding"),
    ("adam_steps", "float32"): Tolerance(2e-6, 2e-6, "ten steps of float32 arithmetic against float64"),
    ("adam", "float32"): Tolerance(2 * 2.0**-23, 0.0, "2 ulp per step: sqrt and division are IEEE, order is fixed"),
    ("sgd_steps", "float32"): Tolerance(2e-6, 2e-6, "ten steps of float32 arithmetic against float64 or torch"),
    ("normal", "float64"): Tolerance(1e-14, 1e-14, "log, sqrt, sin and cos of two libraries in Box-Muller"),
    ("normal", "float16"): Tolerance(2.0**-10, 4e-6, "computed in float32, one rounding"),
    ("normal", "float32"): Tolerance(4e-6, 4e-6, "log, sqrt, sin and cos of two libraries in Box-Muller"),
    ("normal", "bfloat16"): Tolerance(2.0**-8, 4e-6, "computed in float32, one rounding"),
    ("layer", "float32"): Tolerance(0.0, 4e-6, "a whole layer in float32, in units of the largest value"),
    ("layer_grad", "float32"): Tolerance(0.0, 1e-5, "a whole layer in float32, in units of the largest value"),
    ("layer", "bfloat16"): Tolerance(0.0, 2.0**-6, "four roundings to bfloat16 on the way, units of the largest value"),
    ("layer_grad", "bfloat16"): Tolerance(0.0, 2.0**-5, "the same there and back"),
    ("layer", "float16"): Tolerance(0.0, 2.0**-9, "four roundings to float16 on the way, units of the largest value"),
    ("layer_grad", "float16"): Tolerance(0.0, 2.0**-8, "the same there and back"),
    ("layer_bf16", "float64"): Tolerance(0.0, 2e-2, "norm of the error of a layer in bfloat16 over float32's norm"),
    ("layer_fp8", "float64"): Tolerance(0.0, 0.25, "the same with 8-bit operands: gradients have 2 mantissa bits"),
    ("layer_nvfp4", "float64"): Tolerance(
        0.0, 0.7, "the same with 4-bit operands: 1 mantissa bit, so 2^-2 per element"
    ),
    ("rotary", "float32"): Tolerance(1e-6, 1e-7, "power, division, product in float32"),
    ("te_module", "float32"): Tolerance(
        0.0, 2e-5, "whole layers in float32, in units of the largest value: scores of +-100, TE is 7e-6 off float64"
    ),
    ("te_module_grad", "float32"): Tolerance(0.0, 6e-5, "the same through backward; TE is 2.4e-5 off float64"),
    ("torch_loss_fp8", "float64"): Tolerance(
        0.05, 1e-3, "40 steps of a small torch model in 8 bits against bfloat16; 0.019 seen"
    ),
    ("torch_loss_nvfp4", "float64"): Tolerance(0.2, 1e-3, "the same in 4 bits; 0.09 seen"),
    ("linear_bf16", "bfloat16"): Tolerance(2.0**-7, 2e-6, "gemm rows; bias added before the one rounding"),
    ("linear_fp8", "bfloat16"): Tolerance(2.0**-7, 2.5e-3, _RECIPE + "; fprop accumulates fast on Hopper"),
    ("linear_fp8_grad", "bfloat16"): Tolerance(
        2.0**-8,
        4e-4,
        "Hopper FP8 without fast accumulation: 1.2e-4 of the norm, single elements on an H200 up to 2.2e-4",
    ),
    ("te_linear", "float32"): Tolerance(1e-5, 4e-4, _TE),
    ("te_linear", "bfloat16"): Tolerance(2.0**-7, 4e-4, _TE + ", two roundings to bfloat16"),
    ("te_linear_fast", "float32"): Tolerance(1e-5, 2.5e-3, _TE + " in fprop fast"),
    ("linear_mxfp8", "bfloat16"): Tolerance(2.0**-7, 2e-6, _RECIPE),
    ("linear_nvfp4", "bfloat16"): Tolerance(2.0**-7, 2e-6, _RECIPE),
    ("weight_only_gemm", "float32"): Tolerance(1e-5, 1e-6, "gemm rows; sums of 32 columns times their scale"),
    ("weight_only_gemm", "float16"): Tolerance(2.0**-10, 1e-6, "the same, then one rounding"),
    ("weight_only_gemm", "bfloat16"): Tolerance(2.0**-8, 1e-6, "the same, then one rounding"),
    ("llama", "float32"): Tolerance(
        0.0, 1e-5, "two decoder layers and a head in float32, in units of the largest logit; 1e-6 seen"
    ),
    ("llama", "bfloat16"): Tolerance(
        0.0,
        0.05,
        "the same, activations in bfloat16: a dozen roundings of 2^-9, amplified by attention and norms; 0.03 seen",
    ),
    ("muon", "float32"): Tolerance(
        0.0,
        0.06,
        "five Newton-Schulz steps in bfloat16, each may triple an error; units of the largest entry; torch's own: 0.04",
    ),
    ("fft", "float64"): Tolerance(1e-12, 1e-12, _FFT),
    ("fft", "float32"): Tolerance(1e-5, 1e-5, _FFT),
    ("linalg", "float64"): Tolerance(1e-11, 1e-11, _LINALG),
    ("linalg", "float32"): Tolerance(2e-4, 2e-4, _LINALG),
    ("linalg", "bfloat16"): Tolerance(2.0**-7, 2.0**-8, _LINALG),
    ("linalg", "float16"): Tolerance(2.0**-9, 2.0**-9, _LINALG),
}


def tolerance(name: str, dtype: Any) -> Tolerance:
    """Return the row of (name, dtype), or the name's ``any`` row."""
    key = (name, np.dtype(dtype).name)
    row = TABLE.get(key) or TABLE.get((name, ANY))
    if row is None:
        raise KeyError(f"tests/tolerances.py has no row {key}; add one with its reason")
    return row


def check(actual: Any, expected: Any, name: str, dtype: Any = None, *, scale: Any = 1.0, factor: float = 1.0) -> None:
    """Assert that NumPy array ``actual`` is within its row of ``expected``.

    Args:
        actual: the result; its dtype picks the row unless ``dtype`` is given.
        expected: the right values (float64).
        name: row name.
        dtype: row dtype.
        scale: what one unit of atol means, e.g. ``|a| @ |b|`` for a GEMM; broadcasts.
        factor: of the limit; 2 where both sides err, as two devices do.
    """
    actual = np.asarray(actual)
    row = tolerance(name, actual.dtype if dtype is None else dtype)
    a, e = actual.astype(np.float64), np.asarray(expected, np.float64)
    assert a.shape == e.shape, f"[{name}] expected shape {e.shape}, got {a.shape}"
    same = (a == e) | (np.isnan(a) & np.isnan(e))
    limit = factor * (row.atol * np.asarray(scale, np.float64) + row.rtol * np.abs(e))
    with np.errstate(invalid="ignore"):
        excess = np.where(same, 0.0, np.abs(a - e) / np.maximum(limit, np.finfo(np.float64).tiny))
    excess = np.where(np.isnan(excess), np.inf, excess)
    if excess.size and excess.max() > 1:
        at = np.unravel_index(int(excess.argmax()), a.shape)
        at = tuple(int(i) for i in at)
        raise AssertionError(
            f"[{name}] {int((excess > 1).sum())} of {a.size} values exceed {row}; the worst at {at}: "
            f"got {a[at]!r}, expected {e[at]!r}, {excess[at]:.3g} times the limit"
        )
