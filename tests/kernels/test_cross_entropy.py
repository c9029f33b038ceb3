"""`kernels.cross_entropy` on every device, against float64, TE's numbers and handed case H18."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.device import Device
from nvfp.kernels.cross_entropy import REDUCTIONS, cross_entropy, cross_entropy_vjp
from tests.data.load import load
from tests.devices import need_oracle, to_device, to_numpy
from tests.kernels.dense import BF16, COMPUTED, F16, F32, normal, views
from tests.oracles import cross_entropy as oracle
from tests.tolerances import check

dtypes = pytest.mark.parametrize("dtype", COMPUTED, ids=str)
ONE = np.ones((), F32)


def run(
    x: np.ndarray, targets: np.ndarray, device: Device, dloss: np.ndarray = ONE, **options: Any
) -> list[np.ndarray]:
    """Loss, lse, weight and gradient."""
    logits, ids = to_device(x, device), to_device(targets, device)
    loss, lse, weight = cross_entropy(logits, ids, **options)
    options.pop("reduction", None)
    dx = cross_entropy_vjp(logits, ids, lse, weight, to_device(dloss, device), **options)
    return [to_numpy(a) for a in (loss, lse, weight, dx)]


def targets_for(rows: int, vocabulary: int, dtype: Any = np.int64) -> np.ndarray:
    ids = np.random.default_rng(rows).integers(0, vocabulary, rows)
    ids[1::5] = -100
    return ids.astype(dtype)  # -100 is 156 as uint8


def test_oracle_gradient_is_the_difference_quotient() -> None:
    x, ids, h = normal((4, 5)).astype(np.float64), np.array([0, -100, 3, 3]), 1e-6
    dx = oracle.cross_entropy_vjp(x, ids, 2.0, label_smoothing=0.1)
    for i in range(x.size):
        d = np.zeros(x.size)
        d[i] = h
        up, down = (oracle.cross_entropy(x + s * d.reshape(x.shape), ids, label_smoothing=0.1) for s in (1, -1))
        np.testing.assert_allclose(dx.reshape(-1)[i], 2 * (up - down) / (2 * h), atol=1e-8)


@pytest.mark.sanitizer
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@dtypes
def test_values(device: Device, dtype: np.dtype, reduction: str, smoothing: float) -> None:
    for rows, vocabulary in ((1, 1), (7, 50), (5, 1027)):
        x, ids = normal((rows, vocabulary), dtype, scale=3.0), targets_for(rows, vocabulary)
        dloss = normal((rows,) if reduction == "none" else (), seed=1)
        loss, lse, weight, dx = run(x, ids, device, dloss, label_smoothing=smoothing, reduction=reduction)
        options = {"label_smoothing": smoothing, "reduction": reduction}
        check(loss, oracle.cross_entropy(x, ids, **options), "cross_entropy")
        check(lse, np.where(ids == -100, 0, oracle.log_sum_exp(x)), "cross_entropy")
        assert weight == (F32.type(1 / (ids != -100).sum()) if reduction == "mean" else 1)
        assert dx.dtype == dtype
        check(dx, oracle.cross_entropy_vjp(x, ids, dloss, **options), "cross_entropy", scale=1 + np.abs(dloss).max())


def test_handed_h18(device: Device) -> None:
    x = np.array([[np.log(3.0), 0.0], [5.0, -5.0]], F32)
    for ids, smoothing, total in (
        ([0, -100], 0.2, 0.39754330131859184), ([0, -100], 0.0, 0.28768207245178085), ([-100, -100], 0.2, 0.0),
    ):  # fmt: skip
        for reduction in ("mean", "sum"):
            loss, _, _, dx = run(x, np.array(ids), device, label_smoothing=smoothing, reduction=reduction)
            check(loss, total, "cross_entropy")
            wanted = {0.2: [-0.15, 0.15], 0.0: [-0.25, 0.25]}[smoothing] if ids[0] == 0 else [0, 0]
            check(dx, np.array([wanted, [0, 0]]), "cross_entropy")
            assert not dx[1].any()


def test_te(device: Device) -> None:
    """Losses and gradients of TE's kernel (label smoothing 0.1, summed)."""
    data = load("te_optim")
    x, ids = data["ce.logits"], data["ce.target"]
    losses, _, _, _ = run(x, ids, device, np.ones(ids.shape, F32), label_smoothing=0.1, reduction="none")
    check(losses, data["ce.loss"], "cross_entropy")
    loss, _, _, dx = run(x, ids, device, label_smoothing=0.1, reduction="sum")
    check(loss, data["ce.loss"].astype(np.float64).sum(), "cross_entropy")
    check(dx, data["ce.grad"], "cross_entropy")


@pytest.mark.parametrize(("rows", "vocabulary"), [(3, 200_003), (33, 50_304), (5000, 256), (70_000, 3)])
def test_sizes(device: Device, rows: int, vocabulary: int) -> None:
    x, ids = normal((rows, vocabulary), BF16, scale=2.0), targets_for(rows, vocabulary, np.int32)
    loss, lse, _, dx = run(x, ids, device)
    keep = slice(0, 40)  # the oracle goes row by row
    check(lse[keep], np.where(ids == -100, 0, oracle.log_sum_exp(x))[keep], "cross_entropy", scale=4)
    weight = 1 / (ids != -100).sum()
    x, ids = x[keep], ids[keep]
    check(dx[keep], oracle.cross_entropy_vjp(x, ids, weight, reduction="sum"), "cross_entropy")
    assert np.isfinite(loss)


def test_mean_of_many_rows(device: Device) -> None:
    """A float32 running sum of a million losses would be off by 1e-4."""
    x, ids = np.tile(np.array([[0.1, 0.7]], F32), (1_000_000, 1)), np.zeros(1_000_000, np.int32)
    loss, _, weight, _ = run(x, ids, device)
    check(loss, np.log1p(np.exp(0.6)), "cross_entropy")
    assert weight == F32.type(1e-6)


@dtypes
def test_layouts_and_more_axes(device: Device, dtype: np.dtype) -> None:
    base = normal((40, 70), dtype, scale=3.0)
    for view in (v for v in views(base) if v.shape[1]):
        ids = targets_for(2 * len(view), view.shape[1])[::2]
        got = run(view, ids, device)
        for a, b in zip(got, run(np.ascontiguousarray(view), ids.copy(), device)):
            assert a.tobytes() == b.tobytes()
    x, ids = base[:, :60].reshape(4, 10, 60), targets_for(40, 60, np.uint8).reshape(4, 10)
    loss, lse, _, dx = run(x, ids, device, normal((4, 10)), ignore_index=156, reduction="none")
    assert loss.shape == lse.shape == (4, 10)
    assert dx.shape == x.shape
    check(loss, oracle.cross_entropy(x, ids, ignore_index=156, reduction="none"), "cross_entropy")


@pytest.mark.parametrize("ignore", [0, 2, -1, 10**6])
def test_any_ignore_index(device: Device, ignore: int) -> None:
    x, ids = normal((6, 4)), np.array([0, 1, 2, 3, ignore, 1])
    loss, _, _, dx = run(x, ids, device, ignore_index=ignore, label_smoothing=0.3)
    options = {"ignore_index": ignore, "label_smoothing": 0.3}
    check(loss, oracle.cross_entropy(x, ids, **options), "cross_entropy")
    check(dx, oracle.cross_entropy_vjp(x, ids, 1.0, **options), "cross_entropy")


@dtypes
def test_in_place(device: Device, dtype: np.dtype) -> None:
    x, ids = normal((9, 133), dtype), targets_for(9, 133)
    *_, dx = run(x, ids, device)
    logits, targets = to_device(x.copy(), device), to_device(ids, device)
    _, lse, weight = cross_entropy(logits, targets)
    word = to_device(ONE, device)
    assert cross_entropy_vjp(logits, targets, lse, weight, word, out=logits) is logits
    assert to_numpy(logits).tobytes() == dx.tobytes()
    wide = to_device(np.zeros((133, 18), dtype), device)
    out = wide[:, ::2].T
    assert cross_entropy_vjp(to_device(x, device), targets, lse, weight, word, out=out) is out
    assert to_numpy(wide)[:, ::2].T.tobytes() == dx.tobytes()


def test_large_and_infinite_logits(device: Device) -> None:
    """Shifts do not matter, -inf has probability 0, and rows with NaN, +inf or nothing finite stay apart."""
    inf, nan = np.inf, np.nan
    x = np.array(
        [[1e4, 1e4 + 2, -inf], [-3e38, 3e38, 0], [0, -inf, 1], [nan, 0, 1], [inf, 0, 1], [-inf] * 3, [0, 0, 0]], F32
    )
    loss, lse, _, dx = run(x, np.zeros(7, np.int64), device, np.ones(7, F32), reduction="none")
    check(loss[[0, 2, 6]], [2 + np.log1p(np.exp(-2)), np.log1p(np.e), np.log(3)], "cross_entropy")
    assert loss[1] == np.inf
    assert np.isnan(loss[3:6]).all()
    p = np.exp(2) / (1 + np.exp(2))
    np.testing.assert_allclose(dx[0], [-p, p, 0], atol=1e-3)  # lse is one float32 near 1e4
    assert dx[1].tolist() == [-1, 1, 0]
    assert dx[2, 1] == 0
    assert np.isfinite(dx[6]).all()
    assert np.isfinite(lse[[0, 1, 2, 6]]).all()
    loss, *_ = run(x[:3], np.array([1, 1, 2]), device, np.ones(3, F32), reduction="none")
    assert np.isfinite(loss).all()
    loss, *_ = run(x[:3], np.array([1, 1, 2]), device, np.ones(3, F32), reduction="none", label_smoothing=0.1)
    assert loss[0] == loss[2] == np.inf


@given(data=st.data(), dtype=st.sampled_from(COMPUTED), smoothing=st.sampled_from((0.0, 0.1)))
def test_any_problem(device: Device, data: st.DataObject, dtype: np.dtype, smoothing: float) -> None:
    rows, vocabulary = data.draw(st.integers(0, 9)), data.draw(st.integers(1, 40))
    x = normal((rows, vocabulary), dtype, data.draw(st.integers(0, 99)), 3.0)
    ids = np.array(data.draw(st.lists(st.integers(-1, vocabulary - 1), min_size=rows, max_size=rows)), np.int64)
    reduction = data.draw(st.sampled_from(REDUCTIONS))
    dloss = normal((rows,) if reduction == "none" else ())
    options = {"ignore_index": -1, "label_smoothing": smoothing, "reduction": reduction}
    loss, _, _, dx = run(x, ids, device, dloss, **options)
    check(loss, oracle.cross_entropy(x, ids, **options), "cross_entropy")
    check(dx, oracle.cross_entropy_vjp(x, ids, dloss, **options), "cross_entropy", scale=3)


def test_repeats_its_bits(device: Device) -> None:
    x, ids = normal((300, 1000)), targets_for(300, 1000)
    first, again = run(x, ids, device), run(x, ids, device)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again))


def test_targets_out_of_range(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    x, ids = normal((4, 9)), np.array([9, 3, -1, -100])
    if device.type == "cpu":
        with pytest.raises(IndexError, match=r"targets in 0\.\.8 \(or -100\), got 9 at \(0,\)"):
            run(x, ids, device)
        return
    loss, _, _, dx = run(x, ids, device, np.ones(4, F32), reduction="none")
    assert np.isnan(loss).tolist() == [True, False, True, False]
    assert dx.any(axis=1).tolist() == [False, True, False, False]
    monkeypatch.setenv("NVFP_DEBUG", "1")
    with pytest.raises(IndexError, match="targets"):
        run(x, ids, device)


@pytest.mark.oracle
def test_torch(device: Device) -> None:
    torch = need_oracle("torch")
    x, ids = normal((20, 30), scale=2.0), targets_for(20, 30)
    t = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    wanted = torch.nn.functional.cross_entropy(t, torch.tensor(ids), label_smoothing=0.1)
    wanted.backward()
    loss, _, _, dx = run(x, ids, device, label_smoothing=0.1)
    check(loss, wanted.detach().numpy(), "cross_entropy")
    check(dx, t.grad.numpy(), "cross_entropy")


def test_what_does_not_fit(device: Device) -> None:
    x, ids = to_device(normal((4, 9)), device), to_device(np.zeros(4, np.int64), device)
    with pytest.raises(ValueError, match=r"logits \[\.\.\., V\]"):
        cross_entropy(x, to_device(np.zeros(3, np.int64), device))
    with pytest.raises(TypeError, match="integer targets"):
        cross_entropy(x, to_device(np.zeros(4, F32), device))
    with pytest.raises(ValueError, match="at least one class"):
        cross_entropy(x[:, :0], ids)
    with pytest.raises(ValueError, match="label_smoothing in"):
        cross_entropy(x, ids, label_smoothing=1.5)
    with pytest.raises(ValueError, match="reduction"):
        cross_entropy(x, ids, reduction="average")
    with pytest.raises(TypeError, match="float32, bfloat16"):
        cross_entropy(to_device(np.zeros((4, 9)), device), ids)
    _, lse, weight = cross_entropy(x, ids)
    with pytest.raises(TypeError, match="dloss as float32"):
        cross_entropy_vjp(x, ids, lse, weight, to_device(np.ones((), F16), device))
    with pytest.raises(ValueError, match="lse as float32"):
        cross_entropy_vjp(x, ids, lse[:2], weight, weight)
    for wrong in ("a", 1.5, True, None):
        with pytest.raises(TypeError, match="ignore_index in whole numbers"):
            cross_entropy(x, ids, ignore_index=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="label_smoothing in"):
        cross_entropy(x, ids, label_smoothing="a")  # type: ignore[arg-type]
