"""`kernels.hadamard` on every device: the exact twin's bits, the matrix in float64, Transformer Engine's values."""

from __future__ import annotations

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.block import quantize_exact
from nvfp.dtypes.formats import nvfp4
from nvfp.dtypes.packing import pack
from nvfp.dtypes.rotation import rotate_exact
from nvfp.kernels.hadamard import hadamard
from tests.data.load import cases, load
from tests.devices import to_device, to_numpy
from tests.kernels.dense import BF16, F16, F32, SPECIAL, bits, views
from tests.kernels.quantized import DTYPES, values
from tests.oracles import hadamard as oracle
from tests.tolerances import check

SHAPES = [((64, 80), 0), ((64, 80), 1), ((40, 33), 0), ((40, 33), 1), ((3, 17, 12), 1), ((2, 3, 64), -1), ((5,), 0)]


@pytest.mark.sanitizer
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits(device: Device, dtype: np.dtype, inverse: bool) -> None:
    for shape, axis in SHAPES:
        for kind in ("normal", "wide", "tiny", "zeros", "nonfinite", "huge"):
            x = values(kind, shape, dtype)
            y = to_numpy(hadamard(to_device(x, device), axis=axis, inverse=inverse))
            assert y.dtype == BF16
            assert np.array_equal(bits(y), bits(rotate_exact(x, axis, inverse=inverse))), (shape, axis, kind)
    x = values("normal", (64, 80), dtype)
    with np.errstate(all="ignore"):
        scale = oracle.MATRIX[0, 0] * np.abs(x.astype(np.float64)).max()
    check(hadamard(x, axis=0, inverse=inverse), oracle.hadamard(x, 0, inverse=inverse), "hadamard", scale=16 * scale)


@pytest.mark.parametrize("case", cases("blocks_nvfp4_variants", "rotated"))
def test_transformer_engine(device: Device, case: str) -> None:
    """Its reference rotates x^T in groups of 16 of M; the sign of a zero is not meant."""
    x = load("blocks_nvfp4_variants")[f"input.bf16.nvfp4.{case.split('.', 3)[3]}.x"]
    amax = to_device(np.zeros((), F32), device)
    y = to_numpy(hadamard(to_device(x, device), axis=0, amax_out=amax)).T
    wanted = load("blocks_nvfp4_variants")[f"{case}.rotated"]
    assert np.array_equal(bits(y)[y != 0], bits(wanted)[y != 0])
    assert not wanted[y == 0].any()
    assert to_numpy(amax) == load("blocks_nvfp4_variants")[f"{case}.columnwise_amax"][0]


def test_there_and_back(device: Device) -> None:
    x = values("normal", (64, 48), BF16)
    turned = hadamard(to_device(x, device), axis=0)
    back = to_numpy(hadamard(turned, axis=0, inverse=True)).astype(F32)
    assert np.abs(back - x.astype(F32)).max() < 2.0**-6
    impulse = np.zeros((16, 3), F32)
    impulse[0] = 4
    assert (to_numpy(hadamard(to_device(impulse, device), axis=0)) == 1).all()


def test_worked_example(device: Device) -> None:
    """te-numerics B5.6: 1 to 16 down one column; exact in bfloat16, and the sum of squares stays."""
    x = np.arange(1, 17, dtype=F32).reshape(16, 1)
    y = to_numpy(hadamard(to_device(x, device), axis=0)).astype(F32)[:, 0]
    wanted = [-15.5, -7.5, 7.5, -0.5, 7.5, -0.5, -15.5, 8.5, 8.5, 16.5, 1.5, 1.5, 1.5, -2.5, 10.5, -17.5]
    assert y.tolist() == wanted and (y * y).sum() == (x * x).sum() == 1496
    blocks = quantize_exact(x, nvfp4, axis=0, rotation="rht16")
    assert blocks.scale.ravel().tolist() == [0x7E]
    assert pack(blocks.codes[:, 0]).tobytes() == bytes.fromhex("DF85855F7511A1F6")


def test_products_survive(device: Device) -> None:
    """H H^T = I, and (H x)^T (H y) = x^T y, exactly: multiples of 4 give small integers, which bfloat16 holds."""
    assert np.array_equal(oracle.MATRIX @ oracle.MATRIX.T, np.eye(16))
    rng = np.random.default_rng(0)
    x, y = (4.0 * rng.integers(-4, 5, (48, n)).astype(F32) for n in (24, 40))
    turned = [to_numpy(hadamard(to_device(a, device), axis=0)).astype(np.float64) for a in (x, y)]
    assert np.array_equal(turned[0].T @ turned[1], x.astype(np.float64).T @ y)


@pytest.mark.parametrize("axis", [0, 1])
def test_layouts_and_out(device: Device, axis: int) -> None:
    for dtype in (BF16, F32, F16):
        for view in views(values("normal", (48, 70), dtype)):
            if view.ndim != 2:
                continue
            wanted = bits(rotate_exact(view, axis))
            assert np.array_equal(bits(to_numpy(hadamard(to_device(view, device), axis=axis))), wanted)
    x = values("normal", (48, 64), BF16)
    base = to_device(np.zeros((64, 100), BF16), device)
    out = base[:, 1:97:2].T
    assert hadamard(to_device(x, device), axis=axis, out=out) is out
    assert np.array_equal(bits(to_numpy(base)[:, 1:97:2].T), bits(rotate_exact(x, axis)))
    assert not to_numpy(base)[:, 0:97:2].any()
    for shape in ((0, 5), (5, 0)):
        got = hadamard(to_device(np.zeros(shape, F32), device), axis=axis)
        assert got.shape == rotate_exact(np.zeros(shape, F32), axis).shape


def test_amax_and_special_values(device: Device) -> None:
    with np.errstate(all="ignore"):
        x = np.resize(np.array(SPECIAL, F32), (32, 16 * 3)).astype(BF16)
        x[16:] = np.arange(16)[:, None]
    word = to_device(np.asarray(5.0, F32), device)
    y = to_numpy(hadamard(to_device(x, device), axis=0, amax_out=word))
    assert np.array_equal(bits(y), bits(rotate_exact(x, 0)))
    largest = np.abs(y.astype(F32))
    assert to_numpy(word) == max(5.0, largest[np.isfinite(largest)].max())


def test_what_does_not_fit(device: Device) -> None:
    x = to_device(np.ones((4, 4), F32), device)
    with pytest.raises(TypeError, match="float32, bfloat16"):
        hadamard(to_device(np.ones(16, np.int32), device))
    with pytest.raises(ValueError, match="axis"):
        hadamard(x, axis=2)
    with pytest.raises(ValueError, match="at least one axis"):
        hadamard(to_device(np.ones((), F32), device))
    with pytest.raises(ValueError, match="out as bfloat16"):
        hadamard(x, out=to_device(np.ones((4, 16), F32), device))
    with pytest.raises(TypeError, match="amax_out as a float32"):
        hadamard(x, amax_out=0.0)
