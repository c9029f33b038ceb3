"""`kernels.activation` on every device, against float64 and against the CPU's bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.device import Device
from nvfp.kernels.activation import KINDS, activation, activation_vjp
from tests.devices import need_oracle, to_device, to_numpy
from tests.kernels.dense import BF16, COMPUTED, F16, F32, SPECIAL, arrays, bits, normal, views
from tests.oracles import activation as oracle
from tests.tolerances import check

kinds = pytest.mark.parametrize("kind", KINDS)
dtypes = pytest.mark.parametrize("dtype", COMPUTED, ids=str)


def run(x: np.ndarray, kind: str, device: Device) -> np.ndarray:
    return to_numpy(activation(to_device(x, device), kind))


def run_vjp(x: np.ndarray, dy: np.ndarray, kind: str, device: Device) -> np.ndarray:
    return to_numpy(activation_vjp(to_device(x, device), to_device(dy, device), kind))


@kinds
def test_oracle_gradient_is_the_difference_quotient(kind: str) -> None:
    x, h = normal((200,), scale=3.0).astype(np.float64), 1e-6
    x = x[np.abs(x) > 1e-3]
    slope = (oracle.activation(x + h, kind) - oracle.activation(x - h, kind)) / (2 * h)
    np.testing.assert_allclose(oracle.activation_vjp(x, np.ones_like(x), kind), slope, atol=1e-8)


@pytest.mark.sanitizer
@kinds
@dtypes
def test_values(device: Device, dtype: np.dtype, kind: str) -> None:
    x, dy = normal((37, 75), dtype, scale=4.0), normal((37, 75), dtype, 1)
    y, dx = run(x, kind, device), run_vjp(x, dy, kind, device)
    assert y.dtype == dx.dtype == dtype
    check(y, oracle.activation(x, kind), "activation")
    check(dx, oracle.activation_vjp(x, dy, kind), "activation", scale=1 + np.abs(dy.astype(np.float64)))


@kinds
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_every_16_bit_value(device: Device, dtype: np.dtype, kind: str) -> None:
    """All 65,536 inputs: near float64, and the CPU's bits."""
    x = np.arange(65536, dtype=np.uint16).view(dtype)
    dy = np.full(x.shape, -1.5, dtype)
    y, dx = run(x, kind, device), run_vjp(x, dy, kind, device)
    check(y, oracle.activation(x, kind), "activation")
    check(dx, oracle.activation_vjp(x, dy, kind), "activation")
    assert np.array_equal(bits(y), bits(activation(x, kind)))
    assert np.array_equal(bits(dx), bits(activation_vjp(x, dy, kind)))


@kinds
def test_float32_bits_of_all_magnitudes(device: Device, kind: str) -> None:
    x = np.random.default_rng(0).integers(0, 2**32, 100_003, np.uint32).view(F32)
    dy = normal(x.shape)
    assert np.array_equal(bits(run(x, kind, device)), bits(activation(x, kind)))
    assert np.array_equal(bits(run_vjp(x, dy, kind, device)), bits(activation_vjp(x, dy, kind)))


@kinds
@dtypes
def test_layouts(device: Device, dtype: np.dtype, kind: str) -> None:
    for view in views(normal((40, 70), dtype, scale=3.0)):
        dy = normal(view.shape, dtype, 1).T.copy().T
        assert np.array_equal(run(view, kind, device), activation(np.ascontiguousarray(view), kind))
        expected = activation_vjp(np.ascontiguousarray(view), np.ascontiguousarray(dy), kind)
        assert np.array_equal(run_vjp(view, dy, kind, device), expected)
    for shape in ((), (1,), (100_003,)):
        assert run(normal(shape, dtype), kind, device).shape == shape


@given(data=st.data(), kind=st.sampled_from(list(KINDS)), dtype=st.sampled_from(COMPUTED))
def test_any_view(device: Device, data: st.DataObject, kind: str, dtype: np.dtype) -> None:
    x = data.draw(arrays(dtype))
    dy = normal(x.shape, dtype, 5)
    check(run(x, kind, device), oracle.activation(x, kind), "activation")
    check(run_vjp(x, dy, kind, device), oracle.activation_vjp(x, dy, kind), "activation", scale=3)


@kinds
def test_in_place_and_strided_out(device: Device, kind: str) -> None:
    x, dy = normal((33, 50)), normal((33, 50), seed=1)
    y, dx = activation(x, kind), activation_vjp(x, dy, kind)
    for target in (0, 1):
        arguments = [to_device(x.copy(), device), to_device(dy.copy(), device)]
        out = arguments[target]
        assert activation_vjp(*arguments, kind, out=out) is out
        assert np.array_equal(to_numpy(out), dx)
    base = to_device(np.zeros((50, 66), F32), device)
    assert activation(to_device(x, device), kind, out=base[:, ::2].T) is not None
    assert np.array_equal(to_numpy(base)[:, ::2].T, y)
    assert not to_numpy(base)[:, 1::2].any()


def test_special_values(device: Device) -> None:
    x = np.array(SPECIAL, F32)
    with np.errstate(all="raise"):  # no warning on the way either
        found = {kind: run(x, kind, device) for kind in KINDS}
        slopes = {kind: run_vjp(x, np.ones_like(x), kind, device) for kind in KINDS}
    at = {value: i for i, value in enumerate(SPECIAL)}
    for kind in ("gelu", "silu"):
        assert found[kind][at[np.inf]] == np.inf
        assert np.isnan(found[kind][at[-np.inf]])
        assert slopes[kind][at[np.inf]] == slopes[kind][at[60000.0]] == 1
        assert slopes[kind][at[-np.inf]] == slopes[kind][at[-60000.0]] == 0
    assert np.signbit(found["gelu"][1])  # -0
    assert np.isnan([*(f[6] for f in found.values()), *(s[6] for s in slopes.values())]).all()
    blocked = run_vjp(np.array([-1, 0, 2], F32), np.array([np.inf, np.nan, np.inf], F32), "relu", device)
    assert blocked.tolist() == [0, 0, np.inf]


@pytest.mark.oracle
@kinds
def test_torch(device: Device, kind: str) -> None:
    torch = need_oracle("torch")
    f = {"gelu": lambda t: torch.nn.functional.gelu(t, approximate="tanh"), "relu": torch.relu}
    x, dy = normal((500,), scale=4.0), normal((500,), seed=1)
    t = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    y = f.get(kind, torch.nn.functional.silu)(t)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    check(run(x, kind, device), y.detach().numpy(), "activation")
    check(run_vjp(x, dy, kind, device), t.grad.numpy(), "activation", scale=1 + np.abs(dy))


def test_what_does_not_fit(device: Device) -> None:
    x = to_device(np.ones(3, F32), device)
    with pytest.raises(ValueError, match="gelu, relu, silu"):
        activation(x, "swiglu")
    with pytest.raises(TypeError, match="float32, bfloat16"):
        activation(to_device(np.ones(3), device))
    with pytest.raises(ValueError, match="dy of shape"):
        activation_vjp(x, to_device(np.ones(2, F32), device))
    with pytest.raises(TypeError, match="dy of float32"):
        activation_vjp(x, to_device(np.ones(3, F16), device))
    with pytest.raises(ValueError, match="out as float32"):
        activation(x, out=to_device(np.ones(2, F32), device))
