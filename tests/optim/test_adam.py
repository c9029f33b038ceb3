"""AdamW as an object: bits of the kernel, master weights, state, resume. Numbers of TE's FusedAdam."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, StateError
from tests.data.load import load


def test_te_fused_adamw_within_two_ulp_per_step(device: Any) -> None:
    data = load("te_optim")
    p = nf.parameter(nf.asarray(data["adamw.p0"]))
    optimizer = nf.optim.AdamW({"p": p}, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(5):
        p.grad = nf.asarray(data[f"adamw.g{step}"])
        optimizer.step()
        before, want, got = data[f"adamw.p{step}"], data[f"adamw.p{step + 1}"], np.asarray(p)
        # In ulp of the largest operand of p - lr u: where that cancels, no two orders of rounding agree in ulp of p.
        size = np.maximum.reduce([np.abs(before), np.abs(want), np.abs(want - before)])
        ulp = np.abs(got.astype(np.float64) - want) / np.spacing(size)
        assert ulp.max() <= 2 * (step + 1), f"step {step + 1}: {ulp.max()} ulp"
    assert optimizer.step_count == 5


def test_bf16_parameters_follow_their_float32_master(device: Any) -> None:
    rng = np.random.default_rng(0)
    start, grads = rng.standard_normal(100).astype(np.float32), rng.standard_normal((20, 100)).astype(np.float32)
    wide = nf.parameter(nf.asarray(start).astype(nf.bfloat16).astype(nf.float32))
    narrow = nf.parameter(nf.asarray(start).astype(nf.bfloat16))
    a, b = nf.optim.AdamW({"p": wide}, lr=1e-4), nf.optim.AdamW({"p": narrow}, lr=1e-4)
    for g in grads:
        g = np.asarray(nf.asarray(g).astype(nf.bfloat16).astype(nf.float32))
        wide.grad, narrow.grad = nf.asarray(g), nf.asarray(g).astype(nf.bfloat16)
        a.step()
        b.step()
    assert np.array_equal(np.asarray(b.state_dict()["master.p"]), np.asarray(wide))
    assert np.array_equal(np.asarray(narrow), np.asarray(wide.astype(nf.bfloat16)))


def test_parameters_keep_their_address_and_count_writes(device: Any) -> None:
    p = nf.parameter(nf.ones((3,)))
    raw, version = p.raw, p.storage.version
    optimizer = nf.optim.AdamW({"p": p}, lr=0.1)
    p.sum().backward()
    optimizer.step()
    assert p.raw is raw and p.storage.version == version + 1


def test_a_parameter_without_gradient_is_left_alone(device: Any) -> None:
    p, q = nf.parameter(nf.ones((3,))), nf.parameter(nf.ones((2,)))
    optimizer = nf.optim.AdamW({"p": p, "q": q}, lr=0.1)
    p.sum().backward()
    optimizer.step()
    assert np.asarray(q).tolist() == [1, 1] and np.asarray(p)[0] != 1
    optimizer.zero_grad()
    assert p.grad is None
    optimizer.step()
    assert optimizer.step_count == 1


def test_learning_rate_can_change_between_steps(device: Any) -> None:
    p = nf.parameter(nf.ones((1,)))
    optimizer = nf.optim.AdamW({"p": p}, lr=0.5, weight_decay=0.0)
    optimizer.lr = 0.0
    p.sum().backward()
    optimizer.step()
    assert optimizer.lr == 0.0 and p.item() == 1.0


def test_state_round_trip_continues_with_the_same_bits(device: Any) -> None:
    def steps(optimizer: nf.optim.AdamW, p: nf.Array, grads: np.ndarray) -> None:
        for g in grads:
            p.grad = nf.asarray(g)
            optimizer.step()

    grads = np.random.default_rng(1).standard_normal((6, 10)).astype(np.float32)
    p = nf.parameter(nf.zeros((10,)))
    optimizer = nf.optim.AdamW({"p": p}, lr=0.01)
    steps(optimizer, p, grads[:3])
    state = {k: np.array(v) for k, v in optimizer.state_dict().items()}
    q = nf.parameter(p.detach() + 0.0)
    other = nf.optim.AdamW({"p": q}, lr=0.7)
    other.load_state_dict(state)
    assert other.lr == pytest.approx(0.01)
    steps(optimizer, p, grads[3:])
    steps(other, q, grads[3:])
    assert np.array_equal(np.asarray(p), np.asarray(q))


def test_errors(device: Any) -> None:
    p = nf.parameter(nf.ones((3,)))
    with pytest.raises(ArgumentError, match="at least one parameter"):
        nf.optim.AdamW({})
    with pytest.raises(ArgumentError, match="betas"):
        nf.optim.AdamW({"p": p}, betas=(1.0, 0.9))
    with pytest.raises(StateError, match="names and shapes"):
        nf.optim.AdamW({"p": p}).load_state_dict({"step": np.zeros((), np.int32)})


def test_tied_weights_are_updated_once(device: Any) -> None:
    w = nf.parameter(nf.ones((2,)))
    w.grad = nf.ones((2,))
    tied = nf.optim.AdamW({"a": w, "b": w}, lr=0.1, weight_decay=0.0)
    tied.step()
    assert list(tied.params) == ["a"] and np.allclose(np.asarray(w), 0.9)


@pytest.mark.parametrize(
    "options",
    [{"lr": "a"}, {"lr": None}, {"lr": -1.0}, {"lr": float("inf")}, {"betas": 0.9}, {"betas": (0.9,)},
     {"betas": ("a", "b")}, {"betas": (1.0, 0.9)}, {"eps": float("nan")}, {"weight_decay": "x"}],
    ids=repr,
)  # fmt: skip
def test_hyperparameters_are_checked(device: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=r"\[AdamW\] expected "):
        nf.optim.AdamW({"w": nf.parameter(nf.ones((2,)))}, **options)


def test_a_refused_learning_rate_changes_nothing(device: Any) -> None:
    optimizer = nf.optim.AdamW({"w": nf.parameter(nf.ones((2,)))}, lr=0.5)
    for value in ("q", -1.0, None):
        with pytest.raises(ArgumentError):
            optimizer.lr = value  # type: ignore[assignment]
    assert optimizer.lr == 0.5


@pytest.mark.parametrize("params", [None, [1], {"a": 1}, {"a": np.ones(3)}], ids=repr)
def test_what_is_no_parameter_is_refused(device: Any, params: Any) -> None:
    with pytest.raises(DTypeError, match=r"\[AdamW\] expected "):
        nf.optim.AdamW(params)
    for p in (nf.parameter(nf.ones((2,), dtype=nf.float64)), nf.ones((2, 32)).astype(nf.mxfp8)):
        with pytest.raises(DTypeError, match="Arrays of float32, bfloat16 or float16"):
            nf.optim.AdamW({"a": p})


def test_a_state_of_another_kind_changes_nothing(device: Any) -> None:
    optimizer = nf.optim.AdamW({"w": nf.parameter(nf.ones((2,)))})
    good = {k: np.array(v) for k, v in optimizer.state_dict().items()}
    for state in (None, {**good, "hyper": "abc"}, {**{k: v + 1 for k, v in good.items()}, "exp_avg_sq.w": np.ones(3)}):
        with pytest.raises((DTypeError, StateError)):
            optimizer.load_state_dict(state)  # type: ignore[arg-type]
    assert all(np.array_equal(good[k], np.asarray(v)) for k, v in optimizer.state_dict().items())
