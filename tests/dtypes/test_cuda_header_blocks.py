"""Whole matrices against the recipes of NVIDIA's kernels, put together from the casts of its headers.

They need a C++ compiler and CUDA's headers: CI runs this file after it has installed the `compile` extra.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from nvfp.device import Device
from nvfp.dtypes import elements as el
from nvfp.dtypes.formats import (
    QuantDType,
    fp8_e4m3_b128,
    mxfp4,
    mxfp6_e2m3,
    mxfp6_e3m2,
    mxfp8_e4m3,
    mxfp8_e5m2,
    nvfp4,
)
from tests.dtypes import cuda_headers
from tests.dtypes.block_inputs import KINDS, blocks_of, check_blocks, matrix

MX = (mxfp8_e4m3, mxfp8_e5m2, mxfp6_e2m3, mxfp6_e3m2, mxfp4)
Float32 = npt.NDArray[np.float32]
FLT_MAX, ONE = np.float32(np.finfo(np.float32).max), np.float32(1)
kinds = pytest.mark.parametrize("kind", KINDS)


def flat(codes: np.ndarray, x: np.ndarray) -> np.ndarray:
    """[rows, columns] of [rows, blocks, length]."""
    return codes.reshape(len(x), -1)[:, : x.shape[1]]


def fmax(blocks: Float32) -> Float32:
    """max|x| as fmax takes it: NaN is skipped."""
    return np.asarray(np.fmax.reduce(np.abs(blocks), axis=-1, initial=np.float32(0)))


@kinds
@pytest.mark.parametrize("fmt", MX, ids=str)
def test_mx(device: Device, casts: cuda_headers.Casts, fmt: QuantDType, kind: str) -> None:
    """Scale e8m0(fl(amax * fl(1/max))) rounded up, elements fl(x * 2^-e) cast one by one (rule "saturate")."""
    x = matrix(kind)
    blocks = blocks_of(x, 32)
    with np.errstate(under="ignore", invalid="ignore"):
        scale = casts.e8m0_up(fmax(blocks) * (ONE / np.float32(fmt.element.max)))
        inverse = np.ldexp(ONE, 127 - scale.astype(np.int32))
        codes = casts.encode(blocks * inverse[..., None], fmt.element)
    check_blocks(x, fmt.replace(nonfinite="saturate"), device, flat(codes, x), scale)
    finite = np.isfinite(blocks).all(-1)
    check_blocks(x, fmt, device, flat(codes, x), scale, finite)


@kinds
def test_nvfp4(device: Device, casts: cuda_headers.Casts, kind: str) -> None:
    """G = 2688 / A; scale e4m3(amax * (G * (1/6))); code e2m1(x * min(1 / (s * (1/G)), FLT_MAX))."""
    x = np.nan_to_num(matrix(kind).astype(np.float32), nan=0, posinf=1, neginf=-1).astype(matrix(kind).dtype)
    blocks = blocks_of(x, 16)
    amax, whole = fmax(blocks), np.abs(x.astype(np.float32)).max()
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        g = np.minimum(np.float32(2688) / whole, FLT_MAX)
        scale = casts.encode(np.minimum(amax * (g * (ONE / np.float32(6))), FLT_MAX), el.float8_e4m3fn)
        s = casts.decode(scale, el.float8_e4m3fn).astype(np.float32)
        factor = np.minimum(ONE / (s * (ONE / g)), FLT_MAX)
        codes = casts.encode(blocks * factor[..., None], el.float4_e2m1fn)
    check_blocks(x, nvfp4, device, flat(codes, x), scale)


@kinds
@pytest.mark.parametrize("power_of_two", [True, False])
def test_fp8_in_blocks_of_128(device: Device, casts: cuda_headers.Casts, kind: str, power_of_two: bool) -> None:
    """The elements by the headers, under the multiplier 448 / amax (its mantissa cleared)."""
    x = np.tile(np.nan_to_num(matrix(kind).astype(np.float32)), (1, 2))
    blocks = blocks_of(x, 128)
    amax = fmax(blocks)
    with np.errstate(over="ignore", under="ignore"):
        multiplier = np.where(amax == 0, ONE, np.minimum(np.float32(448) / np.where(amax == 0, ONE, amax), FLT_MAX))
        multiplier = multiplier.astype(np.float32)
        if power_of_two:
            multiplier = (multiplier.view(np.uint32) & np.uint32(0xFF800000)).view(np.float32)
        codes = casts.encode(blocks * multiplier[..., None], el.float8_e4m3fn)
    fmt = fp8_e4m3_b128.replace(power_of_two_scales=power_of_two)
    check_blocks(x, fmt, device, flat(codes, x), ONE / multiplier)
