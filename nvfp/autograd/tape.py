"""The tape: nodes and recording. It knows no math and no array library.

A node holds its parents, its rule (``vjp``) and what the rule needs, but never the array it made:
so arrays and nodes form no cycle, and memory goes back as soon as names do. `walk` runs it backward.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any

from nvfp.autograd.grad_mode import _enabled
from nvfp.autograd.protocol import Tracked
from nvfp.errors import GradientError, message

Vjp = Callable[[tuple[Any, ...], Any, tuple[bool, ...]], Sequence[Any]]
# Rules that take a fourth argument: what has reached their first input already, or None; they add it to its gradient.
ADDING: set[Callable[..., Sequence[Any]]] = set()

_numbers = count()
_PLAIN = frozenset((type(None), bool, int, float, str, tuple))  # saved values that are no arrays
leaf_lock = threading.Lock()
# Inputs of what is recorded, or would be: place -> array (see `watching`).
_seen: ContextVar[tuple[int, dict[tuple[int, int], Any]] | None] = ContextVar("nvfp_seen_inputs", default=None)


class Leaf:
    """A variable of the graph: where a gradient ends. All aliases of one array share it."""

    __slots__ = ("active", "grad", "main_grad", "overwrite", "owned", "shape", "stale", "temporary", "waiting")

    def __init__(self, shape: tuple[int, ...], temporary: bool = False) -> None:
        self.shape = shape
        self.temporary = temporary  # made by `grad` for one call, not by the user
        self.grad: Any = None
        self.owned = False  # whether .grad may be written in place (not so for one the user assigned)
        self.active = True  # False: constant from now on (a variable of a finished `grad`)
        self.main_grad: Any = None  # where all gradients go instead, at a fixed address
        self.stale = False  # whether main_grad holds what the next gradient is to replace
        self.overwrite = False  # whether every forward pass makes it stale
        self.waiting = 0  # gradients that were put off

    def accumulate(self, gradient: Any, fresh: bool) -> None:
        """Add ``gradient`` to ``.grad`` (or main_grad); ``fresh`` says that its rule made it for this place alone."""
        with leaf_lock:  # two threads may run backward into one parameter
            if self.main_grad is not None:
                self.main_grad._add_(gradient, fresh=self.stale)
                self.stale = False
                return
            if self.grad is None:
                self.grad = gradient._as_gradient(fresh)
            elif self.owned:
                self.grad._add_(gradient)
            else:
                self.grad = gradient.__array_namespace__().add(self.grad, gradient)._as_gradient(True)
            self.owned = True


class Output:
    """Marks a saved value as the node's own output, which is given its place back when it is needed."""

    __slots__ = ("array", "index")

    def __init__(self, array: Tracked, index: int = 0) -> None:
        self.array = array
        self.index = index


class Node:
    """One recorded operation.

    Attributes:
        name: the operation, for messages.
        parents: per input a (place, output index), or None where no gradient is wanted.
        vjp: the rule, or None when the node has been used and freed.
        saved: what the rule needs; arrays as snapshots.
        versions: storage version of every saved array when it was saved (None: not an array).
        sequence: the place in the order of recording.
        outputs: how many arrays the operation returned.
        twice: whether the rule is written with recorded functions, so it can be differentiated.
    """

    __slots__ = ("__weakref__", "name", "outputs", "parents", "saved", "sequence", "twice", "versions", "vjp")

    def __init__(
        self,
        name: str,
        parents: tuple[tuple[Node | Leaf, int] | None, ...],
        vjp: Vjp,
        saved: Iterable[Any],
        outputs: int,
        twice: bool,
    ) -> None:
        self.name = name
        self.parents = parents
        self.vjp: Vjp | None = vjp
        kept: list[Any] = []
        versions: list[int | None] = []
        for value in saved:
            kind = type(value)
            if kind in _PLAIN:
                kept.append(value)
                versions.append(None)
                continue
            own = kind is Output
            snapshot = getattr(value.array if own else value, "_snapshot", None)
            if snapshot is None:
                kept.append(value)
                versions.append(None)
                continue
            # an alias: `x += y` gives the caller's object new storage, the saved one keeps the old
            alias = snapshot()
            kept.append(Output(alias, value.index) if own else alias)
            versions.append(alias._version)
        self.saved: tuple[Any, ...] = tuple(kept)
        self.versions: tuple[int | None, ...] = tuple(versions)
        self.sequence = next(_numbers)
        self.outputs = outputs
        self.twice = twice

    def unpack(self, connect: bool) -> tuple[Any, ...]:
        """Return the saved values after checking that no storage has changed.

        Args:
            connect: give saved outputs their place in the graph (for gradients of gradients).

        Raises:
            GradientError: a saved array was written in place after it was saved.
        """
        values = list(self.saved)
        for i, version in enumerate(self.versions):
            if version is None:
                continue
            value = values[i]
            own = type(value) is Output
            array = value.array if own else value
            if array._version != version:
                text = f"a saved array of shape {array.shape} written {array._version - version} times since"
                do = "run backward before the update, or compute on a copy (x.copy())"
                raise GradientError(message(self.name, "saved values as they were in the forward pass", text, do))
            if own:
                values[i] = array._placed(self, value.index) if connect else array
        return tuple(values)

    def free(self) -> None:
        """Drop what the node holds; a later backward through it raises."""
        self.vjp, self.saved, self.versions, self.parents = None, (), (), ()


def record(
    name: str,
    inputs: Sequence[Any],
    vjp: Vjp,
    saved: Iterable[Any] = (),
    *,
    outputs: int = 1,
    differentiable_twice: bool = False,
) -> Node | None:
    """Record an operation if gradients are enabled and an input is tracked.

    Args:
        name: the operation's public name.
        inputs: its arrays in order; None and Python scalars may stand between them.
        vjp: ``vjp(saved, dy, needs) -> one gradient (or None) per input``. ``dy`` is the gradient of
            the output, or a tuple of gradients (None where unused) if ``outputs > 1``. ``needs``
            says per input whether its gradient is wanted; what is not wanted need not be computed.
        saved: what ``vjp`` gets back as a tuple. Arrays are checked for writes in between; wrap the
            operation's own result in `Output`, so that the node does not hold its own graph place.
        outputs: how many arrays the operation returns.
        differentiable_twice: the rule is written with recorded functions. Otherwise it may work on
            raw arrays, and a second derivative through it raises by name.

    Returns:
        The node to give to the result's ``_node``, or None if nothing was recorded.
    """
    if _seen.get() is not None:
        _note(inputs)
    if not _enabled.get():
        return None
    parents: list[tuple[Node | Leaf, int] | None] = []
    tracked = False
    for x in inputs:
        place = getattr(x, "_node", None)
        if place is None:
            parents.append(None)
        else:
            parents.append((place, x._index))
            tracked = True
    return Node(name, tuple(parents), vjp, saved, outputs, differentiable_twice) if tracked else None


@contextmanager
def watching() -> Iterator[dict[tuple[int, int], Any]]:
    """Collect the tracked arrays from outside that operations inside read: (id of the place, output) -> array."""
    found: dict[tuple[int, int], Any] = {}
    token = _seen.set((next(_numbers), found))
    try:
        yield found
    finally:
        _seen.reset(token)


def _note(inputs: Sequence[Any]) -> None:
    since, found = _seen.get()  # type: ignore[misc]
    for x in inputs:
        place = getattr(x, "_node", None)
        if place is not None and not (type(place) is Node and place.sequence > since):
            found.setdefault((id(place), x._index), x._snapshot())


def needs_grad(*inputs: Any) -> bool:
    """Whether `record` would make a node for these inputs (so that copies for backward are worth making)."""
    if _seen.get() is not None:
        _note(inputs)
    return _enabled.get() and any(getattr(x, "_node", None) is not None for x in inputs)
