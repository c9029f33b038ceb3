"""`kernels.adam` on every device: TE's steps, float64, and the CPU's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.device import Device
from nvfp.kernels.adam import MODES, adam
from tests.data.load import load
from tests.devices import to_device, to_numpy
from tests.kernels.dense import BF16, COMPUTED, F16, F32, bits, normal
from tests.oracles import adam as oracle
from tests.tolerances import check

HYPER = (1e-2, 0.9, 0.95, 1e-8, 0.1)
Arrays = list[np.ndarray | None]
modes = pytest.mark.parametrize("mode", MODES)


class Problem:
    """Parameters, gradients and state as NumPy arrays; `run` takes steps on a device and brings them back."""

    def __init__(self, *entries: tuple[tuple[int, ...], np.dtype, np.dtype, bool]) -> None:
        self.params = [normal(shape, p, k) for k, (shape, p, _, _) in enumerate(entries)]
        self.grads = [normal(shape, g, 100 + k) for k, (shape, _, g, _) in enumerate(entries)]
        self.m, self.v = ([np.zeros(shape, F32) for shape, *_ in entries] for _ in range(2))
        self.master: Arrays = [
            p.astype(F32) + F32.type(1e-4) if kept else None for p, (*_, kept) in zip(self.params, entries)
        ]

    def run(
        self, device: Device | str, steps: int = 1, hyper: tuple[float, ...] = HYPER, mode: str = "adamw"
    ) -> list[Arrays]:
        copies = [
            [None if x is None else to_device(x.copy(), device) for x in xs]
            for xs in (self.params, self.grads, self.m, self.v, self.master)
        ]
        step = to_device(np.zeros((), np.int32), device)
        for k in range(steps):
            adam(*copies, to_device(np.array(hyper, F32), device), step, mode=mode)
            assert int(to_numpy(step)) == k + 1
        return [[None if x is None else to_numpy(x) for x in xs] for xs in copies]


def same(a: list[Arrays], b: list[Arrays]) -> bool:
    pairs = [(x, y) for xs, ys in zip(a, b) for x, y in zip(xs, ys)]
    return all((x is None) is (y is None) and (x is None or np.array_equal(bits(x), bits(y))) for x, y in pairs)


def ulps(got: np.ndarray, wanted: np.ndarray, before: np.ndarray) -> float:
    """The largest difference in ulp of the largest operand of the last subtraction, p - lr u."""
    size = np.maximum.reduce([np.abs(before), np.abs(got), np.abs(wanted), np.abs(wanted - before)])
    return float((np.abs(got.astype(np.float64) - wanted) / np.spacing(size)).max())


@modes
def test_te_within_two_ulp_per_step(device: Device, mode: str) -> None:
    """Each step from TE's own parameters. TE divides and takes roots approximately, so bits cannot agree."""
    data = load("te_optim")
    first, step = data[f"{mode}.p0"], to_device(np.zeros((), np.int32), device)
    m, v = (to_device(np.zeros_like(first), device) for _ in range(2))
    hyper = to_device(np.array(HYPER, F32), device)
    for k in range(5):
        p = to_device(data[f"{mode}.p{k}"].copy(), device)
        adam([p], [to_device(data[f"{mode}.g{k}"], device)], [m], [v], [None], hyper, step, mode=mode)
        assert ulps(to_numpy(p), data[f"{mode}.p{k + 1}"], data[f"{mode}.p{k}"]) <= 2


@modes
def test_float64(device: Device, mode: str) -> None:
    problem = Problem(((33, 17), F32, F32, False))
    state: oracle.State = (problem.params[0], problem.m[0], problem.v[0])
    for k in range(1, 11):
        state = oracle.adam(state, problem.grads[0], k, HYPER, mode)
    params, _, m, v, _ = problem.run(device, 10, mode=mode)
    for got, wanted in zip((params[0], m[0], v[0]), state):
        check(got, wanted, "adam_steps", scale=1)


@pytest.mark.sanitizer
@modes
def test_bits_of_all_dtypes(device: Device, mode: str) -> None:
    entries = [((257,), p, g, kept) for p in COMPUTED for g in COMPUTED for kept in (False, True)]
    problem = Problem(*entries, ((), F32, F32, False), ((0, 3), F32, F32, True), ((5, 7, 3), BF16, F32, True))
    assert same(problem.run(device, 3, mode=mode), problem.run("cpu", 3, mode=mode))


def test_many_and_large_tensors(device: Device) -> None:
    entries = [((k % 50 + 1,), BF16, BF16, True) for k in range(150)]
    problem = Problem(
        *entries, ((4096,), BF16, BF16, True), ((4097,), BF16, BF16, False), ((300_001,), F32, F32, False)
    )
    assert same(problem.run(device, 2), problem.run("cpu", 2))


def test_a_bfloat16_parameter_follows_its_master(device: Device) -> None:
    wide = Problem(((1000,), F32, F32, False))
    narrow = Problem(((1000,), BF16, F32, True))
    narrow.master, narrow.grads = [wide.params[0].copy()], wide.grads
    hyper = (1e-5, 0.9, 0.999, 1e-8, 0.0)  # steps far below bfloat16's resolution
    wanted, got = wide.run(device, 50, hyper)[0][0], narrow.run(device, 50, hyper)
    assert wanted is not None
    assert np.array_equal(got[4][0], wanted)
    assert np.array_equal(got[0][0], wanted.astype(BF16))


@pytest.mark.parametrize("steps", [0, 1, 1000, 2**31 - 2])
def test_bias_correction_at_any_step(device: Device, steps: int) -> None:
    for b1, b2 in ((0.9, 0.999), (0.0, 0.5), (0.99999, 0.9999999)):
        results = []
        for where in (device, "cpu"):
            p, m, v = (to_device(np.full(3, x, F32), where) for x in (1.0, 0.5, 0.25))
            step = to_device(np.array(steps, np.int32), where)
            hyper = to_device(np.array([0.1, b1, b2, 1e-8, 0.0], F32), where)
            adam([p], [to_device(np.ones(3, F32), where)], [m], [v], [None], hyper, step)
            results.append(to_numpy(p))
        assert np.array_equal(*results)
        t, c1, c2 = steps + 1, np.float64(F32.type(b1)), np.float64(F32.type(b2))
        u = (c1 * 0.5 + 1 - c1) / (1 - c1**t) / (np.sqrt((c2 * 0.25 + 1 - c2) / (1 - c2**t)) + 1e-8)
        np.testing.assert_allclose(results[0], 1 - 0.1 * u, rtol=0, atol=0.1 * u * 1e-6)


def test_special_gradients(device: Device) -> None:
    problem = Problem(((6,), F32, F32, False))
    problem.grads = [np.array([0, np.inf, -np.inf, np.nan, 3e38, 1e-40], F32)]
    with np.errstate(all="raise"):
        got = problem.run(device, 2)
    assert same(got, problem.run("cpu", 2))
    assert got[0][0] is not None
    assert np.isfinite(got[0][0][[0, 5]]).all()


@given(data=st.data())
def test_any_layout(device: Device, data: st.DataObject) -> None:
    """Strided parameters, gradients and state: the same numbers as contiguous ones."""
    shape = data.draw(st.tuples(st.integers(0, 9), st.integers(1, 9)))
    mode, kept = data.draw(st.sampled_from(MODES)), data.draw(st.booleans())
    problem = Problem((shape, data.draw(st.sampled_from(COMPUTED)), data.draw(st.sampled_from(COMPUTED)), kept))
    wanted = problem.run("cpu", 2, mode=mode)
    views = []
    for xs in (problem.params, problem.grads, problem.m, problem.v, problem.master):
        if xs[0] is None:
            views.append([None])
            continue
        base = to_device(np.zeros((2 * shape[1], shape[0]), xs[0].dtype), device)
        start = to_numpy(base)
        start[::-2].T[...] = xs[0]
        views.append([to_device(start, device)[::-2].T])
    step = to_device(np.zeros((), np.int32), device)
    for _ in range(2):
        adam(*views, to_device(np.array(HYPER, F32), device), step, mode=mode)
    got: Any = [[None if x is None else np.ascontiguousarray(to_numpy(x)) for x in xs] for xs in views]
    assert same(got, wanted)


@pytest.mark.parametrize("flag", [1.0, np.nan])
def test_a_skipped_step_writes_nothing(device: Device, flag: float) -> None:
    problem = Problem(((300,), BF16, BF16, True), ((7, 5), F32, F32, False), ((9,), F16, F32, False))
    lists = [
        [None if x is None else to_device(x.copy(), device) for x in xs]
        for xs in (problem.params, problem.grads, problem.m, problem.v, problem.master)
    ]
    hyper, step = to_device(np.array(HYPER, F32), device), to_device(np.zeros((), np.int32), device)
    for k, value in enumerate((flag, 0.0, flag, -0.0, flag)):
        before = [[None if x is None else to_numpy(x).copy() for x in xs] for xs in lists]
        adam(*lists, hyper, step, skip=to_device(np.array(value, F32), device))
        after = [[None if x is None else to_numpy(x) for x in xs] for xs in lists]
        assert int(to_numpy(step)) == (k + 1) // 2
        assert same(before, after) is (value != 0)
    assert same(after, problem.run("cpu", 2))


def test_what_does_not_fit(device: Device) -> None:
    def call(**changes: Any) -> None:
        one = {name: np.ones(3, F32) for name in ("params", "grads", "exp_avg", "exp_avg_sq")}
        words = {"hyper": np.array(HYPER, F32), "step": np.zeros((), np.int32), "skip": np.zeros((), F32)}
        moved = {k: to_device(changes.pop(k, x), device) for k, x in {**one, **words}.items()}
        lists = {k: [moved[k]] for k in one}
        adam(**{"master": [None], **lists, **{k: moved[k] for k in words}, **changes})

    call()
    with pytest.raises(ValueError, match="mode"):
        call(mode="sgd")
    with pytest.raises(TypeError, match="params of float32"):
        call(params=np.ones(3))
    with pytest.raises(TypeError, match="exp_avg of float32"):
        call(exp_avg=np.ones(3, F16))
    with pytest.raises(ValueError, match="grads of shape"):
        call(grads=np.ones(2, F32))
    with pytest.raises(ValueError, match="lists of one length"):
        call(master=[])
    with pytest.raises(ValueError, match="hyper as float32"):
        call(hyper=np.ones(4, F32))
    with pytest.raises(TypeError, match="skip as a float32"):
        call(skip=np.zeros((), np.int32))
    with pytest.raises(ValueError, match="step as an int32"):
        call(step=np.zeros(1, np.int32))
    if device.type == "cpu":
        fixed = np.ones(3, F32)
        fixed.flags.writeable = False
        with pytest.raises(ValueError, match="a writeable parameter"):
            call(params=fixed)
