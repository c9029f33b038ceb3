"""Groups of parameters: hyperparameters of their own, one learning rate for all, state; Adam with L2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError
from tests.data.load import load


def parameters(*values: float) -> list[nf.Array]:
    return [nf.parameter(nf.full((3,), value)) for value in values]


def test_each_group_has_its_own_numbers(device: Any) -> None:
    a, b = parameters(1.0, 1.0)
    optimizer = nf.optim.AdamW(
        [{"params": {"a": a}}, {"params": {"b": b}, "lr": 0.2, "betas": (0.5, 0.6), "weight_decay": 0.0}],
        lr=0.1,
        weight_decay=0.5,
    )
    alone = parameters(1.0, 1.0)
    single = [
        nf.optim.AdamW({"a": alone[0]}, lr=0.1, weight_decay=0.5),
        nf.optim.AdamW({"b": alone[1]}, lr=0.2, betas=(0.5, 0.6), weight_decay=0.0),
    ]
    for _ in range(3):
        for p in (a, b, *alone):
            p.grad = nf.full((3,), 0.25)
        optimizer.step()
        for other in single:
            other.step()
    for p, q in zip((a, b), alone, strict=True):
        assert np.array_equal(np.asarray(p), np.asarray(q))
    assert optimizer.step_count == 3 and list(optimizer.params) == ["a", "b"]


def test_one_rate_for_all_keeps_the_groups_ratios(device: Any) -> None:
    a, b = parameters(1.0, 1.0)
    optimizer = nf.optim.AdamW([{"params": {"a": a}, "lr": 0.3}, {"params": {"b": b}}], lr=0.1)
    assert optimizer.lr == 0.1
    optimizer.lr = 0.02
    assert [group.values["lr"] for group in optimizer.groups] == [pytest.approx(0.06), 0.02]
    assert optimizer.lr == 0.02
    assert np.asarray(optimizer.state_dict()["hyper"])[0] == np.float32(optimizer.groups[0].values["lr"])


def test_state_of_groups_round_trips(device: Any) -> None:
    def make(values: tuple[float, float]) -> tuple[list[nf.Array], nf.optim.AdamW]:
        a, b = parameters(*values)
        return [a, b], nf.optim.AdamW([{"params": {"a": a}}, {"params": {"b": b}, "lr": 0.5}], lr=0.1)

    first, optimizer = make((1.0, 2.0))
    for p in first:
        p.grad = nf.full((3,), 0.5)
    optimizer.step()
    state = {k: np.array(v) for k, v in optimizer.state_dict().items()}
    assert {"step", "hyper", "step.1", "hyper.1", "exp_avg.a", "exp_avg_sq.b"} <= set(state)
    second, other = make(tuple(p.tolist()[0] for p in first))  # type: ignore[arg-type]
    other.load_state_dict(state)
    for p in (*first, *second):
        p.grad = nf.full((3,), -0.25)
    optimizer.step()
    other.step()
    assert all(np.array_equal(np.asarray(p), np.asarray(q)) for p, q in zip(first, second, strict=True))


def test_groups_are_checked(device: Any) -> None:
    a, b = parameters(1.0, 2.0)
    for groups, kind, text in (
        ([{"params": {"a": a}}, {"params": {"a": b}}], ArgumentError, "names that differ"),
        ([{"params": {"a": a}, "momentum": 0.9}], ArgumentError, "momentum"),
        ([{"lr": 0.1}], DTypeError, "groups"),
        ([], ArgumentError, "at least one parameter"),
        ([{"params": {"a": a}, "lr": -1.0}], ArgumentError, "lr"),
    ):
        with pytest.raises(kind, match=text):
            nf.optim.AdamW(groups)  # type: ignore[arg-type]


def test_a_waiting_gradient_stops_the_step_before_any_group_moves(device: Any) -> None:
    layer = nf.nn.Linear(4, 4, bias=False, delay_wgrad_compute=True)
    (a,) = parameters(1.0)
    optimizer = nf.optim.AdamW([{"params": {"a": a}}, {"params": layer.parameters()}], lr=0.1)
    layer(nf.ones((2, 4))).sum().backward()
    a.grad = nf.ones((3,))
    with pytest.raises(nf.errors.StateError, match="backward_dw"):
        optimizer.step()
    assert a.tolist() == [1.0, 1.0, 1.0] and optimizer.step_count == 0


def test_te_fused_adam_l2_within_two_ulp_per_step(device: Any) -> None:
    data = load("te_optim")
    p = nf.parameter(nf.asarray(data["adam_l2.p0"]))
    optimizer = nf.optim.Adam({"p": p}, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(5):
        p.grad = nf.asarray(data[f"adam_l2.g{step}"])
        optimizer.step()
        before, want, got = data[f"adam_l2.p{step}"], data[f"adam_l2.p{step + 1}"], np.asarray(p)
        size = np.maximum.reduce([np.abs(before), np.abs(want), np.abs(want - before)])
        ulp = np.abs(got.astype(np.float64) - want) / np.spacing(size)
        assert ulp.max() <= 2 * (step + 1), f"step {step + 1}: {ulp.max()} ulp"


def test_a_gradient_of_another_dtype_stops_the_step_before_any_group_moves(device: Any) -> None:
    a, b = parameters(1.0, 1.0)
    optimizer = nf.optim.AdamW([{"params": {"a": a}}, {"params": {"b": b}}], lr=0.1)
    a.grad, b.grad = nf.ones((3,)), nf.ones((3,), dtype=nf.int32)
    with pytest.raises(nf.errors.DTypeError, match="gradient of b"):
        optimizer.step()
    assert a.tolist() == [1.0, 1.0, 1.0] and optimizer.step_count == 0


@pytest.mark.parametrize("values", [{"rate": 1.0}, {"lr": float("nan")}, {"lr": 0.5, "eps": "x"}])
def test_set_refuses_what_is_no_hyperparameter(device: Any, values: dict[str, Any]) -> None:
    (a,) = parameters(1.0)
    (group,) = nf.optim.AdamW({"a": a}, lr=0.1).groups
    before = dict(group.values)
    with pytest.raises(nf.errors.ArgumentError):
        group.set(**values)
    assert group.values == before
