"""`checkpoint`: keep the arguments of a segment, and run it again when its gradient is wanted.

What the segment took from state that has moved on since (the place in a random sequence, a scale) stands
in a log: `replayed` writes it in the first run and reads it in the others, so that these give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

from nvfp.autograd.grad_mode import enable_grad, grad_enabled, no_grad
from nvfp.autograd.protocol import is_tracked
from nvfp.autograd.tape import Node, Vjp, record, watching
from nvfp.autograd.trees import leaves, map_leaves
from nvfp.autograd.walk import collect, paths
from nvfp.errors import ArgumentError, GradientError, message

T = TypeVar("T")
_NAME = "checkpoint"
_HOLE = object()


class Log:
    """What one run of a segment took from state, in order.

    Attributes:
        entries: the values.
        replaying: whether they are given out again.
        outer: the log in force around the segment.
    """

    __slots__ = ("entries", "next", "outer", "replaying")

    def __init__(self, entries: list[Any], replaying: bool, outer: Log | None) -> None:
        self.entries, self.replaying, self.outer = entries, replaying, outer
        self.next = 0

    def take(self, make: Callable[[], Any]) -> Any:
        """Return the next entry, or make it and note it down."""
        if self.replaying:
            if self.next == len(self.entries):
                raise _other_way(f"more than {self.next} draws from state")
            self.next += 1
            return self.entries[self.next - 1]
        value = make() if self.outer is None else self.outer.take(make)
        self.entries.append(value)
        return value


_log: ContextVar[Log | None] = ContextVar("nvfp_recompute", default=None)


def replayed(make: Callable[[], T]) -> T:
    """Return ``make()``; where a checkpointed segment is run again, what it returned in the first run.

    Args:
        make: reads state that may be another one when the segment runs again; called at most once.

    Example:
        >>> numbers = iter(range(10))
        >>> replayed(lambda: next(numbers)), replayed(lambda: next(numbers))
        (0, 1)
    """
    log = _log.get()
    return make() if log is None else log.take(make)


def keeping() -> bool:
    """Whether a checkpointed segment runs here (the first time or again), so that what it reads must be kept."""
    return _log.get() is not None


def recomputing() -> bool:
    """Whether a checkpointed segment is run again here: state has been read and moved already."""
    log = _log.get()
    while log is not None:
        if log.replaying:
            return True
        log = log.outer
    return False


def output_unread() -> bool:
    """Whether the innermost segment is run again here: for its gradient, so that its own result is not read."""
    log = _log.get()
    return log is not None and log.replaying


@contextmanager
def _logging(log: Log) -> Iterator[None]:
    token = _log.set(log)
    try:
        yield
    finally:
        _log.reset(token)


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return ``function(*args, **kwargs)`` without what its gradient needs; the backward pass runs it again.

    Args:
        function: takes and returns arrays or nests of them; it may use modules and arrays from outside. Run again,
            it must do the same: what depends on anything but its arguments and the state of nvfp's modules must
            not change in between.
        args: passed to it.
        kwargs: passed to it.

    Returns:
        What it returns. Gradients reach the arguments and every variable that it reads.

    Raises:
        GradientError: (in backward) the second run took another way than the first, or a variable that it read
            has been written in between; (a derivative of the gradient) the rule gives first derivatives only.
        ArgumentError: ``function`` is not callable.

    Numerics:
        Result and gradients have the bits of the plain call: the second run sees the context variables of the first
        (recipe, `functional_call`), quantizes with the scales of the first run and records no amax, and its dropout
        and stochastic rounding repeat the first run's random numbers.

    Example:
        >>> import nvfp as nf
        >>> x = nf.asarray([1.0, 2.0], device="cpu", requires_grad=True)
        >>> nf.checkpoint(lambda x: nf.exp(nf.sin(x)), x).sum().backward()
        >>> plain = nf.grad(lambda x: nf.exp(nf.sin(x)).sum())(x.detach())
        >>> nf.array_equal(x.grad, plain)
        True
    """
    if not callable(function):
        raise ArgumentError(message(_NAME, "a function and its arguments", repr(function), "pass the function first"))
    log, context = Log([], False, _log.get()), copy_context()
    if not grad_enabled():
        with _logging(log) if log.outer is not None else nullcontext():  # inside a segment: its result is read here
            return function(*args, **kwargs)
    with watching() as seen, no_grad(), _logging(log):
        out = function(*args, **kwargs)
    given = [x for x in leaves((args, kwargs)) if is_tracked(x)]
    inputs = {(id(x._node), x._index): x for x in given if x._node is not None} | seen
    outputs = [x for x in leaves(out) if _carries_gradient(x)]
    if not inputs or not outputs:
        return out
    kept = [*given, *inputs.values()]
    rule = _rule(function, (args, kwargs), log.entries, context, len(given))
    parents = [*(None for _ in given), *inputs.values()]
    node = record(_NAME, parents, rule, kept, outputs=len(outputs))
    places = iter(range(len(outputs)))
    return map_leaves(lambda x: x._placed(node, next(places)) if _carries_gradient(x) else x, out)


def _carries_gradient(x: Any) -> bool:
    return is_tracked(x) and getattr(x.dtype, "kind", "f") not in "biu"


def _rule(function: Callable[..., Any], call: Any, entries: list[Any], context: Context, given: int) -> Vjp:
    """The tape's rule of a segment; it holds the nest of arguments without their arrays."""
    nest = map_leaves(lambda x: _HOLE if is_tracked(x) else x, call)

    def rule(saved: tuple[Any, ...], dy: Any, needs: tuple[bool, ...]) -> list[Any]:
        arrays = iter(saved[:given])
        args, kwargs = map_leaves(lambda x: next(arrays) if x is _HOLE else x, nest)
        log = Log(entries, True, None)

        def again() -> Any:
            with enable_grad(), _logging(log):
                return function(*args, **kwargs)

        since = Node(_NAME, (), lambda *_: (), (), 1, False).sequence
        out = context.copy().run(again)
        if log.next != len(entries):
            raise _other_way(f"{log.next} draws from state in place of {len(entries)}")
        roots = [x for x in leaves(out) if _carries_gradient(x)]
        dys = dy if isinstance(dy, tuple) else (dy,)
        if len(roots) != len(dys) or any(d is not None and d.shape != x.shape for x, d in zip(roots, dys)):
            raise _other_way(f"{len(roots)} results in place of {len(dys)}")
        return [*(None for _ in range(given)), *_pull(roots, dys, saved[given:], needs[given:], since)]

    return rule


def _pull(roots: list[Any], dys: Any, inputs: tuple[Any, ...], needs: tuple[bool, ...], since: int) -> list[Any]:
    """Send gradients back through the segment to its inputs; the tape delivers them from there."""
    targets = [x._node for x, needed in zip(inputs, needs, strict=True) if needed]
    wanted, _ = paths(roots, targets, since)
    pairs = [(x, d) for x, d in zip(roots, dys, strict=True) if d is not None and x._node in wanted]
    found = collect([x for x, _ in pairs], [d for _, d in pairs], targets=targets, wanted=wanted)
    return [found[x._node][x._index] if x._node in found else None for x in inputs]


def _other_way(got: str) -> GradientError:
    do = "let the function depend on its arguments and on modules only"
    return GradientError(message(_NAME, "a segment that does the same when it runs again", got, do))
