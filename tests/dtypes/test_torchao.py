"""Whole matrices against torchao 0.18: its MX rules FLOOR, EVEN and RCEIL, and where they part from nvfp's."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.block import quantize_exact
from nvfp.dtypes.codec import encode
from nvfp.dtypes.formats import QuantDType, mxfp4, mxfp6_e2m3, mxfp6_e3m2, mxfp8_e4m3, mxfp8_e5m2
from nvfp.dtypes.packing import unpack
from tests.devices import need_oracle
from tests.dtypes.block_inputs import check_blocks, matrix

pytestmark = pytest.mark.oracle
RULES = {"floor": "FLOOR", "even": "EVEN", "ceil": "RCEIL"}
ROWS = {mxfp8_e4m3: "float8_e4m3fn", mxfp8_e5m2: "float8_e5m2", mxfp6_e2m3: "fp6_e2m3", mxfp6_e3m2: "fp6_e3m2",
        mxfp4: "float4_e2m1fn_x2"}  # fmt: skip
KINDS = ("normal", "tails", "bf16", "wide", "ties")  # tiny blocks: its scale byte 0 is not the scale it divides by


@pytest.fixture(scope="module")
def to_mx() -> Any:
    """torchao's quantizer as (x, row, rule) -> unpacked codes and scale bytes."""
    torch = need_oracle("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what its modules warn of when they load
        need_oracle("torchao")
        from torchao.prototype.mx_formats.config import ScaleCalculationMode
        from torchao.prototype.mx_formats.mx_tensor import to_mx as call

    def quantize(x: np.ndarray, fmt: QuantDType, rule: str) -> tuple[np.ndarray, np.ndarray]:
        name = ROWS[fmt]
        kind = name if name.startswith("fp6") else getattr(torch, name)
        tensor = torch.from_numpy(x.astype(np.float32))
        tensor = tensor if x.dtype == np.float32 else tensor.to(torch.bfloat16)
        scale, codes = call(tensor, kind, 32, ScaleCalculationMode[RULES[rule]])
        raw = codes.view(torch.uint8).numpy()
        return (unpack(raw, x.shape[1]) if fmt.element.packed else raw), scale.view(torch.uint8).numpy()

    return quantize


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fmt", ROWS, ids=str)
def test_mx(device: Device, to_mx: Any, fmt: QuantDType, rule: str, kind: str) -> None:
    x = matrix(kind)
    codes, scale = to_mx(x, fmt, rule)
    check_blocks(x, fmt.replace(scale_rule=rule), device, codes, scale)


@pytest.mark.parametrize("fmt", [mxfp8_e4m3, mxfp4], ids=str)
def test_scales_by_a_logarithm(to_mx: Any, fmt: QuantDType) -> None:
    """docs/formats.md: RCEIL is one step too small for most amax one bit above max * 2**e, and right beside those."""
    edge = (fmt.element.max * np.exp2(np.arange(-20.0, 21))).astype(np.float32)
    x = np.zeros((3, edge.size, 32), np.float32)
    above = np.nextafter(edge, np.float32(np.inf))
    x[0, :, 5], x[1, :, 5], x[2, :, 5] = above, edge, np.nextafter(above, np.float32(np.inf)) * (1 + 2.0**-15)
    scale = np.stack([to_mx(part, fmt, "ceil")[1] for part in x])
    ours = np.stack([quantize_exact(part, fmt).scale for part in x])
    np.testing.assert_array_equal(scale[1:], ours[1:])
    short = (ours - scale)[0]
    assert set(short.ravel().tolist()) == {0, 1}
    assert short.mean() > 0.5


@pytest.mark.parametrize("fmt", [mxfp8_e4m3, mxfp4], ids=str)
def test_scale_byte_0(to_mx: Any, fmt: QuantDType) -> None:
    """Equal scales on tiny blocks; where the byte is 0 torchao 0.18 divides by 2**-126 in place of 2**-127."""
    x = matrix("tiny")
    codes, scale = to_mx(x, fmt, "floor")
    ours = quantize_exact(x, fmt.replace(scale_rule="floor"))
    np.testing.assert_array_equal(scale, ours.scale)
    least = np.repeat(scale == 0, 32, axis=1)
    np.testing.assert_array_equal(codes[~least], ours.codes[~least])
    theirs = encode(np.float64(x) * 2.0**126, fmt.element)
    np.testing.assert_array_equal(codes[least], theirs[least])
    assert (codes[least] != ours.codes[least]).any()
