"""`kernels.amax` on every device."""

from __future__ import annotations

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.codec import round_to_odd32
from nvfp.kernels.amax import amax
from tests.devices import to_device, to_numpy
from tests.kernels.quantized import DTYPES, F32, F64, KINDS, values


def exact(x: np.ndarray, finite: bool) -> np.ndarray:
    magnitude = np.abs(round_to_odd32(x))
    keep = np.isfinite(magnitude) if finite else ~np.isnan(magnitude)
    return np.asarray(magnitude[keep].max(initial=0), F32)


@pytest.mark.sanitizer
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values(device: Device, dtype: np.dtype, kind: str) -> None:
    x = values(kind, (37, 75), dtype)
    for finite in (False, True):
        word = to_numpy(amax(to_device(x, device), finite=finite))
        assert word.shape == ()
        assert word.dtype == F32
        assert word == exact(x, finite)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (100003,), (2, 3, 5, 7), (40000, 3)], ids=str)
def test_shapes(device: Device, shape: tuple[int, ...]) -> None:
    x = values("normal", shape)
    assert to_numpy(amax(to_device(x, device))) == exact(x, False)


def test_strides(device: Device) -> None:
    base = values("normal", (30, 4, 50))
    for x in (base[::-1, ::2, ::-3], base.transpose(2, 0, 1), base[:, 1].T, np.broadcast_to(base[:, :1], base.shape)):
        assert to_numpy(amax(to_device(x, device))) == exact(x, False)


def test_all_skipped(device: Device) -> None:
    x = np.full(7, np.nan, F32)
    assert to_numpy(amax(to_device(x, device))) == 0
    x[3] = -np.inf
    assert to_numpy(amax(to_device(x, device))) == np.inf
    assert to_numpy(amax(to_device(x, device), finite=True)) == 0


def test_out_keeps_the_maximum(device: Device) -> None:
    history = to_device(np.array([0.0, 9.0], F32), device)
    for slot, wanted in ((0, 3.0), (1, 9.0)):
        out = history[slot, ...]
        assert amax(to_device(np.array([-3.0, 1.0], F32), device), out=out) is out
        assert to_numpy(history)[slot] == wanted


def test_what_does_not_fit(device: Device) -> None:
    with pytest.raises(TypeError, match="float32, bfloat16"):
        amax(to_device(np.arange(3), device))
    with pytest.raises(TypeError, match="out as a float32 array"):
        amax(to_device(np.ones(3, F32), device), out=to_device(np.ones((), F64), device))
