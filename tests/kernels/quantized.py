"""Rows, inputs and comparisons that the tests of the quantize family share."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from nvfp.dtypes import elements as el
from nvfp.dtypes.block import ExactBlocks, quantize_exact
from nvfp.dtypes.formats import (
    QuantDType,
    fp8_e4m3,
    fp8_e4m3_b128,
    fp8_e5m2,
    mxfp4,
    mxfp6_e2m3,
    mxfp6_e3m2,
    mxfp8_e4m3,
    mxfp8_e5m2,
    mxint8,
    nvfp4,
)
from nvfp.dtypes.packing import pack
from nvfp.kernels.operand import Operand
from tests.devices import to_numpy

BF16 = np.dtype(ml_dtypes.bfloat16)
F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
DTYPES = (F32, BF16, F16, F64)

nvfp4_2d = nvfp4.replace(block=(16, 16), name="nvfp4_2d")
b128_2d = fp8_e4m3_b128.replace(block=(128, 128), name="b128_2d")
BUILT = (fp8_e4m3, fp8_e5m2, fp8_e4m3_b128, b128_2d, mxfp8_e4m3, mxfp8_e5m2, mxfp6_e3m2, mxfp4, mxint8, nvfp4, nvfp4_2d)
# Rows that no code knows by name: every element, scale family, block form and flag at least once.
MADE = (
    fp8_e4m3.replace(power_of_two_scales=True, name="fp8_pow2"),
    fp8_e4m3.replace(nonfinite="nan_block", name="fp8_nan"),
    fp8_e5m2.replace(block=128, power_of_two_scales=True, name="fp8_e5m2_b128"),
    fp8_e4m3.replace(block=(128, 128), name="fp8_e4m3_2d"),
    mxfp4.replace(scale_rule="floor", name="mxfp4_floor"),
    mxfp4.replace(scale_rule="even", name="mxfp4_even"),
    mxfp6_e2m3.replace(scale_rule="floor", name="mxfp6_e2m3_floor"),
    mxfp6_e3m2.replace(block=24, name="mxfp6_e3m2_b24"),
    mxint8.replace(scale_rule="ceil", name="mxint8_ceil"),
    mxint8.replace(scale_rule="even", name="mxint8_even"),
    QuantDType("int8_tensor", el.int8, None, el.float32, nonfinite="saturate"),
    QuantDType("fp4_tensor", el.float4_e2m1fn, None, el.float32),
    QuantDType("fp8_tensor_e8m0", el.float8_e4m3fn, None, el.float8_e8m0fnu),
    QuantDType("fp4_one_level", el.float4_e2m1fn, 16, el.float8_e4m3fn),
    QuantDType("fp8_two_level", el.float8_e5m2, 24, el.float8_e5m2, tensor_scale=True),
    mxfp8_e4m3.replace(nonfinite="saturate", name="mx_saturate"),
    nvfp4.replace(nonfinite="saturate", block=(4, 8), name="nvfp4_saturate"),
    nvfp4.replace(block=15, name="nvfp4_odd"),
    QuantDType("fp8_two_level_b128", el.float8_e4m3fn, 128, el.float8_e4m3fn, tensor_scale=True),
    QuantDType("e3m2_b24", el.float6_e3m2fn, 24, el.float8_e5m2),
    QuantDType("int4_bf16", el.int4, 32, el.bfloat16),
    QuantDType("int4_fp16", el.int4, 24, el.float16, tensor_scale=True),
    QuantDType("int4_2d", el.int4, (16, 16), el.bfloat16, nonfinite="saturate"),
    QuantDType("int4_mx", el.int4, 7, el.float8_e8m0fnu, scale_rule="even"),
    QuantDType("int8_b128", el.int8, (128, 128), el.bfloat16),
    QuantDType("fp8_bf16_tensor", el.float8_e4m3fn, None, el.bfloat16),
)
KINDS = ("normal", "wide", "tiny", "ties", "zeros", "nonfinite", "huge")


def values(kind: str, shape: tuple[int, ...], dtype: np.dtype = F32, seed: int = 0) -> np.ndarray:
    """Seeded input of one kind: see the branches."""
    rng = np.random.default_rng([seed, *map(ord, kind)])
    x = rng.standard_normal(shape)
    if kind == "wide":
        x = x * 2.0 ** rng.integers(-40, 30, shape)
    elif kind == "tiny":  # float32 subnormals, and what rounds to them
        x = rng.integers(-(2**20), 2**20, shape) * 2.0**-149
    elif kind == "ties":  # few significant bits: after scaling by a power of two many elements are ties
        x = rng.integers(-64, 65, shape) * 2.0 ** rng.integers(-6, 3, shape)
    elif kind == "zeros":
        x = np.where(rng.random(shape) < 0.97, np.copysign(0.0, x), x)
    elif kind == "nonfinite":
        x = np.where(rng.random(shape) < 0.01, rng.choice([np.nan, np.inf, -np.inf], shape), x)
    elif kind == "huge":
        x = x * 1e38
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float64).astype(F32).astype(dtype) if dtype != F64 else x


def stored(blocks: ExactBlocks, fmt: QuantDType, axis: int, *, swap: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The codes (packed) and scales of an exact result in stored order."""
    codes = pack(blocks.codes, axis=axis) if fmt.element.packed else blocks.codes
    scale = blocks.scale
    if swap:
        codes, scale = codes.T, scale.T
    return codes, scale


def same_bits(actual: Any, expected: np.ndarray) -> bool:
    """Equal shape, dtype and bits; any NaN equals any other."""
    got = to_numpy(actual)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise AssertionError(f"{got.dtype} {got.shape} is not {expected.dtype} {expected.shape}")
    if got.dtype.kind in "ui":
        return bool((got == expected).all())
    bits = np.dtype(f"uint{8 * got.dtype.itemsize}")
    wide, wanted = got.astype(F64), expected.astype(F64)
    return bool(((got.view(bits) == expected.view(bits)) | (np.isnan(wide) & np.isnan(wanted))).all())


def check_operand(operand: Operand, blocks: ExactBlocks, fmt: QuantDType, axis: int, *, swap: bool = False) -> None:
    """Compare one side with the exact twin, bit for bit."""
    codes, scale = stored(blocks, fmt, axis, swap=swap)
    assert operand.format == fmt
    assert operand.shape == blocks.codes.shape
    assert operand.axis == axis % max(1, len(operand.shape))
    assert operand.transposed == swap
    assert same_bits(operand.scale, scale), f"scales of {fmt.name}"
    assert same_bits(operand.codes, codes), f"codes of {fmt.name}"
    assert (operand.tensor_scale is None) == (blocks.tensor_scale is None)
    if blocks.tensor_scale is not None:
        assert same_bits(operand.tensor_scale, blocks.tensor_scale), f"tensor scale of {fmt.name}"


def check_sides(pair: Any, x: np.ndarray, fmt: QuantDType, **options: Any) -> None:
    """Compare both sides of a matrix with the exact twin."""
    check_operand(pair.row, quantize_exact(x, fmt, axis=1, **options), fmt, 1)
    check_operand(pair.col, quantize_exact(x, fmt, axis=0, **options), fmt, 0, swap=True)
