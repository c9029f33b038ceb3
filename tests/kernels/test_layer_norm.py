"""`kernels.layer_norm` on every device, against float64 and torch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.device import Device
from nvfp.kernels.layer_norm import layer_norm, layer_norm_vjp
from tests.devices import need_oracle, to_device, to_numpy
from tests.kernels.dense import BF16, COMPUTED, F16, F32, arrays, bits, normal, views
from tests.kernels.norms import SHAPES, call, check_residual_and_add, compare, draw, run
from tests.oracles import layer_norm as oracle
from tests.tolerances import check

STEM = "layer_norm"
dtypes = pytest.mark.parametrize("dtype", COMPUTED, ids=str)


def test_oracle_gradient_is_the_difference_quotient() -> None:
    x, dy, weight = normal((3, 5)).astype(np.float64), normal((3, 5), seed=1), normal((5,), seed=2).astype(np.float64)
    dx, dw, db = oracle.layer_norm_vjp(dy, x, weight, zero_centered_gamma=True)
    h = 1e-6
    for found, base in ((dx, x), (dw, weight)):
        for i in range(base.size):
            values = []
            for sign in (1, -1):
                moved = base.copy()
                moved.reshape(-1)[i] += sign * h
                given = (moved, weight) if base is x else (x, moved)
                values.append((oracle.layer_norm(*given, zero_centered_gamma=True) * dy).sum())
            np.testing.assert_allclose(found.reshape(-1)[i], (values[0] - values[1]) / (2 * h), atol=1e-7)
    np.testing.assert_allclose(db, dy.sum(0), rtol=1e-6)


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
        x, dy, weight, bias = draw(shape, dtype, parameter)
        for b in (bias, None):
            options = {"eps": 0.1, "zero": zero}
            compare(STEM, run(STEM, device, (x, dy, weight, b), **options), (x, dy, weight, b), **options)


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
        _, mean, rstd = layer_norm(x, weight, None)
        full = [to_numpy(a) for a in layer_norm_vjp(dy, x, weight, mean, rstd)]
        for wanted in range(8):
            needs = (bool(wanted & 1), bool(wanted & 2), bool(wanted & 4))
            found = layer_norm_vjp(dy, x, weight, mean, rstd, needs=needs)
            assert [g is not None for g in found] == list(needs)
            assert all(g is None or np.array_equal(bits(to_numpy(g)), bits(f)) for g, f in zip(found, full))


@pytest.mark.parametrize("mean", [1e3, -1e5, 1e6])
def test_a_large_mean_costs_no_digits(device: Device, mean: float) -> None:
    """The differences to the mean are exact enough, although float32 sums of x are not."""
    for shape in ((3, 72), (2, 4096), (2, 12289)):
        given = draw(shape, F32, F32, offset=mean)
        compare(STEM, run(STEM, device, given), given)


def test_equal_and_huge_values(device: Device) -> None:
    x = np.array([[7.25] * 40, [0.1] * 40, [0.0] * 40, [1e15, -1e15] * 20, [3e-20, -3e-20] * 20], F32)
    dy, one, bias = normal(x.shape, seed=1), np.ones(40, F32), np.full(40, 0.5, F32)
    found = run(STEM, device, (x, dy, one, bias))
    assert np.abs(found["y"][:3] - 0.5).max() < 1e-4  # a mean that is one ulp of 7.25 off gives 1.5e-4
    check(found["y"][3:], oracle.layer_norm(x[3:], one, bias), "norm")
    assert all(np.isfinite(values).all() for values in found.values())
    beyond = run(STEM, device, (np.array([[1e25, -1e25] * 20], F32), dy[:1], one, bias))
    assert beyond["rstd"] == 0 and (beyond["y"] == 0.5).all()  # squares overflow: not normalised
    half = run(STEM, device, (np.array([[6e4, -6e4] * 20], F16), dy[:1].astype(F16), one, bias))
    check(half["y"], [[1.5, -0.5] * 20], "norm")


def test_a_bad_row_stays_alone(device: Device) -> None:
    for width in (5, 72, 1024, 40_000):
        x, dy, weight, bias = draw((6, width), F32, F32)
        good = run(STEM, device, (x, dy, weight, bias))
        x[1, 3], x[3, 0], x[4, width - 1] = np.nan, np.inf, -np.inf
        with np.errstate(all="raise"):
            found = run(STEM, device, (x, dy, weight, bias))
        bad = [1, 3, 4]
        for name in ("y", "dx"):
            assert np.isnan(found[name][bad]).all()
            assert np.array_equal(found[name][[0, 2, 5]], good[name][[0, 2, 5]])
        assert np.isnan(found["dweight"]).all() and np.array_equal(found["dbias"], good["dbias"])


@dtypes
def test_layouts(device: Device, dtype: np.dtype) -> None:
    for view in views(normal((40, 70), dtype, scale=3.0)):
        dy = normal(view.shape, dtype, 1).T.copy().T
        weight, bias = (normal((2 * view.shape[1],), dtype, k)[::-2] for k in (2, 3))
        given = (view, dy, weight, bias)
        compare(STEM, run(STEM, device, given), given)


@given(data=st.data(), dtype=st.sampled_from(COMPUTED))
def test_any_view(device: Device, data: st.DataObject, dtype: np.dtype) -> None:
    x = data.draw(arrays(dtype, special=False))
    given = (x, normal(x.shape, dtype, 5), normal(x.shape[-1:], seed=6), None)
    compare(STEM, run(STEM, device, given), given)


@pytest.mark.parametrize("width", [3, 72, 20_000, 40_000])
def test_in_place_and_strided_out(device: Device, width: int) -> None:
    x, _, weight, bias = draw((6, width), F32, F32)
    w, b = to_device(weight, device), to_device(bias, device)
    y = to_numpy(layer_norm(to_device(x, device), w, b)[0])
    same = to_device(x.copy(), device)
    assert layer_norm(same, w, b, out=same)[0] is same
    assert np.array_equal(to_numpy(same), y)
    base = to_device(np.zeros((width, 12), F32), device)
    out = base[:, ::2].T
    assert layer_norm(to_device(x, device), w, b, out=out)[0] is out
    assert np.array_equal(to_numpy(base)[:, ::2].T, y) and not to_numpy(base)[:, 1::2].any()


def test_bits_repeat(device: Device) -> None:
    for shape in ((3000, 96), (40, 4096), (200, 12289)):
        given = draw(shape, BF16, F32)
        first, second = run(STEM, device, given), run(STEM, device, given)
        assert all(np.array_equal(bits(values), bits(second[name])) for name, values in first.items())


def test_bits_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    from nvfp.kernels import layer_norm as contract

    given, found = draw((1000, 300), BF16, F32), []
    for threads in ("1", "3"):
        monkeypatch.setenv("NVFP_NUM_THREADS", threads)
        found.append(call(STEM, (contract, contract), given))
    assert all(np.array_equal(bits(values), bits(found[1][name])) for name, values in found[0].items())


@pytest.mark.oracle
@pytest.mark.parametrize("shape", [(7, 3), (40, 768), (3, 1001)], ids=str)
def test_torch(device: Device, shape: tuple[int, int]) -> None:
    torch = need_oracle("torch")
    x, dy, weight, bias = draw(shape, F32, F32)
    found = run(STEM, device, (x, dy, weight, bias))
    t = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (x, weight, bias)]
    y = torch.nn.functional.layer_norm(t[0], shape[1:], t[1], t[2])
    y.backward(torch.tensor(dy, dtype=torch.float64))
    check(found["y"], y.detach().numpy(), "norm", scale=8)
    for name, leaf in zip(("dx", "dweight", "dbias"), t):
        check(found[name], leaf.grad.numpy(), "norm", scale=8 + shape[0])


def test_what_does_not_fit(device: Device) -> None:
    x, w, stat = (to_device(np.ones(shape, F32), device) for shape in ((2, 3), (3,), (2,)))
    cases = [
        (TypeError, "x of float32, bfloat16", lambda: layer_norm(to_device(np.ones((2, 3)), device), w, w)),
        (TypeError, "weight of float32", lambda: layer_norm(x, to_device(np.ones(3), device), None)),
        (TypeError, "bias of float32, as weight", lambda: layer_norm(x, w, to_device(np.ones(3, F16), device))),
        (ValueError, r"x \[\.\.\., H\]", lambda: layer_norm(to_device(np.ones((), F32), device), w, w)),
        (ValueError, r"weight \(3,\)", lambda: layer_norm(x, stat, None)),
        (ValueError, r"bias \(3,\)", lambda: layer_norm(x, w, stat)),
        (ValueError, "eps >= 0", lambda: layer_norm(x, w, w, eps=-1.0)),
        (ValueError, "eps >= 0", lambda: layer_norm(x, w, w, eps=1e39)),
        (ValueError, "residual= and total=", lambda: layer_norm(x, w, None, residual=x)),
        (ValueError, "residual of shape", lambda: layer_norm(x, w, None, residual=w, total=x)),
        (ValueError, "out as float32", lambda: layer_norm(x, w, w, out=w)),
        (ValueError, "dy of shape", lambda: layer_norm_vjp(w, x, w, stat, stat)),
        (ValueError, "mean as float32", lambda: layer_norm_vjp(x, x, w, w, stat)),
        (ValueError, "rstd as float32", lambda: layer_norm_vjp(x, x, w, stat, w)),
    ]  # fmt: skip
    for error, text, wrong in cases:
        with pytest.raises(error, match=text):
            wrong()
