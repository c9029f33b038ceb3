"""`kernels.rope` on every device, against rotation matrices in float64 and against the CPU's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.device import Device
from nvfp.kernels.rope import rope
from tests.devices import need_oracle, to_device, to_numpy
from tests.kernels.dense import BF16, COMPUTED, F32, bits, normal
from tests.oracles import rope as oracle
from tests.tolerances import check

dtypes = pytest.mark.parametrize("dtype", COMPUTED, ids=str)
interleavings = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
SHAPES = [
    ((2, 5, 3, 64), 64), ((1, 7, 2, 24), 16), ((3, 2, 1, 10), 6), ((2, 3, 2, 2), 2), ((1, 4, 5, 7), 4),
    ((2, 1, 2, 600), 600), ((5, 3, 2, 16), 0),
]  # fmt: skip


def angles(positions: int, rotated: int, interleaved: bool, base: float = 10000.0) -> np.ndarray:
    """TE's table: the angle of a pair stands at both of its elements."""
    theta = np.outer(np.arange(positions), base ** (-np.arange(0, rotated, 2) / max(rotated, 1)))
    return (np.repeat(theta, 2, axis=1) if interleaved else np.hstack([theta, theta])).astype(F32)


def run(x: np.ndarray, freqs: np.ndarray, device: Device, **options: Any) -> np.ndarray:
    return to_numpy(rope(to_device(x, device), to_device(freqs, device), **options))


@pytest.mark.sanitizer
@dtypes
@interleavings
@pytest.mark.parametrize(("shape", "rotated"), SHAPES, ids=str)
def test_values(device: Device, shape: tuple[int, ...], rotated: int, dtype: np.dtype, interleaved: bool) -> None:
    x, freqs = normal(shape, dtype), angles(shape[1] + 2, rotated, interleaved)
    for inverse in (False, True):
        options = {"interleaved": interleaved, "inverse": inverse}
        y = run(x, freqs, device, **options)
        assert (y.dtype, y.shape) == (dtype, shape)
        check(y, oracle.rope(x, freqs, **options), "rope", scale=np.abs(x.astype(F32)).max())
        assert np.array_equal(bits(y), bits(run(x, freqs, Device("cpu"), **options)))
        assert np.array_equal(bits(y[..., rotated:]), bits(x[..., rotated:]))


@interleavings
def test_inverse_undoes_and_is_the_transpose(device: Device, interleaved: bool) -> None:
    x, dy = normal((2, 6, 3, 16)), normal((2, 6, 3, 16), seed=1)
    freqs = angles(6, 12, interleaved)
    there = run(x, freqs, device, interleaved=interleaved)
    back = run(there, freqs, device, interleaved=interleaved, inverse=True)
    check(back, x, "rope", scale=4.0)
    free = normal((6, 12), seed=2, scale=3.0)  # every element its own angle: still the transpose
    y = run(x, free, device, interleaved=interleaved).astype(np.float64)
    dx = run(dy, free, device, interleaved=interleaved, inverse=True).astype(np.float64)
    check((y * dy).sum(), (x * dx).sum(), "rope", F32, scale=np.abs(y * dy).sum())


def test_angles_of_all_sizes(device: Device) -> None:
    """x = (1, 0) gives cosine and sine themselves: near float64, and the CPU's bits."""
    for top, limit in ((3.0, 2.0**-23.7), (2.0**17, 2.0**-23.7), (2.0**22, 2.0**-21.5)):
        freqs = np.random.default_rng(0).uniform(-top, top, (1000, 200)).astype(F32)
        freqs[::3] = np.round(freqs[::3])
        freqs[:, 100:] = freqs[:, :100]
        x = np.zeros((1, 1000, 1, 200), F32)
        x[..., :100] = 1
        y = run(x, freqs, device)[0, :, 0]
        exact = freqs.astype(np.float64)
        assert np.abs(y[:, :100] - np.cos(exact[:, :100])).max() < limit
        assert np.abs(y[:, 100:] - np.sin(exact[:, 100:])).max() < limit
        assert np.array_equal(bits(y), bits(run(x, freqs, Device("cpu"))[0, :, 0]))
    odd = np.array([[0.0, 0.0], [-0.0, -0.0], [1e-40, 1e-40], [np.inf, np.inf], [np.nan, np.nan], [5e6, 5e6]], F32)
    y = run(np.array([1, 0] * 6, F32).reshape(1, 6, 1, 2), odd, device)[0, :, 0]
    assert y[:3].tolist() == [[1, 0], [1, 0], [1, float(F32.type(1e-40))]]
    assert np.isnan(y[3:]).all()


@interleavings
@dtypes
def test_special_values_stay_in_their_pair(device: Device, dtype: np.dtype, interleaved: bool) -> None:
    x, freqs = normal((1, 3, 2, 16), dtype), angles(3, 8, interleaved)
    plain = run(x, freqs, device, interleaved=interleaved)
    x[0, 1, 1, 1], x[0, 1, 1, 12], x[0, 2, 0, 0] = np.nan, np.inf, np.inf
    y = run(x, freqs, device, interleaved=interleaved)
    touched = np.zeros(x.shape, bool)
    for position, head, i in ((1, 1, 1), (2, 0, 0)):
        touched[0, position, head, [i, (i ^ 1) if interleaved else (i + 4) % 8]] = True
    assert not np.isfinite(y[touched].astype(F32)).any()
    touched[0, 1, 1, 12] = True
    assert y[0, 1, 1, 12] == np.inf
    assert np.array_equal(bits(y)[~touched], bits(plain)[~touched])
    assert np.array_equal(bits(y), bits(run(x, freqs, Device("cpu"), interleaved=interleaved)))


@interleavings
@dtypes
def test_layouts(device: Device, dtype: np.dtype, interleaved: bool) -> None:
    """Slices of a fused buffer, other orders of axes, negative and zero strides: the bits of a contiguous copy."""
    fused = normal((2, 6, 4, 3, 32), dtype)
    freqs = angles(8, 16, interleaved)
    views = [
        fused[:, :, :, 1], fused[:, :, :, 2, 1:], fused[:, ::-2, :, 0], fused.transpose(1, 0, 2, 3, 4)[..., 0, :],
        fused[..., 0, ::-1], np.broadcast_to(fused[:1, :1, :, 0], (2, 6, 4, 32)), fused[:, :0, :, 0],
        fused[:0, :, :, 0], fused[:, :, :0, 0],
    ]  # fmt: skip
    for view in views:
        for options in ({}, {"inverse": True}):
            expected = run(np.ascontiguousarray(view), freqs, Device("cpu"), interleaved=interleaved, **options)
            assert np.array_equal(bits(run(view, freqs, device, interleaved=interleaved, **options)), bits(expected))
    wide = np.zeros((8, 40), F32)
    wide[:, ::-1][:, 3:35:2] = freqs
    strided = run(fused[:, :, :, 0], wide[:, ::-1][:, 3:35:2], device, interleaved=interleaved)
    assert np.array_equal(bits(strided), bits(run(fused[:, :, :, 0].copy(), freqs, device, interleaved=interleaved)))


@interleavings
def test_out_and_in_place(device: Device, interleaved: bool) -> None:
    fused, freqs = normal((2, 6, 4, 3, 32), BF16), angles(6, 16, interleaved)
    expected = fused.copy()
    for part in (0, 1):  # Q and K of a fused buffer, where they stand
        expected[:, :, :, part] = run(fused[:, :, :, part], freqs, device, interleaved=interleaved)
    buffer, table = to_device(fused.copy(), device), to_device(freqs, device)
    for part in (0, 1):
        view = buffer[:, :, :, part]
        assert rope(view, table, interleaved=interleaved, out=view) is view
    assert np.array_equal(bits(to_numpy(buffer)), bits(expected))
    turned = to_device(np.zeros((32, 4, 6, 2), BF16), device)
    rope(to_device(fused[:, :, :, 0], device), table, interleaved=interleaved, out=turned.T)
    assert np.array_equal(bits(to_numpy(turned).T), bits(expected[:, :, :, 0]))


@given(data=st.data(), interleaved=st.booleans(), dtype=st.sampled_from(COMPUTED))
def test_any_shape(device: Device, data: st.DataObject, interleaved: bool, dtype: np.dtype) -> None:
    shape = tuple(data.draw(st.integers(0, n)) for n in (3, 5, 4, 40))
    rotated = 2 * data.draw(st.integers(0, shape[3] // 2))
    x, freqs = normal(shape, dtype), normal((shape[1] + 1, rotated), seed=1, scale=50.0)
    y = run(x, freqs, device, interleaved=interleaved)
    assert np.array_equal(bits(y), bits(run(x, freqs, Device("cpu"), interleaved=interleaved)))
    check(y, oracle.rope(x, freqs, interleaved=interleaved), "rope", scale=4.0)


@pytest.mark.parametrize("threads", ["1", "3"])
def test_threads(monkeypatch: pytest.MonkeyPatch, threads: str) -> None:
    x, freqs = normal((3, 50, 12, 64), BF16), angles(50, 64, False)
    expected = run(x, freqs, Device("cpu"))
    monkeypatch.setenv("NVFP_NUM_THREADS", threads)
    assert np.array_equal(bits(run(x, freqs, Device("cpu"))), bits(expected))


@pytest.mark.oracle
@interleavings
def test_torch_complex_product(device: Device, interleaved: bool) -> None:
    """The rotation is a product with exp(i theta), where a pair is a complex number."""
    torch = need_oracle("torch")
    x, freqs = normal((2, 9, 3, 32)), angles(9, 32, interleaved)
    t = torch.tensor(x, dtype=torch.float64)
    theta = torch.tensor(freqs[:, 0::2] if interleaved else freqs[:, :16], dtype=torch.float64)[None, :, None]
    a, b = (t[..., 0::2], t[..., 1::2]) if interleaved else t.split(16, dim=-1)
    z = torch.complex(a, b) * torch.polar(torch.ones_like(theta), theta)
    y = torch.stack([z.real, z.imag], dim=-1).flatten(-2) if interleaved else torch.cat([z.real, z.imag], dim=-1)
    check(run(x, freqs, device, interleaved=interleaved), y.numpy(), "rope", scale=4.0)


def test_what_does_not_fit(device: Device) -> None:
    x, freqs = to_device(np.ones((1, 3, 2, 8), F32), device), to_device(np.ones((3, 8), F32), device)
    with pytest.raises(ValueError, match=r"x \[B, L, H, D\]"):
        rope(x[0], freqs)
    for wrong in (freqs[:2], freqs[:, :7], freqs[0], to_device(np.ones((3, 10), F32), device)):
        with pytest.raises(ValueError, match=r"L' >= 3 and R <= 8 even"):
            rope(x, wrong)
    with pytest.raises(TypeError, match="float32 freqs"):
        rope(x, to_device(np.ones((3, 8), BF16), device))
    with pytest.raises(TypeError, match="x of float32, bfloat16"):
        rope(to_device(np.ones((1, 3, 2, 8)), device), freqs)
    with pytest.raises(ValueError, match="out as float32"):
        rope(x, freqs, out=to_device(np.ones((1, 3, 2, 9), F32), device))
