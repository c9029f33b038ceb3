"""Who is told when the outermost backward pass ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvfp.autograd import after_backward, backward, collect_after_backward, in_backward, on_backward_end, record
from nvfp.autograd.region import region
from nvfp.errors import GradientError
from tests.autograd.fake import Fake, multiply, variable


def traced(x: Fake, action: Any) -> Fake:
    """Identity whose rule calls ``action()``."""

    def vjp(saved: Any, dy: Any, needs: Any) -> Any:
        action()
        return (dy,)

    return Fake(x.values, record("traced", (x,), vjp))


def run(root: Fake) -> None:
    backward([root], [Fake(np.ones(root.shape))])


def test_callbacks_run_once_at_the_end_in_order() -> None:
    log: list[str] = []
    x = variable([1.0])
    a = traced(x, lambda: after_backward(lambda: log.append("a"), key="a"))
    b = traced(a, lambda: after_backward(lambda: log.append("b"), key="b"))
    c = traced(b, lambda: after_backward(lambda: log.append("again"), key="b"))
    run(traced(c, lambda: log.append(f"inside {in_backward()}")))
    assert log == ["inside True", "again", "a"] and not in_backward()


def test_collected_object_is_made_once_per_pass_and_called() -> None:
    calls: list[int] = []

    class Work:
        def __init__(self) -> None:
            self.items = 0

        def __call__(self) -> None:
            calls.append(self.items)

    def step() -> None:
        collect_after_backward("work", Work).items += 1

    x = variable([1.0])
    run(traced(traced(x, step), step))
    run(traced(x, step))
    assert calls == [2, 1]


def test_no_callback_and_no_hook_after_an_exception() -> None:
    log: list[str] = []
    remove = on_backward_end(lambda: log.append("hook"))
    try:
        x = variable([1.0])

        def fail() -> None:
            raise KeyError

        y = traced(traced(x, fail), lambda: after_backward(lambda: log.append("callback")))
        with pytest.raises(KeyError):
            run(y)
        assert log == [] and not in_backward()
        run(multiply(x, x))
        assert log == ["hook"]
    finally:
        remove()
    run(multiply(x, x))
    assert log == ["hook"]


def test_after_an_exception_what_was_collected_is_discarded() -> None:
    log: list[str] = []

    class Work:
        def __init__(self, name: str, fails: bool = False) -> None:
            self.name, self.fails = name, fails

        def __call__(self) -> None:
            if self.fails:
                raise KeyError
            log.append(f"{self.name} ends")

        def discard(self) -> None:
            log.append(f"{self.name} as before")

    def collecting(x: Fake, name: str, fails: bool = False) -> Fake:
        return traced(x, lambda: collect_after_backward(name, lambda: Work(name, fails)))

    def fail() -> None:
        raise KeyError

    x = variable([1.0])
    with pytest.raises(KeyError):
        run(collecting(collecting(traced(x, fail), "b"), "a"))
    assert log == ["a as before", "b as before"]
    log.clear()
    with pytest.raises(KeyError):
        run(collecting(collecting(collecting(x, "c"), "b", fails=True), "a"))
    assert log == ["a ends", "b as before", "c as before"]  # what has ended stays, and so does the exception


def test_nested_passes_end_with_the_outermost() -> None:
    log: list[str] = []
    remove = on_backward_end(lambda: log.append("end"))
    try:
        x = variable([1.0])
        inner = multiply(x, x)
        run(traced(x, lambda: run(inner)))
        assert log == ["end"]
        with region():
            run(multiply(x, x))
            run(multiply(x, x))
            assert log == ["end"]
        assert log == ["end", "end"]
    finally:
        remove()


def test_outside_of_a_pass_registration_raises() -> None:
    with pytest.raises(GradientError, match=r"\[after_backward\] expected a running backward pass"):
        after_backward(lambda: None)
