"""SGD as an object against torch; a flag on the device that skips a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, NotBuiltError, StateError
from tests.devices import need_oracle

CASES = [
    {"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
    {"lr": 0.1, "momentum": 0.9, "nesterov": True},
]  # fmt: skip


@pytest.mark.oracle
@pytest.mark.parametrize("options", CASES, ids=str)
def test_as_torch(options: dict[str, Any]) -> None:
    torch = need_oracle("torch")
    rng = np.random.default_rng(0)
    start = rng.standard_normal((7, 5)).astype(np.float32)
    theirs = torch.nn.Parameter(torch.from_numpy(start.copy()))
    other = torch.optim.SGD([theirs], **options)
    with nf.use_device("cpu"):
        w = nf.parameter(nf.asarray(start))
        optimizer = nf.optim.SGD({"w": w}, **options)
        for _ in range(5):
            g = rng.standard_normal(start.shape).astype(np.float32)
            theirs.grad, w.grad = torch.from_numpy(g.copy()), nf.asarray(g)
            other.step()
            optimizer.step()
            assert np.allclose(np.asarray(w), theirs.detach().numpy(), rtol=1e-6, atol=1e-6)


def test_a_buffer_only_where_there_is_a_momentum(device: Any) -> None:
    w = nf.parameter(nf.ones((3,), dtype=nf.bfloat16))
    assert list(nf.optim.SGD({"w": w}).state_dict()) == ["step", "hyper", "master.w"]
    groups = [{"params": {"w": w}, "momentum": 0.5}]
    assert "momentum_buffer.w" in nf.optim.SGD(groups).state_dict()


def test_state_round_trips(device: Any) -> None:
    grads = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
    a = nf.parameter(nf.ones((6,)))
    first = nf.optim.SGD({"w": a}, lr=0.1, momentum=0.9)
    for g in grads[:2]:
        a.grad = nf.asarray(g)
        first.step()
    b = nf.parameter(a.detach() + 0)
    second = nf.optim.SGD({"w": b}, lr=0.7, momentum=0.9)
    second.load_state_dict({k: np.array(v) for k, v in first.state_dict().items()})
    for g in grads[2:]:
        a.grad, b.grad = nf.asarray(g), nf.asarray(g)
        first.step()
        second.step()
    assert np.array_equal(np.asarray(a), np.asarray(b))


def test_nesterov_is_checked(device: Any) -> None:
    w = nf.parameter(nf.ones((3,)))
    for options in ({}, {"momentum": 0.9, "dampening": 0.1}):
        with pytest.raises(ArgumentError, match="nesterov"):
            nf.optim.SGD({"w": w}, nesterov=True, **options)


@pytest.mark.parametrize("kind", ["sgd", "adamw", "quantized"])
def test_a_flag_skips_a_step(device: Any, kind: str) -> None:
    """A NaN in one gradient leaves every parameter, the state and the count as they were; the next step is taken."""
    recipe = nf.recipes.MXFP8BlockScaling()
    with nf.quantized_model_init(enabled=kind == "quantized", recipe=recipe):
        model = nf.nn.Linear(32, 8, rng=nf.random.default_rng(0))
    make = nf.optim.SGD if kind == "sgd" else nf.optim.AdamW
    optimizer, flag = make(model.parameters(), lr=0.1), nf.zeros(())
    for poison in (True, False):
        before = {k: np.array(v) for k, v in (*model.state_dict().items(), *optimizer.state_dict().items())}
        for name, p in model.parameters().items():
            p.grad = nf.full(p.shape, np.nan if poison and name == "bias" else 0.5, dtype=nf.float32)
        nf.optim.clip_grad_norm(model.parameters(), 1.0, nonfinite=flag)
        optimizer.step(skip=flag)
        after = {k: np.array(v) for k, v in (*model.state_dict().items(), *optimizer.state_dict().items())}
        same = all(a.tobytes() == after[k].tobytes() for k, a in before.items())
        assert float(flag) == float(poison) and same == poison
    assert optimizer.step_count == 1


def test_flags_are_checked(device: Any) -> None:
    w = nf.parameter(nf.ones((2, 2)))
    w.grad = nf.ones((2, 2))
    for bad in (True, nf.zeros((1,)), nf.zeros((), dtype=nf.int32)):
        with pytest.raises(DTypeError, match="skip"):
            nf.optim.AdamW({"w": w}).step(skip=bad)  # type: ignore[arg-type]
        with pytest.raises(DTypeError, match="nonfinite"):
            nf.optim.clip_grad_norm({"w": w}, 1.0, nonfinite=bad)  # type: ignore[arg-type]
    with pytest.raises(NotBuiltError, match="skip"):
        nf.optim.Muon({"w": w}).step(skip=nf.zeros(()))


def test_a_flag_without_a_bound(device: Any) -> None:
    w, flag = nf.parameter(nf.ones((3,))), nf.ones(())
    w.grad = nf.asarray([1.0, 2.0, 2.0])
    assert float(nf.optim.clip_grad_norm({"w": w}, float("inf"), nonfinite=flag)) == 3.0
    assert float(flag) == 0.0 and w.grad.tolist() == [1.0, 2.0, 2.0]


def test_a_momentum_without_a_buffer_is_refused(device: Any) -> None:
    w = nf.parameter(nf.ones((3,)))
    optimizer = nf.optim.SGD({"w": w}, lr=1.0)
    optimizer.groups[0].set(momentum=0.9)
    w.grad = nf.ones((3,))
    with pytest.raises(StateError, match="momentum"):
        optimizer.step()
    assert w.tolist() == [1.0, 1.0, 1.0] and optimizer.step_count == 0
