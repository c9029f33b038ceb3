"""`kernels.activation` on every device, against float64 and against the CPU's bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.device import Device
from nvfp.errors import ArgumentError
from nvfp.kernels.activation import CLAMP, KINDS, Clamp, activation, activation_vjp
from tests.devices import need_oracle, to_device, to_numpy
from tests.kernels.dense import BF16, COMPUTED, F16, F32, SPECIAL, arrays, bits, normal, views
from tests.oracles import activation as oracle
from tests.tolerances import check

PLAIN, GATED = ([k for k, kind in KINDS.items() if kind.gated == gated] for gated in (False, True))
kinds, gated_kinds = pytest.mark.parametrize("kind", KINDS), pytest.mark.parametrize("kind", GATED)
dtypes = pytest.mark.parametrize("dtype", COMPUTED, ids=str)


def run(x: np.ndarray, kind: str, device: Device) -> np.ndarray:
    return to_numpy(activation(to_device(x, device), kind))


def run_vjp(x: np.ndarray, dy: np.ndarray, kind: str, device: Device) -> np.ndarray:
    return to_numpy(activation_vjp(to_device(x, device), to_device(dy, device), kind))


def like_result(x: np.ndarray, kind: str, seed: int = 1) -> np.ndarray:
    """A gradient of the result's shape."""
    shape = (*x.shape[:-1], x.shape[-1] // 2) if KINDS[kind].gated else x.shape
    return normal(shape, x.dtype, seed)


def near(actual: np.ndarray, expected: np.ndarray, scale: np.ndarray | float = 1.0) -> None:
    """Within the tolerance, where the result's dtype holds what is right (squares overflow)."""
    with np.errstate(all="ignore"):
        rounded = expected.astype(F32).astype(actual.dtype).astype(np.float64)
    check(actual, np.where(np.isinf(rounded), rounded, expected), "activation", scale=scale)


@pytest.mark.parametrize("kind", PLAIN)
def test_oracle_gradient_is_the_difference_quotient(kind: str) -> None:
    x, h = normal((200,), scale=3.0).astype(np.float64), 1e-6
    x = x[np.abs(x) > 1e-3]
    slope = (oracle.activation(x + h, kind) - oracle.activation(x - h, kind)) / (2 * h)
    np.testing.assert_allclose(oracle.activation_vjp(x, np.ones_like(x), kind), slope, atol=1e-8)


@gated_kinds
def test_oracle_gradient_of_gated_kinds(kind: str) -> None:
    x, h = normal((40, 2), scale=3.0).astype(np.float64), 1e-6
    for half in (0, 1):
        shift = h * (np.arange(2) == half)
        slope = (oracle.activation(x + shift, kind) - oracle.activation(x - shift, kind)) / (2 * h)
        found = oracle.activation_vjp(x, np.ones((40, 1)), kind)[:, half : half + 1]
        np.testing.assert_allclose(found, slope, atol=1e-7)


@pytest.mark.sanitizer
@kinds
@dtypes
def test_values(device: Device, dtype: np.dtype, kind: str) -> None:
    for shape in ((37, 74), (5, 3, 48), (2, 2)):  # rows off and on 16 bytes
        x = normal(shape, dtype, scale=4.0)
        dy = like_result(x, kind)
        y, dx = run(x, kind, device), run_vjp(x, dy, kind, device)
        assert y.dtype == dx.dtype == dtype
        assert (y.shape, dx.shape) == (dy.shape, x.shape)
        near(y, oracle.activation(x, kind), 4.0)
        near(dx, oracle.activation_vjp(x, dy, kind), 30.0)


@kinds
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_every_16_bit_value(device: Device, dtype: np.dtype, kind: str) -> None:
    """All 65,536 inputs (as a; b is 0.75): near float64, and the CPU's bits."""
    x = np.arange(65536, dtype=np.uint16).view(dtype)
    if KINDS[kind].gated:
        x = np.stack([x, np.full(x.shape, 0.75, dtype)], axis=-1)
    dy = np.full(like_result(x, kind).shape, -1.5, dtype)
    y, dx = run(x, kind, device), run_vjp(x, dy, kind, device)
    near(y, oracle.activation(x, kind))
    near(dx, oracle.activation_vjp(x, dy, kind))
    assert np.array_equal(bits(y), bits(activation(x, kind)))
    assert np.array_equal(bits(dx), bits(activation_vjp(x, dy, kind)))


@kinds
def test_float32_bits_of_all_magnitudes(device: Device, kind: str) -> None:
    x = np.random.default_rng(0).integers(0, 2**32, (10_001, 10), np.uint32).view(F32)
    dy = like_result(x, kind)
    assert np.array_equal(bits(run(x, kind, device)), bits(activation(x, kind)))
    assert np.array_equal(bits(run_vjp(x, dy, kind, device)), bits(activation_vjp(x, dy, kind)))


@kinds
@dtypes
def test_layouts(device: Device, dtype: np.dtype, kind: str) -> None:
    for view in views(normal((40, 72), dtype, scale=3.0)):
        if KINDS[kind].gated and view.shape[-1] % 2:
            view = view[:, 1:]
        dy = like_result(view, kind).T.copy().T
        assert np.array_equal(run(view, kind, device), activation(np.ascontiguousarray(view), kind))
        expected = activation_vjp(np.ascontiguousarray(view), np.ascontiguousarray(dy), kind)
        assert np.array_equal(run_vjp(view, dy, kind, device), expected)
    for shape in ((2,), (100_004,), (3, 1, 2)) if KINDS[kind].gated else ((), (1,), (100_003,)):
        x = normal(shape, dtype)
        assert np.array_equal(run(x, kind, device), activation(x, kind))


@given(data=st.data(), kind=st.sampled_from(list(KINDS)), dtype=st.sampled_from(COMPUTED))
def test_any_view(device: Device, data: st.DataObject, kind: str, dtype: np.dtype) -> None:
    x = data.draw(arrays(dtype))
    if KINDS[kind].gated:
        x = x[..., : x.shape[-1] // 2 * 2]
    dy = like_result(x, kind, 5)
    y, dx = run(x, kind, device), run_vjp(x, dy, kind, device)
    assert np.array_equal(bits(y), bits(activation(x, kind)))
    assert np.array_equal(bits(dx), bits(activation_vjp(x, dy, kind)))
    if kind in ("gelu", "relu", "silu", "qgelu"):  # products and squares of special values overflow on the way
        near(y, oracle.activation(x, kind))
        near(dx, oracle.activation_vjp(x, dy, kind), 3)


@kinds
def test_in_place_and_strided_out(device: Device, kind: str) -> None:
    x = normal((33, 50))
    dy = like_result(x, kind)
    y, dx = activation(x, kind), activation_vjp(x, dy, kind)
    for target in (0,) if KINDS[kind].gated else (0, 1):
        arguments = [to_device(x.copy(), device), to_device(dy.copy(), device)]
        out = arguments[target]
        assert activation_vjp(*arguments, kind, out=out) is out
        assert np.array_equal(to_numpy(out), dx)
    base = to_device(np.zeros((y.shape[1], 66), F32), device)
    assert activation(to_device(x, device), kind, out=base[:, ::2].T) is not None
    assert np.array_equal(to_numpy(base)[:, ::2].T, y)
    assert not to_numpy(base)[:, 1::2].any()


def test_special_values(device: Device) -> None:
    x = np.array(SPECIAL, F32)
    with np.errstate(all="raise"):  # no warning on the way either
        found = {kind: run(x, kind, device) for kind in PLAIN}
        slopes = {kind: run_vjp(x, np.ones_like(x), kind, device) for kind in PLAIN}
    at = {value: i for i, value in enumerate(SPECIAL)}
    for kind in ("gelu", "silu", "qgelu"):
        assert found[kind][at[np.inf]] == np.inf
        assert np.isnan(found[kind][at[-np.inf]])
        assert slopes[kind][at[np.inf]] == slopes[kind][at[60000.0]] == 1
        assert slopes[kind][at[-np.inf]] == slopes[kind][at[-60000.0]] == 0
    assert np.signbit(found["gelu"][1])  # -0
    assert np.isnan([*(f[6] for f in found.values()), *(s[6] for s in slopes.values())]).all()
    for kind, passed in (("relu", np.inf), ("srelu", np.inf)):
        blocked = run_vjp(np.array([-1, 0, 2], F32), np.array([np.inf, np.nan, np.inf], F32), kind, device)
        assert blocked.tolist() == [0, 0, passed]


@pytest.mark.parametrize(("gated", "plain"), [("geglu", "gelu"), ("swiglu", "silu"), ("reglu", "relu")])
def test_gated_is_the_plain_kind_times_the_second_half(device: Device, gated: str, plain: str) -> None:
    """In float32, where the plain kind is not rounded in between: the same bits."""
    x = normal((50, 24), scale=3.0)
    assert np.array_equal(run(x, gated, device), run(x[:, :12], plain, device) * x[:, 12:])


@pytest.mark.parametrize("params", [(7.0, 1.702, 1.0), (1.5, 0.7, 0.0), (0.25, -2.0, -3.5)], ids=str)
def test_clamped_swiglu_of_other_numbers(device: Device, params: tuple[float, float, float]) -> None:
    x = normal((60, 34), scale=4.0)
    dy = like_result(x, "swiglu")
    given = {"params": Clamp(*params)}
    y = activation(to_device(x, device), "clamped_swiglu", **given)
    dx = activation_vjp(to_device(x, device), to_device(dy, device), "clamped_swiglu", **given)
    near(to_numpy(y), oracle.activation(x, "clamped_swiglu", params), 8.0)
    near(to_numpy(dx), oracle.activation_vjp(x, dy, "clamped_swiglu", params), 30.0)
    assert np.array_equal(bits(to_numpy(y)), bits(activation(x, "clamped_swiglu", **given)))
    assert np.array_equal(bits(to_numpy(dx)), bits(activation_vjp(x, dy, "clamped_swiglu", **given)))
    assert (given["params"] == CLAMP) == np.array_equal(to_numpy(y), run(x, "clamped_swiglu", device))


def test_clamped_swiglu_at_and_beyond_its_limits(device: Device) -> None:
    """At the limit the gradient passes; beyond it nothing does, not even inf; NaN stays NaN in its own half."""
    nan, inf = np.nan, np.inf
    a, b = np.array([7, 8, inf, 1, 1, 1, nan, 1], F32), np.array([1, 1, 1, -7, 9, -inf, 1, nan], F32)
    x = np.stack([a, b], axis=-1)
    y = run(x, "clamped_swiglu", device)[:, 0]
    assert y[0] == y[1] == y[2] and y[3] / y[4] == -6 / 8 and y[5] == y[3] and np.isnan(y[6:]).all()
    passes = [[True, True], *[[False, True]] * 2, [True, True], *[[True, False]] * 2]
    for dy, passed in ((1.0, lambda g: g != 0), (inf, lambda g: ~(g == 0))):
        dx = run_vjp(x, np.full((8, 1), dy, F32), "clamped_swiglu", device)
        assert np.array_equal(passed(dx[:6]), passes)
        assert np.isnan(dx[6, 0]) and np.isnan(dx[7]).all()


def test_parameters_that_a_kind_does_not_take(device: Device) -> None:
    x = to_device(np.ones(4, F32), device)
    for kind, params in (
        ("swiglu", CLAMP), ("clamped_swiglu", (7.0, 1.702, 1.0)), ("clamped_swiglu", Clamp(limit=0.0)),
        ("clamped_swiglu", Clamp(alpha=np.nan)), ("clamped_swiglu", Clamp(glu_linear_offset=1e39)),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=r"Clamp for clamped_swiglu|limit > 0"):
            activation(x, kind, params=params)  # type: ignore[arg-type]


@pytest.mark.oracle
@kinds
def test_torch(device: Device, kind: str) -> None:
    torch = need_oracle("torch")
    plain = {
        "gelu": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
        "relu": torch.relu,
        "silu": torch.nn.functional.silu,
        "qgelu": lambda t: t * torch.sigmoid(1.702 * t),
        "srelu": lambda t: torch.relu(t) ** 2,
    }
    gates = {"glu": torch.sigmoid, "swiglu": plain["silu"], **{f"{k[:-2]}glu": plain[k] for k in plain if k != "silu"}}
    x = normal((50, 10), scale=4.0)
    dy = like_result(x, kind)
    t = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    if kind == "clamped_swiglu":
        y = plain["qgelu"](t[:, :5].clamp(max=7.0)) * (t[:, 5:].clamp(-7.0, 7.0) + 1)
    else:
        y = gates[kind](t[:, :5]) * t[:, 5:] if kind in gates else plain[kind](t)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    near(run(x, kind, device), y.detach().numpy(), 4.0)
    near(run_vjp(x, dy, kind, device), t.grad.numpy(), 30.0)
    if kind == "glu":  # torch gates with the second half
        swapped = torch.nn.functional.glu(torch.tensor(np.roll(x, 5, axis=1), dtype=torch.float64))
        near(run(x, kind, device), swapped.numpy(), 4.0)


def test_what_does_not_fit(device: Device) -> None:
    x = to_device(np.ones(3, F32), device)
    with pytest.raises(ValueError, match="gelu, relu, silu, qgelu, srelu, glu"):
        activation(x, "swish")
    for shape in ((3,), (4, 3), ()):
        with pytest.raises(ValueError, match="an even last axis for swiglu"):
            activation(to_device(np.ones(shape, F32), device), "swiglu")
    with pytest.raises(ValueError, match=r"dy of shape \(2,\)"):
        activation_vjp(to_device(np.ones(4, F32), device), to_device(np.ones(4, F32), device), "geglu")
    pair = to_device(np.ones(4, F32), device)
    with pytest.raises(ValueError, match="out as float32"):
        activation(pair, "reglu", out=pair)
    with pytest.raises(TypeError, match="float32, bfloat16"):
        activation(to_device(np.ones(3), device))
    with pytest.raises(ValueError, match="dy of shape"):
        activation_vjp(x, to_device(np.ones(2, F32), device))
    with pytest.raises(TypeError, match="dy of float32"):
        activation_vjp(x, to_device(np.ones(3, F16), device))
    with pytest.raises(ValueError, match="out as float32"):
        activation(x, out=to_device(np.ones(2, F32), device))
