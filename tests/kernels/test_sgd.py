"""`kernels.sgd` on every device: torch's steps, float64, and the CPU's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.device import Device
from nvfp.kernels.sgd import sgd
from tests.devices import need_oracle, to_device, to_numpy
from tests.kernels.dense import BF16, COMPUTED, F16, F32, bits, normal
from tests.oracles import sgd as oracle
from tests.tolerances import check

HYPER = (1e-2, 0.9, 0.0, 0.1)
Arrays = list[np.ndarray | None]
nesterovs = pytest.mark.parametrize("nesterov", [False, True])


class Problem:
    """Parameters, gradients and state as NumPy arrays; `run` takes steps on a device and brings them back."""

    def __init__(self, *entries: tuple[tuple[int, ...], np.dtype, np.dtype, bool, bool]) -> None:
        self.params = [normal(shape, p, k) for k, (shape, p, *_) in enumerate(entries)]
        self.grads = [normal(shape, g, 100 + k) for k, (shape, _, g, *_) in enumerate(entries)]
        # What a buffer held before the first step does not count.
        self.momentum: Arrays = [np.full(shape, np.nan, F32) if held else None for shape, _, _, held, _ in entries]
        self.master: Arrays = [
            p.astype(F32) + F32.type(1e-4) if kept else None for p, (*_, kept) in zip(self.params, entries)
        ]

    def run(
        self, device: Device | str, steps: int = 1, hyper: tuple[float, ...] = HYPER, nesterov: bool = False
    ) -> list[Arrays]:
        copies: list[list[Any]] = [
            [None if x is None else to_device(x.copy(), device) for x in xs]
            for xs in (self.params, self.grads, self.momentum, self.master)
        ]
        step = to_device(np.zeros((), np.int32), device)
        for k in range(steps):
            sgd(*copies, to_device(np.array(hyper, F32), device), step, nesterov=nesterov)
            assert int(to_numpy(step)) == k + 1
        return [[None if x is None else to_numpy(x) for x in xs] for xs in copies]


def same(a: list[Arrays], b: list[Arrays]) -> bool:
    pairs = [(x, y) for xs, ys in zip(a, b) for x, y in zip(xs, ys)]
    return all((x is None) is (y is None) and (x is None or np.array_equal(bits(x), bits(y))) for x, y in pairs)


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("momentum", "dampening", "nesterov"), [(0.0, 0.0, False), (0.9, 0.0, False), (0.9, 0.25, False), (0.9, 0.0, True)]
)
def test_torch_and_float64(device: Device, momentum: float, dampening: float, nesterov: bool) -> None:
    torch = need_oracle("torch")
    problem = Problem(((33, 17), F32, F32, momentum != 0, False))
    lr, _, _, decay = HYPER
    hyper = (lr, momentum, dampening, decay)
    leaf = torch.tensor(problem.params[0], requires_grad=True)
    rule = torch.optim.SGD([leaf], lr=lr, momentum=momentum, dampening=dampening, weight_decay=decay, nesterov=nesterov)
    state: oracle.State = (problem.params[0], problem.momentum[0])
    for k in range(1, 11):
        leaf.grad = torch.tensor(problem.grads[0])
        rule.step()
        state = oracle.sgd(state, problem.grads[0], k, hyper, nesterov)
    params, _, buffers, _ = problem.run(device, 10, hyper, nesterov)
    check(params[0], leaf.detach().numpy(), "sgd_steps", scale=1)
    check(params[0], state[0], "sgd_steps", scale=1)
    if state[1] is not None:
        check(buffers[0], rule.state[leaf]["momentum_buffer"].numpy(), "sgd_steps", scale=1)
        check(buffers[0], state[1], "sgd_steps", scale=1)


@pytest.mark.sanitizer
@nesterovs
def test_bits_of_all_dtypes(device: Device, nesterov: bool) -> None:
    flags = [(held, kept) for held in (False, True) for kept in (False, True)]
    entries = [((257,), p, g, *flag) for p in COMPUTED for g in COMPUTED for flag in flags]
    problem = Problem(*entries, ((), F32, F32, True, False), ((0, 3), F32, F32, True, True))
    got = problem.run(device, 3, (1e-2, 0.9, 0.5, 0.1), nesterov)
    assert same(got, problem.run("cpu", 3, (1e-2, 0.9, 0.5, 0.1), nesterov))


def test_many_and_large_tensors(device: Device) -> None:
    small = [((k % 50 + 1,), BF16, BF16, True, True) for k in range(150)]
    large = [((4096,), BF16, BF16, True, True), ((4097,), BF16, BF16, False, False), ((99_001,), F32, F32, True, False)]
    problem = Problem(*small, *large)
    assert same(problem.run(device, 2), problem.run("cpu", 2))


@pytest.mark.parametrize("flag", [1.0, -2.0, np.inf, np.nan])
def test_a_skipped_step_writes_nothing(device: Device, flag: float) -> None:
    def word(value: float) -> Any:
        return to_device(np.array(value, F32), device)

    problem = Problem(((300,), BF16, BF16, True, True), ((7, 5), F32, F32, True, False), ((9,), F16, F32, False, False))
    lists = [
        [None if x is None else to_device(x.copy(), device) for x in xs]
        for xs in (problem.params, problem.grads, problem.momentum, problem.master)
    ]
    hyper, step = to_device(np.array(HYPER, F32), device), to_device(np.zeros((), np.int32), device)
    wanted = problem.run("cpu", 2)
    for skip in (word(flag), word(0.0), word(flag), word(-0.0), word(flag)):
        before = [[None if x is None else to_numpy(x).copy() for x in xs] for xs in lists]
        count = int(to_numpy(step))
        sgd(*lists, hyper, step, skip=skip)
        skipped = bool(to_numpy(skip) != 0)
        assert int(to_numpy(step)) == count + (not skipped)
        after = [[None if x is None else to_numpy(x) for x in xs] for xs in lists]
        assert same(before, after) is skipped
    assert same(after, wanted)


def test_special_gradients(device: Device) -> None:
    problem = Problem(((6,), F32, F32, True, False))
    problem.grads = [np.array([0, np.inf, -np.inf, np.nan, 3e38, 1e-40], F32)]
    assert same(problem.run(device, 3), problem.run("cpu", 3))


@given(data=st.data())
def test_any_layout(device: Device, data: st.DataObject) -> None:
    """Strided parameters, gradients and state: the same numbers as contiguous ones."""
    shape = data.draw(st.tuples(st.integers(0, 9), st.integers(1, 9)))
    held, kept, nesterov = (data.draw(st.booleans()) for _ in range(3))
    problem = Problem((shape, data.draw(st.sampled_from(COMPUTED)), data.draw(st.sampled_from(COMPUTED)), held, kept))
    wanted = problem.run("cpu", 2, nesterov=nesterov)
    views = []
    for xs in (problem.params, problem.grads, problem.momentum, problem.master):
        if xs[0] is None:
            views.append([None])
            continue
        base = to_device(np.zeros((2 * shape[1], shape[0]), xs[0].dtype), device)
        start = to_numpy(base)
        start[::-2].T[...] = xs[0]
        views.append([to_device(start, device)[::-2].T])
    step = to_device(np.zeros((), np.int32), device)
    for _ in range(2):
        sgd(*views, to_device(np.array(HYPER, F32), device), step, nesterov=nesterov)
    got: Any = [[None if x is None else np.ascontiguousarray(to_numpy(x)) for x in xs] for xs in views]
    assert same(got, wanted)


def test_what_does_not_fit(device: Device) -> None:
    def call(**changes: Any) -> None:
        one = {name: np.ones(3, F32) for name in ("params", "grads", "momentum")}
        words = {"hyper": np.array(HYPER, F32), "step": np.zeros((), np.int32), "skip": np.zeros((), F32)}
        moved = {k: to_device(changes.pop(k, x), device) for k, x in {**one, **words}.items()}
        lists = {k: [moved[k]] for k in one}
        sgd(**{"master": [None], **lists, **{k: moved[k] for k in words}, **changes})

    call()
    with pytest.raises(TypeError, match="params of float32"):
        call(params=np.ones(3))
    with pytest.raises(TypeError, match="momentum of float32"):
        call(momentum=np.ones(3, F16))
    with pytest.raises(ValueError, match="grads of shape"):
        call(grads=np.ones(2, F32))
    with pytest.raises(ValueError, match="lists of one length"):
        call(master=[])
    with pytest.raises(ValueError, match="hyper as float32"):
        call(hyper=np.ones(5, F32))
    with pytest.raises(ValueError, match="step as an int32"):
        call(step=np.zeros(1, np.int32))
    with pytest.raises(TypeError, match="skip as a float32"):
        call(skip=np.zeros((), np.int32))
    if device.type == "cpu":
        fixed = np.ones(3, F32)
        fixed.flags.writeable = False
        with pytest.raises(ValueError, match="a writeable parameter"):
            call(params=fixed)
