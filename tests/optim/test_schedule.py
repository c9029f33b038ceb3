"""Learning rates over steps."""

from __future__ import annotations

import math
from typing import Any

import pytest

import nvfp as nf
from nvfp.errors import ArgumentError
from nvfp.optim.schedule import Schedule


def test_warm_up_plateau_and_decay() -> None:
    rate = nf.optim.wsd(2.0, 10, warmup=2, decay=4, final=0.4)
    assert [rate(step) for step in range(12)] == pytest.approx([1, 2, 2, 2, 2, 2, 2, 1.6, 1.2, 0.8, 0.4, 0.4])


def test_cosine_from_the_warm_up_to_the_end() -> None:
    rate = nf.optim.cosine(1.0, 110, warmup=10, final=0.1)
    for step in (10, 35, 60, 109):
        assert rate(step) == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi * (step - 10) / 100)))


def test_square_root_decay() -> None:
    assert nf.optim.wsd(1.0, 100, decay=100, shape="sqrt")(25) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nf.optim.cosine(-1.0, 10),
        lambda: nf.optim.cosine(float("nan"), 10),
        lambda: nf.optim.linear(1.0, 10, warmup=11),
        lambda: nf.optim.wsd(1.0, 10, warmup=6, decay=6),
        lambda: nf.optim.wsd(1.0, 10, shape="step"),
        lambda: nf.optim.constant(1.0, warmup=-1),
        lambda: nf.optim.cosine(1.0, 2.5),  # type: ignore[arg-type]
        lambda: nf.optim.cosine(1.0, None),  # type: ignore[arg-type]
        lambda: nf.optim.wsd(1.0, None),  # type: ignore[arg-type]
        lambda: Schedule(1.0, 10, decay=10, shape="step"),
        lambda: nf.optim.cosine(1.0, 10)(-1),
        lambda: nf.optim.constant(1.0, warmup=4)(-5),
    ],
)
def test_bad_numbers_are_refused(make: Any) -> None:
    with pytest.raises(ArgumentError):
        make()


def test_a_schedule_drives_an_optimizer(device: Any) -> None:
    w, rate = nf.parameter(nf.zeros((1,))), nf.optim.linear(1.0, 4)
    optimizer = nf.optim.AdamW({"w": w}, eps=0.0, weight_decay=0.0)
    for step in range(4):
        optimizer.lr = rate(step)
        w.grad = nf.ones((1,))
        optimizer.step()
    assert w.item() == pytest.approx(-(1.0 + 0.75 + 0.5 + 0.25), rel=1e-6)
