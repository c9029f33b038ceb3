"""The backward pass: nodes by falling sequence number from a heap, no recursion.

Every node comes after all that used it, because it was recorded before them; so no sorting of the
graph is needed first, and contributions to one gradient are added in an order that never changes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from nvfp.autograd.grad_mode import _enabled
from nvfp.autograd.protocol import Tracked
from nvfp.autograd.region import region
from nvfp.autograd.tape import ADDING, Leaf, Node
from nvfp.errors import GradientError, message

Place = Node | Leaf
_span: Callable[[str], AbstractContextManager[None]] | None = None


def set_span(span: Callable[[str], AbstractContextManager[None]] | None) -> None:
    """Apply every rule inside ``span(its name)`` from now on (`nf.inspect.nvtx`); None: outside any."""
    global _span
    _span = span


class _Pass:
    """The state of one backward pass."""

    def __init__(self, retain: bool, connect: bool, targets: set[Place], wanted: set[Place] | None) -> None:
        self.retain = retain or connect
        self.connect = connect
        self.targets = targets
        self.wanted = wanted
        self.heap: list[tuple[int, Node]] = []
        self.pending: dict[Place, list[Any]] = {}
        # The first gradient of a variable, where it would have to be copied: a rule may be about to add to it.
        self.held: dict[Leaf, Any] = {}

    def run(self) -> None:
        while self.heap:
            node = heapq.heappop(self.heap)[1]
            if node not in self.targets:
                self.step(node, self.pending.pop(node))
        for leaf, gradient in self.held.items():
            leaf.accumulate(gradient, False)

    def needs(self, parent: tuple[Place, int] | None) -> bool:
        if parent is None:
            return False
        place = parent[0]
        if self.wanted is not None:
            return place in self.wanted
        return type(place) is Node or place.active  # type: ignore[union-attr]

    def collect(self, place: Place, index: int, gradient: Any) -> None:
        waiting = self.pending.get(place)
        if waiting is None:
            waiting = self.pending[place] = [None] * (place.outputs if type(place) is Node else 1)
            if type(place) is Node:
                heapq.heappush(self.heap, (-place.sequence, place))
        have = waiting[index]
        waiting[index] = gradient if have is None else gradient.__array_namespace__().add(have, gradient)

    def step(self, node: Node, dys: list[Any]) -> None:
        if node.vjp is None:
            do = "pass retain_graph=True to the first backward, or compute the forward pass again"
            raise GradientError(
                message("backward", "a graph that holds its values", f"'{node.name}', freed by an earlier backward", do)
            )
        parents = node.parents
        if self.wanted is None:  # `needs`, written out
            needs = tuple([p is not None and (type(p[0]) is Node or p[0].active) for p in parents])  # type: ignore[union-attr]
        else:
            needs = tuple([self.needs(p) for p in parents])
        saved = node.unpack(self.connect)
        dy = dys[0] if node.outputs == 1 else tuple(dys)
        results: Sequence[Any]
        if _span is not None:
            with _span(node.name):
                results = self.apply(node, saved, dys, dy, needs)
        else:
            results = self.apply(node, saved, dys, dy, needs)
        if len(results) != len(parents):
            do = "return one gradient or None per input"
            raise GradientError(message(node.name, f"{len(parents)} gradients from its rule", len(results), do))
        if not self.retain:
            node.free()
        for i, (parent, needed) in enumerate(zip(parents, needs, strict=True)):
            result = results[i]
            if result is None or parent is None or not needed:
                continue
            place, index = parent
            if type(place) is Leaf:
                self.reach_leaf(place, result, node.name, _fresh(result, i, results, dys, saved))
            else:
                self.collect(place, index, result)

    def apply(self, node: Node, saved: tuple[Any, ...], dys: list[Any], dy: Any, needs: tuple[bool, ...]) -> Any:
        if self.connect and not node.twice:
            return _guarded(node, saved, dys, dy, needs)
        rule: Any = node.vjp
        if rule in ADDING and not self.connect:
            return rule(saved, dy, needs, self.waiting(node.parents[0]) if needs[0] else None)
        return rule(saved, dy, needs)

    def waiting(self, parent: tuple[Place, int] | None) -> Any:
        """Take what has reached a place so far, or None; whoever takes it brings it back."""
        assert parent is not None
        place, index = parent
        if type(place) is Leaf and place in self.held:
            return self.held.pop(place)
        there = self.pending.get(place)
        if there is None:
            return None
        have, there[index] = there[index], None
        return have

    def reach_leaf(self, leaf: Leaf, gradient: Any, name: str, fresh: bool) -> None:
        if gradient.shape != leaf.shape:
            do = "correct its rule, or reduce over the broadcast axes"
            raise GradientError(message(name, f"a gradient of its input's shape {leaf.shape}", gradient.shape, do))
        if leaf in self.targets:
            self.collect(leaf, 0, gradient)
        elif leaf in self.held:
            leaf.accumulate(self.held.pop(leaf), False)
            leaf.accumulate(gradient, fresh)
        elif not fresh and leaf.grad is None and leaf.main_grad is None:
            self.held[leaf] = gradient
        else:
            leaf.accumulate(gradient, fresh)


def _fresh(result: Any, i: int, results: Sequence[Any], dys: Sequence[Any], saved: Sequence[Any]) -> bool:
    """Whether a gradient is an object that the rule made for this input alone."""
    for other in dys:
        if other is result:
            return False
    for other in saved:
        if other is result:
            return False
    return all(other is not result or j == i for j, other in enumerate(results))


def _guarded(node: Node, saved: tuple[Any, ...], dys: Sequence[Any], dy: Any, needs: tuple[bool, ...]) -> list[Any]:
    """Run a rule that works on raw arrays; to differentiate its results raises by name."""
    assert node.vjp is not None
    token = _enabled.set(False)
    try:
        results = node.vjp(saved, dy, needs)
    finally:
        _enabled.reset(token)
    name = node.name

    def refuse(saved: tuple[Any, ...], dy: Any, needs: tuple[bool, ...]) -> Sequence[Any]:
        do = "compose the function from nf functions whose rules can be differentiated"
        raise GradientError(
            message(name, "first derivatives only (its rule is fused)", "a derivative of its gradient", do)
        )

    edges = [(d._node, d._index) if d is not None and d._node is not None else None for d in dys]
    guard = Node(f"gradient of {name}", (*node.parents, *edges), refuse, (), len(results), True)
    return [None if r is None else r._placed(guard, i) for i, r in enumerate(results)]


def backward(
    roots: Sequence[Tracked],
    gradients: Sequence[Any],
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
    targets: Sequence[Place] | None = None,
    wanted: set[Place] | None = None,
) -> list[Any]:
    """Send gradients from ``roots`` back through the graph.

    Without ``targets`` the ``.grad`` of every active leaf is added to. With them nothing is written:
    their gradients are returned, and only what leads to them (``wanted``) is computed.

    Args:
        roots: tracked arrays.
        gradients: one gradient per root, of its shape.
        retain_graph: keep saved values for another pass.
        create_graph: record the pass itself, so that its results can be differentiated.
        targets: places whose gradients are wanted (see `functional`).
        wanted: places that lead to a target, targets included (see `paths`).

    Returns:
        Per target its gradient, or None if no root depends on it; empty without targets.

    Raises:
        GradientError: a root is not tracked, the graph was freed, a saved array has changed, or a
            fused rule is differentiated.
    """
    found = collect(
        roots, gradients, retain_graph=retain_graph, create_graph=create_graph, targets=targets, wanted=wanted
    )
    return [found.get(target, (None,))[0] for target in targets or ()]


def collect(
    roots: Sequence[Tracked],
    dys: Sequence[Any],
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
    targets: Sequence[Place] | None = None,
    wanted: set[Place] | None = None,
) -> Mapping[Place, Sequence[Any]]:
    """Do what `backward` does; return per target that was reached the gradients of all its outputs."""
    run = _Pass(retain_graph, create_graph, set(targets or ()), wanted)
    with region():
        token = _enabled.set(create_graph)
        try:
            for root, gradient in zip(roots, dys, strict=True):
                place = root._node
                if place is None:
                    do = "set requires_grad=True on an input before the forward pass, outside nf.no_grad()"
                    raise GradientError(
                        message("backward", "an array computed from a variable", "an untracked array", do)
                    )
                if type(place) is Leaf:
                    run.reach_leaf(place, gradient, "backward", False)
                else:
                    run.collect(place, root._index, gradient)
            run.run()
        finally:
            _enabled.reset(token)
    return run.pending


def paths(roots: Sequence[Tracked], targets: Sequence[Place], since: int) -> tuple[set[Place], bool]:
    """Find what leads from ``roots`` to ``targets``, and whether anything else does.

    Args:
        roots: tracked or untracked arrays.
        targets: places that were made for this question.
        since: sequence number before the first target; older nodes cannot lead to a target.

    Returns:
        The places on a path to a target (targets included), and whether the roots also depend on a
        variable or node from outside.
    """
    goals = set(targets)
    seen: set[Node] = set()
    outside = False
    stack: list[Place] = [r._node for r in roots if r._node is not None]
    while stack:
        place = stack.pop()
        if place in goals:
            outside = outside or (type(place) is Node and bool(place.parents))
        elif type(place) is Leaf:
            outside = outside or place.active
        elif place.sequence <= since:  # type: ignore[union-attr]
            outside = True
        elif place not in seen:
            seen.add(place)  # type: ignore[arg-type]
            stack.extend(parent[0] for parent in place.parents if parent is not None)  # type: ignore[union-attr]
    wanted: set[Place] = goals
    for node in sorted(seen, key=lambda n: n.sequence):
        if any(parent is not None and parent[0] in wanted for parent in node.parents):
            wanted.add(node)
    return wanted, outside
