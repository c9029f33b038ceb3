"""`quantize(rotation="rht16")`: the column side of the rotated matrix, and products in which the rotation cancels."""

from __future__ import annotations

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.block import quantize_exact
from nvfp.dtypes.formats import QuantDType, fp8_e4m3, fp8_e4m3_b128, mxfp8_e4m3, nvfp4
from nvfp.dtypes.packing import unpack
from nvfp.dtypes.rotation import rotate_exact
from nvfp.dtypes.stochastic import COL_LANE, ROW_LANE
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.gemm import gemm
from nvfp.kernels.hadamard import hadamard
from nvfp.kernels.quantize import other_side, quantize
from tests.data.load import cases, load
from tests.devices import to_device, to_numpy
from tests.kernels.quantized import BF16, DTYPES, F32, check_operand, nvfp4_2d, values
from tests.kernels.test_quantize_stochastic import numbers, rng_on


@pytest.mark.parametrize("fmt", [nvfp4, mxfp8_e4m3, fp8_e4m3_b128], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exact(device: Device, fmt: QuantDType, dtype: np.dtype) -> None:
    for kind, shape in (("normal", (64, 48)), ("nonfinite", (40, 33)), ("wide", (1, 16)), ("normal", (0, 5))):
        x = values(kind, shape, dtype)
        for row in (True, False):
            pair = quantize(to_device(x, device), fmt, row=row, col=True, rotation="rht16")
            assert (pair.row is not None) == row
            if pair.row is not None:
                assert pair.row.rotation == "none"
                check_operand(pair.row, quantize_exact(x, fmt, axis=1), fmt, 1)
            assert pair.col is not None
            assert pair.col.rotation == "rht16"
            check_operand(pair.col, quantize_exact(x, fmt, axis=0, rotation="rht16"), fmt, 0, swap=True)
    plain = quantize(to_device(x, device), fmt, rotation="rht16")
    assert plain.row is not None
    assert plain.row.rotation == "none"


def test_stochastic(device: Device) -> None:
    """As the recipe takes gradients: whole tiles, ragged ones, rows that start no group of random numbers."""
    for kind, shape in (("normal", (128, 256)), ("wide", (200, 144)), ("nonfinite", (37, 70))):
        x = values(kind, shape, BF16)
        pair = quantize(
            to_device(x, device), nvfp4, col=True, rotation="rht16", rounding="stochastic", rng=rng_on(device)
        )
        for side, source, axis, lane in ((pair.row, x, 1, ROW_LANE), (pair.col, rotate_exact(x, 0), 0, COL_LANE)):
            random = numbers(source.shape, nvfp4, lane)
            exact = quantize_exact(source, nvfp4, axis=axis, rounding="stochastic", random=random)
            assert side is not None
            check_operand(side, exact, nvfp4, axis, swap=axis == 0)


@pytest.mark.parametrize("case", cases("blocks_nvfp4_variants", "rotated"))
def test_transformer_engine(device: Device, case: str) -> None:
    """Its reference, byte for byte but for the sign of zero codes."""
    tensors = load("blocks_nvfp4_variants")
    x = tensors[f"input.bf16.nvfp4.{case.split('.', 3)[3]}.x"]
    col = quantize(to_device(x, device), nvfp4, col=True, rotation="rht16").col
    assert col is not None
    np.testing.assert_array_equal(to_numpy(col.scale), tensors[f"{case}.columnwise_scale"])
    columns = col.stored_shape[1]
    codes, theirs = (unpack(c, columns) for c in (to_numpy(col.codes), tensors[f"{case}.columnwise_data"]))
    np.testing.assert_array_equal(np.where(codes == 8, 0, codes), np.where(theirs == 8, 0, theirs))
    assert to_numpy(col.tensor_scale) == tensors[f"{case}.columnwise_amax"][0] / F32.type(2688)


def test_words(device: Device) -> None:
    """The column's amax is that of the rotated values; a given one is used as it is."""
    x = values("normal", (48, 32), BF16)
    rotated = float(np.abs(rotate_exact(x, 0).astype(F32)).max())
    out = tuple(to_device(np.zeros((), F32), device) for _ in range(2))
    quantize(to_device(x, device), nvfp4, col=True, rotation="rht16", amax_out=out)
    assert [float(to_numpy(word)) for word in out] == [float(np.abs(x.astype(F32)).max()), rotated]
    given = tuple(to_device(np.asarray(a, F32), device) for a in (7.0, 9.0))
    pair = quantize(to_device(x, device), nvfp4, col=True, rotation="rht16", amax=given)
    assert pair.row is not None
    assert pair.col is not None
    check_operand(pair.row, quantize_exact(x, nvfp4, axis=1, amax=7.0), nvfp4, 1)
    check_operand(pair.col, quantize_exact(x, nvfp4, axis=0, amax=9.0, rotation="rht16"), nvfp4, 0, swap=True)


@pytest.mark.parametrize("rows", [64, 40])
def test_the_rotation_cancels(device: Device, rows: int) -> None:
    """dW = dy^T x of rotated copies is the product of what they hold, and near that of the unrotated matrix."""
    dy, x = values("normal", (rows, 32), BF16), values("normal", (rows, 48), BF16, seed=1)
    pairs = [quantize(to_device(a, device), mxfp8_e4m3, row=False, col=True, rotation="rht16") for a in (dy, x)]
    left, right = (pair.side("col") for pair in pairs)
    dw = to_numpy(gemm(left.T, right, dtype=F32))
    held = [np.asarray(to_numpy(dequantize(side, F32)), np.float64) for side in (left, right)]
    np.testing.assert_allclose(dw, held[0].T @ held[1], rtol=1e-5, atol=1e-4)
    exact = dy.astype(np.float64).T @ x.astype(np.float64)
    assert np.linalg.norm(dw - exact) < 0.05 * np.linalg.norm(exact)
    back = to_numpy(hadamard(dequantize(right, BF16), axis=0, inverse=True)).astype(F32)
    assert np.linalg.norm(back[:rows] - x.astype(F32)) < 0.05 * np.linalg.norm(x.astype(F32))
    assert back.shape == (48 if rows == 40 else 64, 48)


def test_what_does_not_fit(device: Device) -> None:
    x = to_device(values("normal", (32, 32), BF16), device)
    with pytest.raises(ValueError, match="rotation out of"):
        quantize(x, nvfp4, col=True, rotation="rht32")
    for fmt in (nvfp4_2d, fp8_e4m3):
        with pytest.raises(ValueError, match="blocks along one axis under a rotation"):
            quantize(x, fmt, col=True, rotation="rht16")
    rotated = quantize(x, nvfp4, row=False, col=True, rotation="rht16")
    with pytest.raises(ValueError, match="row side"):
        other_side(rotated, "row")
    with pytest.raises(ValueError, match="both operands rotated"):
        gemm(rotated.side("col").T, x)
