"""The end of the outermost backward pass: what runs then, and who is told.

`backward`, `grad`, `value_and_grad` and the pull-back of `vjp` open a region. Regions nest (a
gradient of a gradient, a recomputed segment); only the outermost one of a thread ends a step. When
it ends without an exception it runs the callbacks that nodes registered with `after_backward`, in
the order of registration, then the hooks of `on_backward_end`. On an exception none of them runs;
those that have a method ``discard`` are told, so that they put back what the pass has moved.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from nvfp.errors import GradientError, message

Callback = Callable[[], None]
C = TypeVar("C", bound=Callback)

_region: ContextVar[dict[Hashable, Callback] | None] = ContextVar("nvfp_backward_region", default=None)
_hooks: dict[int, Callback] = {}


@contextmanager
def region() -> Iterator[None]:
    """Mark a backward pass (or a function that will run one); only the outermost ends a step."""
    if _region.get() is not None:
        yield
        return
    callbacks: dict[Hashable, Callback] = {}
    token = _region.set(callbacks)
    try:
        yield
    except BaseException:
        abandon(callbacks)
        raise
    finally:
        _region.reset(token)
    finish(callbacks)  # reached without an exception only


@contextmanager
def joined(callbacks: dict[Hashable, Callback]) -> Iterator[None]:
    """Run a block as a part of a backward pass that another library drives; `finish` ends that pass.

    Args:
        callbacks: of the whole pass, empty at its beginning; one thread at a time may use it.

    Example:
        >>> callbacks = {}
        >>> for _ in range(2):
        ...     with joined(callbacks):
        ...         after_backward(lambda: print("step"), key="once")
        >>> finish(callbacks)
        step
    """
    token = _region.set(callbacks)
    try:
        yield
    finally:
        _region.reset(token)


def finish(callbacks: dict[Hashable, Callback]) -> None:
    """End a backward pass that has succeeded: run its callbacks, then the hooks of `on_backward_end`.

    Args:
        callbacks: what the pass has collected.
    """
    left = dict(callbacks)
    try:
        for key, callback in callbacks.items():
            callback()
            del left[key]
    except BaseException:
        abandon(left)
        raise
    for hook in list(_hooks.values()):
        hook()


def abandon(callbacks: dict[Hashable, Callback]) -> None:
    """Give up a backward pass that has failed: call the method ``discard`` of its callbacks that have one.

    Args:
        callbacks: what the pass has collected.

    Example:
        >>> class Steps:
        ...     def __call__(self): print("step")
        ...     def discard(self): print("as before")
        >>> abandon({"steps": Steps()})
        as before
    """
    for callback in callbacks.values():
        discard = getattr(callback, "discard", None)
        if discard is not None:
            discard()


def in_backward() -> bool:
    """Whether this thread is inside `backward`, `grad`, `value_and_grad` or a pull-back."""
    return _region.get() is not None


def collect_after_backward(key: Hashable, make: Callable[[], C]) -> C:
    """Return this backward pass's object for ``key``, made at the first call and called at the end.

    Rules use it to collect what is to be done once: ``collect_after_backward("scaling", Updates).add(state)``.

    Args:
        key: names the object within the outermost pass of this thread.
        make: makes it; the object takes no argument when it is called. If it has a method ``discard``, that is called
            instead when the pass fails.

    Raises:
        GradientError: no backward pass is running.
    """
    callbacks = _region.get()
    if callbacks is None:
        raise GradientError(
            message("after_backward", "a running backward pass", "none", "call it from inside a vjp rule")
        )
    found = callbacks.get(key)
    if found is None:
        found = callbacks[key] = make()
    return found  # type: ignore[return-value]


def after_backward(callback: Callback, *, key: Hashable = None) -> None:
    """Run ``callback()`` once when the outermost backward pass of this thread has succeeded.

    Args:
        callback: takes no argument. Called by a rule (``vjp``) while its node is processed.
        key: of several registrations with equal keys the first one runs; None: the callback itself.

    Raises:
        GradientError: no backward pass is running.
    """
    collect_after_backward(callback if key is None else key, lambda: callback)


def on_backward_end(hook: Callback) -> Callable[[], None]:
    """Run ``hook()`` at the end of every outermost backward pass, in every thread.

    Hooks run after the callbacks of `after_backward`, inside the caller's context, in the order in
    which they were installed.

    Args:
        hook: takes no argument.

    Returns:
        A function that removes the hook again.

    Example:
        >>> remove = on_backward_end(lambda: print("step"))
        >>> with region():
        ...     pass
        step
        >>> remove()
    """
    handle = max(_hooks, default=-1) + 1
    _hooks[handle] = hook

    def remove() -> None:
        _hooks.pop(handle, None)

    return remove
