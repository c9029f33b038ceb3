"""`nf.checkpoint`: gradients of the plain call, what is read from outside, other ways, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.autograd.recompute import keeping, output_unread, recomputing, replayed
from nvfp.errors import ArgumentError, GradientError


def leaf(values: Any) -> nf.Array:
    return nf.asarray(values, dtype=nf.float32, requires_grad=True)


def test_gradients_reach_arguments_and_what_is_read_from_outside(device: Any) -> None:
    gradients = []
    for kept in (True, False):
        x, w, v = leaf([1.0, 2.0]), leaf([3.0, -1.0]), leaf([0.5, 0.25])
        h = v * v  # computed outside, read inside

        def f(pair: dict[str, nf.Array], k: float = 1.0, w: nf.Array = w, h: nf.Array = h) -> Any:
            a, b = pair["a"], pair["b"]
            return nf.sin(a * w) * h * k, [nf.exp(b), 7]

        y, (z, seven) = f({"a": x, "b": x * 2}, k=2.0) if kept else nf.checkpoint(f, {"a": x, "b": x * 2}, k=2.0)
        assert seven == 7
        ((y * y).sum() + z.sum()).backward()
        gradients.append([np.asarray(p.grad).tobytes() for p in (x, w, v)])
    assert gradients[0] == gradients[1]


def test_a_node_with_several_outputs_gets_each_gradient_in_its_place(device: Any) -> None:
    def split(x: nf.Array) -> Any:
        return nf.custom_vjp(
            lambda x: (x * 1, x * 2), lambda x: ((x * 1, x * 2), None), lambda _, d: (d[0] + d[1] * 2,)
        )(x)

    found = []
    for f in (lambda f, *a: f(*a), nf.checkpoint):
        x = leaf([1.0, 2.0])
        a, b = split(x)
        f(lambda b, a=a: nf.exp(b) * a, b).sum().backward()
        found.append(np.asarray(x.grad).tobytes())
    assert found[0] == found[1]


def test_inside_functional_transforms_and_nested(device: Any) -> None:
    def plain(p: nf.Array) -> nf.Array:
        return nf.exp(nf.sin(p * p)).sum()

    def kept(p: nf.Array) -> nf.Array:
        return nf.checkpoint(lambda: nf.checkpoint(lambda z: nf.exp(nf.sin(z)), p * p).sum())

    p = nf.asarray([0.3, 0.6])
    assert np.asarray(nf.grad(kept)(p)).tobytes() == np.asarray(nf.grad(plain)(p)).tobytes()
    with pytest.raises(GradientError, match="checkpoint"):
        nf.grad(lambda p: nf.grad(kept)(p).sum())(p)


def test_only_what_is_wanted_is_computed_and_untracked_calls_are_plain(device: Any) -> None:
    x, calls = leaf([1.0]), []

    def f(x: nf.Array) -> nf.Array:
        calls.append((keeping(), recomputing(), output_unread()))
        return x * x

    assert not nf.checkpoint(f, x.detach()).requires_grad
    with nf.no_grad():
        assert not nf.checkpoint(f, x).requires_grad
    y = nf.checkpoint(f, x)
    y.backward(retain_graph=True)
    y.backward()
    assert calls == [(True, False, False), (False, False, False), (True, False, False)] + [(True, True, True)] * 2
    assert x.grad.item() == 4.0


def test_state_is_read_once_also_by_nested_segments(device: Any) -> None:
    numbers = iter(range(100))
    seen: list[int] = []

    def draw(x: nf.Array) -> nf.Array:
        seen.append(replayed(lambda: next(numbers)))
        return x * float(seen[-1] + 1)

    x = leaf([1.0])
    y = nf.checkpoint(lambda x: draw(nf.checkpoint(draw, draw(x))), x)
    y.backward()
    # first run; second run (the inner one inside it); the inner segment's own second run
    assert seen == [0, 1, 2, 0, 1, 2, 1]
    assert (y.item(), x.grad.item()) == (6.0, 6.0)
    assert next(numbers) == 3


def test_a_result_that_is_read_inside_a_second_run_is_whole(device: Any) -> None:
    def inner(x: nf.Array) -> nf.Array:
        return nf.zeros_like(x) if output_unread() else x * 3.0

    def outer(x: nf.Array) -> nf.Array:
        with nf.no_grad():
            scale = nf.checkpoint(inner, x)
        return x * scale

    x = leaf([2.0])
    nf.checkpoint(outer, x).backward()
    assert x.grad.item() == 6.0


def test_faults_are_told(device: Any) -> None:
    w = nf.parameter(nf.ones((2,)))
    y = nf.checkpoint(lambda x: x * w, leaf([1.0, 2.0]))
    with nf.no_grad():
        w += 1.0
    with pytest.raises(GradientError, match="written 1 times"):
        y.sum().backward()

    runs: list[int] = []

    def changing(x: nf.Array) -> nf.Array:
        runs.append(0)
        for _ in range(len(runs)):
            replayed(lambda: 1)
        return x * x

    with pytest.raises(GradientError, match="does the same"):
        nf.checkpoint(changing, leaf([1.0])).backward()
    runs.append(0)
    with pytest.raises(GradientError, match="results"):
        nf.checkpoint(lambda x: x if recomputing() is False else x[:1], leaf([1.0, 2.0])).sum().backward()
    with pytest.raises(ArgumentError, match="function"):
        nf.checkpoint(leaf([1.0]))  # type: ignore[arg-type]


def test_memory_falls(device: Any) -> None:
    def deep(x: nf.Array) -> nf.Array:
        for _ in range(8):
            x = nf.sin(x)
        return x

    held = []
    for call in (lambda f, x: f(x), nf.checkpoint):
        x = leaf(np.zeros(1 << 10))
        y = x
        for _ in range(4):
            y = call(deep, y)
        node, nodes, stack = y._node, set(), [y._node]
        while stack:  # bytes that the graph keeps until backward
            node = stack.pop()
            if hasattr(node, "saved") and node not in nodes:
                nodes.add(node)
                stack += [p[0] for p in node.parents if p is not None]
        saved = {id(s.raw): s.nbytes for n in nodes for s in n.saved if isinstance(s, nf.Array)}
        held.append(sum(saved.values()))
    assert held[1] * 4 < held[0]
