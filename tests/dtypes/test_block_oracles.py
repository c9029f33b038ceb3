"""Whole matrices against quantizers of others: gfloat's for every MX row (OCP's rule), torch's casts for FP8."""

from __future__ import annotations

from typing import Any

import gfloat
import gfloat.formats as gf
import numpy as np
import pytest
from gfloat.block import compute_scale_amax, encode_block

import nvfp as nf
from nvfp.device import Device
from nvfp.dtypes.block import quantize_exact
from nvfp.dtypes.formats import (
    QuantDType,
    fp8_e4m3,
    mxfp4,
    mxfp6_e2m3,
    mxfp6_e3m2,
    mxfp8_e4m3,
    mxfp8_e5m2,
    mxint8,
)
from tests.devices import need_oracle
from tests.dtypes.block_inputs import KINDS, blocks_of, check_blocks, matrix, public_blocks
from tests.dtypes.test_codec_oracles import by_torch

MX = {
    mxfp8_e4m3: gf.format_info_mxfp8_e4m3,
    mxfp8_e5m2: gf.format_info_mxfp8_e5m2,
    mxfp6_e2m3: gf.format_info_mxfp6_e2m3,
    mxfp6_e3m2: gf.format_info_mxfp6_e3m2,
    mxfp4: gf.format_info_mxfp4_e2m1,
    mxint8: gf.format_info_mxint8,
}


def by_gfloat(x: np.ndarray, fmt: QuantDType) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scale bytes and whether a block is finite (gfloat has no rule for others: they are 0 here)."""
    info: Any = MX[fmt]
    with np.errstate(invalid="ignore"):
        parts = blocks_of(x, 32).astype(np.float64)
    finite = np.isfinite(parts).all(-1)
    parts = np.where(finite[..., None], parts, 0)
    scale = np.array([[compute_scale_amax(info.etype.emax, block) for block in row] for row in parts])
    rounded = gfloat.round_ndarray(info.etype, parts / scale[..., None], gfloat.RoundMode.TiesToEven, True)
    codes = gfloat.encode_ndarray(info.etype, rounded).astype(np.uint8).reshape(len(x), -1)
    return codes[:, : x.shape[1]], (np.log2(scale) + 127).astype(np.uint8), finite


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fmt", MX, ids=str)
def test_gfloat_mx(device: Device, fmt: QuantDType, kind: str) -> None:
    x = matrix(kind)
    codes, scale, finite = by_gfloat(x, fmt)
    assert finite.all() == (kind != "nonfinite")
    check_blocks(x, fmt.replace(scale_rule="floor"), device, codes, scale, finite)


@pytest.mark.parametrize("fmt", MX, ids=str)
def test_gfloat_encodes_whole_blocks_so(fmt: QuantDType) -> None:
    """Its own function for a block (slow) gives what the vectorised call above gives."""
    info: Any = MX[fmt]
    for kind in KINDS[:-2]:
        x = matrix(kind)[7:8]
        block = x[0, :32].astype(np.float64)
        scale = compute_scale_amax(info.etype.emax, block)
        limit = float(info.etype.max)
        theirs = [int(b) for b in encode_block(info, scale, np.clip(block / scale, -limit, limit))]
        codes, byte, _ = by_gfloat(x, fmt)
        assert (theirs[0], theirs[1:]) == (byte[0, 0], codes[0, :32].tolist())


@pytest.mark.oracle
@pytest.mark.parametrize("kind", KINDS)
def test_torch_tensorwise(device: Device, kind: str) -> None:
    """One scale per tensor as torch users write it: cast(x * (448 / max|x|)), in float32."""
    need_oracle("torch")
    x = np.nan_to_num(matrix(kind).astype(np.float32))
    multiplier = np.float32(448) / np.abs(x).max()
    with np.errstate(over="ignore", under="ignore"):
        codes = by_torch(fp8_e4m3.element)(np.clip(x * multiplier, -448, 448))
    q = nf.quantize(nf.asarray(x, device=device), fp8_e4m3)
    for blocks in (quantize_exact(x, fp8_e4m3), public_blocks(q)):
        np.testing.assert_array_equal(blocks.codes, codes)
        assert blocks.scale == np.float32(1) / multiplier
