"""Recording and the backward pass, on a fake array: order, freeing, versions, depth, threads."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from nvfp.autograd import Leaf, backward, enable_grad, grad_enabled, needs_grad, no_grad, record
from nvfp.errors import GradientError
from tests.autograd.fake import Fake, add, exp, fused_square, halves, multiply, variable


def run(root: Fake, **options: Any) -> None:
    backward([root], [Fake(np.ones(root.shape))], **options)


def test_gradients_add_up_over_uses() -> None:
    x, y = variable([2.0, 3.0]), variable([5.0, 7.0])
    run(add(multiply(x, y), multiply(x, x)))
    assert x.grad.values.tolist() == [9.0, 13.0] and y.grad.values.tolist() == [2.0, 3.0]


def test_leaf_as_root_and_second_backward_accumulates_in_place() -> None:
    x = variable([1.0])
    run(x)
    first = x.grad
    run(multiply(x, x))
    assert x.grad is first and x.grad.values.tolist() == [3.0] and first._version == 2


def test_equal_gradients_of_two_variables_do_not_share_memory() -> None:
    x, y = variable([1.0]), variable([1.0])
    run(add(x, y))
    run(x)
    assert x.grad.values.tolist() == [2.0] and y.grad.values.tolist() == [1.0]


def test_untracked_and_disabled_record_nothing() -> None:
    x = variable([1.0])
    assert record("f", (Fake([1.0]), None, 2.0), lambda *_: ()) is None
    assert needs_grad(None, x) and not needs_grad(Fake([1.0]))
    with no_grad():
        assert multiply(x, x)._node is None and not needs_grad(x)
        with enable_grad():
            assert multiply(x, x)._node is not None
        assert not grad_enabled()
    assert grad_enabled()


def test_mode_as_decorator_and_after_an_exception() -> None:
    assert no_grad()(grad_enabled)() is False
    with pytest.raises(KeyError), no_grad():
        raise KeyError
    assert grad_enabled()


def test_backward_of_an_untracked_array_says_what_to_do() -> None:
    with pytest.raises(GradientError, match=r"\[backward\] .*requires_grad=True"):
        run(Fake([1.0]))


def test_only_needed_gradients_are_computed() -> None:
    seen = []

    def vjp(saved: Any, dy: Any, needs: tuple[bool, ...]) -> Any:
        seen.append(needs)
        return (dy, None, None)

    x = variable([1.0])
    run(Fake([1.0], record("f", (x, Fake([1.0]), 3.0), vjp)))
    assert seen == [(True, False, False)]


def test_frozen_leaves_are_constants() -> None:
    x, y = variable([2.0]), variable([3.0])
    z = multiply(x, y)
    assert isinstance(y._node, Leaf)
    y._node.active = False
    run(z)
    assert x.grad.values.tolist() == [3.0] and y.grad is None


def test_nodes_run_by_falling_sequence_number() -> None:
    order: list[str] = []

    def named(name: str, *inputs: Fake) -> Fake:
        def vjp(saved: Any, dy: Any, needs: Any) -> Any:
            order.append(name)
            return tuple(dy for _ in inputs)

        return Fake([1.0], record(name, inputs, vjp))

    x = variable([1.0])
    a = named("a", x)
    b = named("b", a)
    c = named("c", a, b)
    d = named("d", c, x)
    run(named("e", b, d))
    assert order == ["e", "d", "c", "b", "a"]


def test_second_backward_needs_retain_graph() -> None:
    x = variable([3.0])
    y = multiply(x, x)
    run(y, retain_graph=True)
    run(y)
    assert x.grad.values.tolist() == [12.0]
    with pytest.raises(GradientError, match=r"'multiply', freed by an earlier backward; pass retain_graph=True"):
        run(y)


def test_shared_trunk_freed_by_the_first_loss_raises_in_the_second() -> None:
    x = variable([3.0])
    trunk = multiply(x, x)
    first, second = exp(trunk), multiply(trunk, trunk)
    run(first)
    with pytest.raises(GradientError, match="retain_graph"):
        run(second)


def test_saved_array_written_in_between_raises_by_name() -> None:
    x, y = variable([3.0]), Fake([2.0])
    z = multiply(x, y)
    y.write([5.0])
    with pytest.raises(GradientError, match=r"\[multiply\] .*written 1 times since"):
        run(z)


def test_outputs_and_unused_outputs() -> None:
    x = variable([1.0, 2.0, 3.0, 4.0])
    low, high = halves(x)
    run(multiply(high, high))
    assert x.grad.values.tolist() == [0.0, 0.0, 6.0, 8.0]
    low, high = halves(x)
    backward([low, high], [Fake([1.0, 1.0]), Fake([1.0, 1.0])])
    assert x.grad.values.tolist() == [1.0, 1.0, 7.0, 9.0]


def test_wrong_number_of_gradients_and_wrong_shape_name_the_operation() -> None:
    x = variable([1.0, 2.0])
    with pytest.raises(GradientError, match=r"\[f\] expected 1 gradients from its rule, got 2"):
        run(Fake([1.0], record("f", (x,), lambda *_: (None, None))))
    with pytest.raises(GradientError, match=r"\[g\] expected a gradient of its input's shape \(2,\), got \(1,\)"):
        run(Fake([1.0], record("g", (x,), lambda s, dy, n: (dy,))))


def chain(depth: int) -> tuple[Fake, Fake]:
    x = y = variable([1.0])
    for _ in range(depth):
        y = Fake(y.values, record("same", (y,), lambda saved, dy, needs: (dy,)))
    return x, y


def test_deep_graph_does_not_recurse() -> None:
    x, y = chain(100_000)
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(200)
        run(y)
    finally:
        sys.setrecursionlimit(limit)
    assert x.grad.values.tolist() == [1.0]


def test_deep_graph_that_is_never_run_is_dropped() -> None:
    ref = weakref.ref(chain(100_000)[0])
    assert ref() is None


def test_backward_frees_saved_values_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        x = variable(np.ones(1000))
        kept = [multiply(x, Fake(np.ones(1000)))]
        refs = []
        for _ in range(5):
            kept[0] = multiply(kept[0], kept[0])
            assert kept[0]._node is not None
            refs.append(weakref.ref(kept[0]._node))
        root = kept[0]
        run(root)
        kept.clear()
        assert [r() is None for r in refs[:-1]] == [True] * 4  # the root still holds the last one, emptied
        last = refs[-1]()
        assert last is not None and last.saved == () and last.parents == ()
        del root, last
        assert refs[-1]() is None
    finally:
        gc.enable()


def test_no_cycle_between_array_and_node() -> None:
    gc.disable()
    try:
        y = exp(variable([1.0]))
        ref = weakref.ref(y)
        del y
        assert ref() is None
    finally:
        gc.enable()


def test_second_order_through_own_output_and_refusal_of_fused_rules() -> None:
    x = variable([0.5])
    y = exp(multiply(x, x))
    place = x._node
    assert isinstance(place, Leaf)
    first = backward([y], [Fake([1.0])], create_graph=True, targets=[place])[0]
    second = backward([first], [Fake([1.0])], targets=[place])[0]
    value = np.exp(0.25)
    assert np.allclose(first.values, value) and np.allclose(second.values, (2 + 4 * 0.25) * value)

    fused = backward([fused_square(x)], [Fake([1.0])], create_graph=True, targets=[place])[0]
    assert fused.values.tolist() == [1.0]
    with pytest.raises(GradientError, match=r"\[fused_square\] expected first derivatives only"):
        backward([fused], [Fake([1.0])], targets=[place])


def test_threads_run_backward_into_one_variable() -> None:
    x = variable(np.zeros(4))

    def work() -> None:
        for _ in range(50):
            run(multiply(x, Fake(np.ones(4))))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert x.grad.values.tolist() == [200.0] * 4


def test_grad_mode_belongs_to_the_thread() -> None:
    seen: list[bool] = []
    with no_grad():
        t = threading.Thread(target=lambda: seen.append(grad_enabled()))
        t.start()
        t.join()
    assert seen == [True]
