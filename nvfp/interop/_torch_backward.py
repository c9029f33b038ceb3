"""The end of torch's backward pass, for what nvfp does once per pass: scaling histories and random steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from nvfp.autograd.region import abandon, collect_after_backward, finish, joined
from nvfp.interop._torch_memory import current_stream
from nvfp.optional import need
from nvfp.recipes.state import DelayedState
from nvfp.recipes.update import update_states

Callbacks = dict[Hashable, Callable[[], None]]
_KEPT = 64  # passes that failed leave their entry behind; older ones are dropped

_passes: dict[tuple[int, int], Callbacks] = {}


def in_backward() -> bool:
    """Whether torch runs a backward pass in this thread (a recomputed forward, say)."""
    return _task() != -1


def _task() -> int:
    return int(need("torch", extra="torch")._C._current_graph_task_id())


@contextmanager
def torch_backward(device: Any) -> Iterator[None]:
    """Make nvfp's rules inside a part of the backward pass that torch runs in this thread.

    Torch has one thread per device, and a pass of a thread is ended by itself, so no lock is needed.

    Args:
        device: the torch device of the gradients.
    """
    key = (_task(), threading.get_ident())
    callbacks = _passes.get(key)
    if callbacks is None:
        callbacks = _passes[key] = {}
        for old in list(_passes)[:-_KEPT]:
            _passes.pop(old, None)
        need("torch", extra="torch").autograd.Variable._execution_engine.queue_callback(lambda: _end(key, device))
    try:
        with joined(callbacks):
            yield
    except BaseException:  # torch gives up the whole pass, and calls nobody back
        abandon(_passes.pop(key, {}))
        raise


def _end(key: tuple[int, int], device: Any) -> None:
    callbacks = _passes.pop(key, None)
    if callbacks:
        with current_stream(device):
            finish(callbacks)


class Finished:
    """Collects what took part in one backward pass: forward scaling states to update, quantized weights to drop."""

    def __init__(self) -> None:
        self.states: dict[int, DelayedState] = {}
        self.drops: dict[int, Callable[[], None]] = {}

    def __call__(self) -> None:
        update_states(self.states.values())
        for drop in self.drops.values():
            drop()


def finished() -> Finished:
    """Return the collector of the backward pass that runs."""
    return collect_after_backward("torch bridge", Finished)
