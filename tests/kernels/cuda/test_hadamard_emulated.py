"""The CUDA kernel of `hadamard`, run on the CPU (see `emulator`) against the exact twin, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from nvfp.dtypes.rotation import rotate_exact
from nvfp.kernels.cuda.hadamard import hadamard
from tests.kernels.cuda import emulator
from tests.kernels.dense import bits
from tests.kernels.quantized import BF16, F32, values


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.install(monkeypatch)


def run(x: np.ndarray, axis: int, out: np.ndarray | None = None, *, inverse: bool = False) -> np.ndarray:
    amax = np.zeros((), F32)
    y: np.ndarray = hadamard(x, axis=axis, inverse=inverse, amax_out=amax, out=out)
    magnitudes = np.abs(y.astype(F32))
    assert amax == np.where(np.isfinite(magnitudes), magnitudes, 0).max(initial=0)
    return y


def test_bits() -> None:
    """Vectors along columns and along the groups, and elements one by one where neither fits."""
    for shape, axis in (((64, 80), 0), ((40, 128), 1), ((40, 33), 0), ((3, 17, 12), 1), ((5, 16), 0), ((0, 5), 0)):
        for kind in ("normal", "nonfinite"):
            x = values(kind, shape, BF16)
            assert np.array_equal(bits(run(x, axis)), bits(rotate_exact(x, axis))), (shape, axis)
    x = values("wide", (48, 64), BF16)
    for view in (x.T, x[1:, 3:], x[::-1, ::2]):
        assert np.array_equal(bits(run(view, 0)), bits(rotate_exact(view, 0)))
    base = np.zeros((64, 96), BF16)
    run(x, 0, base[:, ::2].T)
    assert np.array_equal(bits(base[:, ::2].T), bits(rotate_exact(x, 0)))


def test_inverse_of_float32() -> None:
    x = values("normal", (32, 20), F32)
    assert np.array_equal(bits(run(x, 0, inverse=True)), bits(rotate_exact(x, 0, inverse=True)))
