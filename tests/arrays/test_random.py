"""Generators: equal seeds give equal draws everywhere, state continues them, shapes and distributions."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, StateError


def rng(seed: Any = 0, **options: Any) -> Any:
    return nf.random.default_rng(seed, **options)


def draws(g: Any, device: str | None = None) -> list[Any]:
    return [
        np.asarray(x)
        for x in (
            g.random((3, 5), device=device),
            g.uniform(-2, 2, 7, device=device),
            g.integers(-3, 9, (4, 4), device=device),
            g.permutation(20, device=device),
            g.choice(50, 8, device=device),
            g.choice(9, 9, replace=False, device=device),
            g.choice(3, 6, p=[0.2, 0.5, 0.3], device=device),
        )
    ]


def test_equal_seeds_give_equal_draws_and_others_do_not(device: Any) -> None:
    for a, b in zip(draws(rng(7)), draws(rng(7), "cpu"), strict=True):
        np.testing.assert_array_equal(a, b)  # the CPU's bits, whatever the device
    assert any(not np.array_equal(a, b) for a, b in zip(draws(rng(7)), draws(rng(8)), strict=True))
    np.testing.assert_allclose(
        np.asarray(rng(1).normal(size=100)), np.asarray(rng(1).normal(size=100, device="cpu")), rtol=1e-5, atol=1e-6
    )


def test_without_a_seed_entropy_is_fresh() -> None:
    assert not nf.array_equal(rng(None).random(8), rng(None).random(8))


def test_a_draw_does_not_depend_on_what_follows_it() -> None:
    g, h = rng(3), rng(3)
    g.random(5)
    h.random(500)
    assert nf.array_equal(g.random(4), h.random(4))
    assert nf.array_equal(rng(3).random(100)[:5], rng(3).random(5))


def test_state_is_plain_data_and_continues() -> None:
    g = rng(2**100 + 1)
    g.random(3)
    g.spawn(2)
    state = json.loads(json.dumps(g.state))
    expected = (draws(g), g.spawn(1)[0].random(4))
    other = rng()
    other.state = state
    for a, b in zip(draws(other), expected[0], strict=True):
        np.testing.assert_array_equal(a, b)
    assert nf.array_equal(other.spawn(1)[0].random(4), expected[1])
    for bad in ({}, {"bit_generator": "MT"}, 5, {**state, "draws": "x"}):
        with pytest.raises(StateError, match=r"\[Generator\.state\]"):
            other.state = bad


def test_spawned_generators_differ_from_each_other_and_the_parent() -> None:
    g = rng(0)
    first, second = g.spawn(2)
    third = g.spawn(1)[0]
    values = {tuple(x.random(4).tolist()) for x in (g, first, second, third)}
    assert len(values) == 4
    assert nf.array_equal(rng(0).spawn(1)[0].random(4), rng(0).spawn(2)[0].random(4))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "nvfp4"])
def test_dtypes_and_shapes(dtype: str, device: Any) -> None:
    for x in (rng().normal(size=(2, 32), dtype=dtype), rng().uniform(size=(2, 32), dtype=dtype)):
        assert x.shape == (2, 32) and str(x.dtype) == dtype and x.device is device
    assert (
        rng().random().shape == () and rng().random(3).shape == (3,) and rng().standard_normal((0, 2)).shape == (0, 2)
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_distributions(dtype: str) -> None:
    n = 200_000
    u = np.asarray(rng(1).uniform(-1, 3, n, dtype=dtype), np.float64)
    assert u.min() >= -1 and u.max() < 3 and abs(u.mean() - 1) < 0.02 and abs(u.var() - 16 / 12) < 0.02
    z = np.asarray(rng(2).normal(5, 2, n, dtype=dtype), np.float64)
    assert abs(z.mean() - 5) < 0.03 and abs(z.std() - 2) < 0.02
    i = np.asarray(rng(3).integers(0, 10, n))
    assert (np.abs(np.bincount(i, minlength=10) / n - 0.1) < 0.005).all()
    c = np.bincount(np.asarray(rng(4).choice(3, n, p=[0.2, 0.5, 0.3])), minlength=3) / n
    np.testing.assert_allclose(c, [0.2, 0.5, 0.3], atol=0.005)


def test_integers() -> None:
    g = rng(0)
    assert set(g.integers(3, size=100).tolist()) == {0, 1, 2}
    assert set(g.integers(1, 2, size=100, endpoint=True).tolist()) == {1, 2}
    assert g.integers(0, 256, size=4, dtype="uint8").dtype == nf.uint8
    assert int(nf.max(g.integers(-(2**63), 2**63, size=1000))) > 2**60
    for low, high, dtype in ((3, 3, "int64"), (5, 2, "int64"), (0, 300, "uint8"), (-1, 5, "uint8")):
        with pytest.raises(ArgumentError, match=r"\[integers\]"):
            g.integers(low, high, dtype=dtype)
    with pytest.raises(DTypeError, match=r"\[integers\]"):
        g.integers(3, dtype="float32")


def test_permutation_and_choice_of_arrays() -> None:
    x = nf.asarray(np.arange(12).reshape(4, 3))
    p = rng(0).permutation(x)
    assert sorted(p.tolist()) == x.tolist() and sorted(rng(0).permutation(x, axis=1).T.tolist()) == x.T.tolist()
    assert sorted(rng(5).permutation(1000).tolist()) == list(range(1000))
    assert rng(0).choice(x, 2).shape == (2, 3) and sorted(rng(0).choice(5, 5, replace=False).tolist()) == [
        0,
        1,
        2,
        3,
        4,
    ]
    for call in (
        lambda: rng().choice(3, 4, replace=False),
        lambda: rng().choice(3, 2, p=[0.5, 0.5]),
        lambda: rng().uniform(dtype="float32", size=-1),
        lambda: rng().normal(0, -1),
    ):
        with pytest.raises(ArgumentError):
            call()


def test_weighted_choice_without_repeats(device: Any) -> None:
    p = [0.1, 0.0, 0.6, 0.3]
    drawn = np.asarray([rng(seed).choice(4, 2, replace=False, p=p).tolist() for seed in range(400)])
    assert (drawn[:, 0] != drawn[:, 1]).all() and not (drawn == 1).any()
    np.testing.assert_allclose(np.bincount(drawn[:, 0], minlength=4) / 400, p, atol=0.08)
    later = (drawn[:, 1] == 3).mean()  # 3 in second place: after 0, or after 2
    assert abs(later - (0.1 * 0.3 / 0.9 + 0.6 * 0.3 / 0.4)) < 0.08
    assert sorted(rng(0).choice(4, (3,), replace=False, p=p).tolist()) == [0, 2, 3]
    for wrong in ([0.5, 0.5], [0.5, 0.5, -0.5, 0.5], [np.nan, 1, 0, 0]):
        with pytest.raises(ArgumentError, match=r"\[choice\] expected 4 probabilities"):
            rng().choice(4, 2, p=wrong)
    with pytest.raises(ArgumentError, match="4 of 3 with a probability above 0"):
        rng().choice(4, 4, replace=False, p=p)


def test_shuffle(device: Any) -> None:
    x = nf.asarray(np.arange(24, dtype=np.float32).reshape(6, 4)).astype(nf.bfloat16)
    view, expected = x[:], rng(1).permutation(x, axis=1)
    rng(1).shuffle(x, axis=1)
    assert nf.array_equal(x, expected) and not nf.array_equal(x, view)
    parameter = nf.parameter(view)
    storage = parameter.storage
    with nf.no_grad():
        rng(1).shuffle(parameter)
    assert parameter.storage is storage and sorted(parameter.tolist()) == view.tolist()
    for wrong in ([1, 2], np.ones(3), nf.ones((2, 32)).astype(nf.mxfp8)):
        with pytest.raises(DTypeError, match=r"\[shuffle\]"):
            rng().shuffle(wrong)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_exponential(dtype: str, device: Any) -> None:
    x = np.asarray(rng(0).exponential(3, 100_000, dtype=dtype), np.float64)
    assert x.min() >= 0 and abs(x.mean() - 3) < 0.05 and abs(x.std() - 3) < 0.1 and abs((x > 3).mean() - 0.3679) < 0.01
    cpu = np.asarray(rng(0).exponential(3, 100, dtype=dtype, device="cpu"), np.float64)
    np.testing.assert_allclose(x[:100], cpu, rtol=1e-2 if dtype == "bfloat16" else 1e-5)
    assert rng().exponential(size=(2, 32), dtype="nvfp4").dtype == nf.nvfp4
    with pytest.raises(ArgumentError, match=r"\[exponential\]"):
        rng().exponential(-1)
    with pytest.raises(DTypeError, match=r"\[exponential\]"):
        rng().exponential(dtype="int32")


def test_seeds() -> None:
    g = rng(0)
    assert nf.random.default_rng(g) is g
    for bad in (-1, 1.5, "a", True):
        with pytest.raises(ArgumentError, match=r"\[default_rng\]"):
            rng(bad)


def test_threads_share_a_generator_without_repeating() -> None:
    g = rng(0)
    seen: list[float] = []

    def work() -> None:
        seen.extend(g.random(dtype=nf.float64).item() for _ in range(100))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(seen)) == 400


@pytest.mark.parametrize("through", [copy.copy, copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))])
def test_copies_and_pickles_continue_the_sequence(through: Any) -> None:
    g = rng(3, device="cpu").spawn(2)[1]
    g.normal(size=3)
    twin = through(g)
    assert twin.state == g.state and twin.normal(size=4).tolist() == g.normal(size=4).tolist()
    assert twin.normal(size=1).device == nf.Device("cpu")


def test_a_refused_spawn_or_state_changes_nothing() -> None:
    g = rng(1)
    before = g.state
    with pytest.raises(ArgumentError, match=r"\[spawn\] expected n >= 0"):
        g.spawn(-1)
    with pytest.raises(StateError):
        g.state = {**before, "draws": -1}
    assert g.state == before
