"""`kernels.rms_norm` on every device, against float64, TE and torch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.device import Device
from nvfp.kernels.rms_norm import rms_norm, rms_norm_vjp
from tests.data.load import load
from tests.devices import need_oracle, to_device, to_numpy
from tests.kernels.dense import BF16, COMPUTED, F16, F32, arrays, bits, normal, views
from tests.kernels.norms import SHAPES, check_residual_and_add, compare, draw, run
from tests.oracles import rms_norm as oracle
from tests.tolerances import check

STEM = "rms_norm"
dtypes = pytest.mark.parametrize("dtype", COMPUTED, ids=str)


def test_oracle_gradient_is_the_difference_quotient() -> None:
    x, dy, weight = normal((3, 5)).astype(np.float64), normal((3, 5), seed=1), normal((5,), seed=2).astype(np.float64)
    h = 1e-6
    for found, base in zip(oracle.rms_norm_vjp(dy, x, weight), (x, weight)):
        for i in range(base.size):
            values = []
            for sign in (1, -1):
                moved = base.copy()
                moved.reshape(-1)[i] += sign * h
                values.append((oracle.rms_norm(*((moved, weight) if base is x else (x, moved))) * dy).sum())
            np.testing.assert_allclose(found.reshape(-1)[i], (values[0] - values[1]) / (2 * h), atol=1e-7)


def test_te(device: Device) -> None:
    """Transformer Engine's RMSNorm with zero-centred gamma, float32."""
    case = {key.partition("/")[2]: value for key, value in load("te_norm").items()}
    given = (case["in.0"], case["grad_out"], case["state.weight"], None)
    found = run(STEM, device, given, zero=True)
    for name, theirs in {"y": "out", "dx": "grad_in.0", "dweight": "grad.weight"}.items():
        check(found[name], case[theirs], "norm_te", scale=np.abs(case[theirs]).max())
    compare(STEM, found, given, zero=True)


@pytest.mark.sanitizer
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@dtypes
def test_values(device: Device, dtype: np.dtype, shape: tuple[int, int]) -> None:
    given = draw(shape, dtype, dtype)
    compare(STEM, run(STEM, device, given), given)


@pytest.mark.parametrize("parameter", COMPUTED, ids=str)
@pytest.mark.parametrize("zero", [False, True])
@dtypes
def test_parameters_of_any_dtype(device: Device, dtype: np.dtype, parameter: np.dtype, zero: bool) -> None:
    for shape in ((40, 96), (3, 5, 33)):
        given = draw(shape, dtype, parameter)
        compare(STEM, run(STEM, device, given, eps=0.1, zero=zero), given, eps=0.1, zero=zero)


@pytest.mark.parametrize("shape", [(7, 3), (3, 5, 96), (300, 72), (5, 1000), (3, 4096), (2, 12289)], ids=str)
@dtypes
def test_residual_and_add(device: Device, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    check_residual_and_add(STEM, device, dtype, shape)


def test_many_rows(device: Device) -> None:
    given = draw((5000, 40), BF16, F32)
    compare(STEM, run(STEM, device, given), given)


@dtypes
def test_only_what_is_needed(device: Device, dtype: np.dtype) -> None:
    for shape in ((9, 72), (2, 40_000)):
        x, dy, weight, _ = (to_device(a, device) for a in draw(shape, dtype, dtype))
        rstd = rms_norm(x, weight)[1]
        full = [to_numpy(a) for a in rms_norm_vjp(dy, x, weight, rstd)]
        for needs in ((True, False), (False, True), (False, False)):
            found = rms_norm_vjp(dy, x, weight, rstd, needs=needs)
            assert [g is not None for g in found] == list(needs)
            assert all(g is None or np.array_equal(bits(to_numpy(g)), bits(f)) for g, f in zip(found, full))


def test_zero_and_huge_values(device: Device) -> None:
    x = np.array([[0.0] * 40, [1e15, -1e15] * 20, [3e-20, -3e-20] * 20, [6e4, -6e4] * 20], F32)
    dy, one = normal(x.shape, seed=1), np.ones(40, F32)
    found = run(STEM, device, (x, dy, one, None))
    assert not found["y"][0].any()
    check(found["y"], oracle.rms_norm(x, one), "norm")
    assert all(np.isfinite(values).all() for values in found.values())
    beyond = run(STEM, device, (np.array([[1e25, -1e25] * 20], F32), dy[:1], one, None))
    assert beyond["rstd"] == 0 and not beyond["y"].any()  # squares overflow: not normalised
    half = run(STEM, device, (np.array([[6e4, -6e4] * 20], F16), dy[:1].astype(F16), one, None))
    check(half["y"], [[1.0, -1.0] * 20], "norm")


def test_a_bad_row_stays_alone(device: Device) -> None:
    for width in (5, 72, 1024, 40_000):
        x, dy, weight, bias = draw((6, width), F32, F32)
        good = run(STEM, device, (x, dy, weight, bias))
        x[1, 3], x[3, 0] = np.nan, np.inf
        with np.errstate(all="raise"):
            found = run(STEM, device, (x, dy, weight, bias))
        assert np.isnan(found["y"][1]).all() and np.isnan(found["dx"][1]).all()
        assert np.isnan(found["y"][3, 0]) and not found["y"][3, 1:].any()
        for name in ("y", "dx"):
            assert np.array_equal(found[name][[0, 2, 4, 5]], good[name][[0, 2, 4, 5]])


@dtypes
def test_layouts(device: Device, dtype: np.dtype) -> None:
    for view in views(normal((40, 70), dtype, scale=3.0)):
        dy = normal(view.shape, dtype, 1).T.copy().T
        given = (view, dy, normal((2 * view.shape[1],), dtype, 2)[::-2], None)
        compare(STEM, run(STEM, device, given), given)


@given(data=st.data(), dtype=st.sampled_from(COMPUTED))
def test_any_view(device: Device, data: st.DataObject, dtype: np.dtype) -> None:
    x = data.draw(arrays(dtype, special=False))
    given = (x, normal(x.shape, dtype, 5), normal(x.shape[-1:], seed=6), None)
    compare(STEM, run(STEM, device, given), given)


@pytest.mark.parametrize("width", [3, 72, 20_000, 40_000])
def test_in_place_and_strided_out(device: Device, width: int) -> None:
    x, _, weight, _ = draw((6, width), F32, F32)
    w = to_device(weight, device)
    y = to_numpy(rms_norm(to_device(x, device), w)[0])
    same = to_device(x.copy(), device)
    assert rms_norm(same, w, out=same)[0] is same
    assert np.array_equal(to_numpy(same), y)
    base = to_device(np.zeros((width, 12), F32), device)
    out = base[:, ::2].T
    assert rms_norm(to_device(x, device), w, out=out)[0] is out
    assert np.array_equal(to_numpy(base)[:, ::2].T, y) and not to_numpy(base)[:, 1::2].any()


def test_bits_repeat(device: Device) -> None:
    for shape in ((3000, 96), (40, 4096), (200, 12289)):
        given = draw(shape, BF16, F32)
        first, second = run(STEM, device, given), run(STEM, device, given)
        assert all(np.array_equal(bits(values), bits(second[name])) for name, values in first.items())


@pytest.mark.oracle
@pytest.mark.parametrize("shape", [(7, 3), (40, 768), (3, 1001)], ids=str)
def test_torch(device: Device, shape: tuple[int, int]) -> None:
    torch = need_oracle("torch")
    x, dy, weight, _ = draw(shape, F32, F32)
    found = run(STEM, device, (x, dy, weight, None))
    t = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (x, weight)]
    y = torch.nn.functional.rms_norm(t[0], shape[1:], t[1], 1e-5)
    y.backward(torch.tensor(dy, dtype=torch.float64))
    check(found["y"], y.detach().numpy(), "norm", scale=8)
    for name, leaf in zip(("dx", "dweight"), t):
        check(found[name], leaf.grad.numpy(), "norm", scale=8 + shape[0])


def test_what_does_not_fit(device: Device) -> None:
    x, w, stat = (to_device(np.ones(shape, F32), device) for shape in ((2, 3), (3,), (2,)))
    cases = [
        (TypeError, "x of float32, bfloat16", lambda: rms_norm(to_device(np.ones((2, 3)), device), w)),
        (TypeError, "weight of float32", lambda: rms_norm(x, to_device(np.ones(3), device))),
        (ValueError, r"x \[\.\.\., H\]", lambda: rms_norm(to_device(np.ones((), F32), device), w)),
        (ValueError, r"weight \(3,\)", lambda: rms_norm(x, stat)),
        (ValueError, "eps >= 0", lambda: rms_norm(x, w, eps=float("nan"))),
        (ValueError, "residual= and total=", lambda: rms_norm(x, w, residual=x)),
        (ValueError, "residual of shape", lambda: rms_norm(x, w, residual=w, total=x)),
        (ValueError, "out as float32", lambda: rms_norm(x, w, out=w)),
        (TypeError, "dy of float32", lambda: rms_norm_vjp(to_device(np.ones((2, 3), F16), device), x, w, stat)),
        (ValueError, "rstd as float32", lambda: rms_norm_vjp(x, x, w, w)),
    ]
    for error, text, wrong in cases:
        with pytest.raises(error, match=text):
            wrong()
