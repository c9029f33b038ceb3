"""nvfp's thread pool: kernels that release the GIL run over chunks of rows.

A child process made by ``fork`` has no threads of its parent, so the pool is dropped there and made
anew at its first use.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise

from nvfp import config
from nvfp.errors import ArgumentError, message

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_workers = 0
_inside = threading.local()


def threads() -> int:
    """Return how many threads a kernel may use (`NVFP_NUM_THREADS`, else the CPUs of this process)."""
    wanted = config.get("NVFP_NUM_THREADS")
    if wanted:
        if not wanted.isdecimal() or int(wanted) < 1:
            raise ArgumentError(message("NVFP_NUM_THREADS", "a positive integer", repr(wanted), "set it to e.g. 4"))
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _executor(workers: int) -> ThreadPoolExecutor:
    """The pool, made anew if more workers are wanted than it has (an old one ends when its last user lets go)."""
    global _pool, _workers
    with _lock:
        if _pool is None or _workers < workers:
            _pool, _workers = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="nvfp"), workers
        return _pool


def _forget() -> None:
    global _pool, _lock, _inside
    _pool, _lock, _inside = None, threading.Lock(), threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _marked(work: Callable[[int, int], None], start: int, stop: int) -> None:
    _inside.busy = True
    try:
        work(start, stop)
    finally:
        _inside.busy = False


def run_chunks(work: Callable[[int, int], None], n: int, grain: int = 1) -> None:
    """Call ``work(start, stop)`` over chunks of ``range(n)``, on several threads when it pays.

    Results must not depend on where the chunks fall. A call from inside a chunk runs serially, so
    nested kernels cannot wait for each other. All chunks have ended when it returns or raises.

    Args:
        work: processes items ``start..stop-1``.
        n: number of items; nothing happens for 0.
        grain: fewest items worth a chunk.
    """
    if n <= 0:
        return
    most = n // max(1, grain)
    parts = min(threads(), most) if most > 1 and not getattr(_inside, "busy", False) else 1
    if parts == 1:
        work(0, n)
        return
    bounds = [n * i // parts for i in range(parts + 1)]
    pool = _executor(parts - 1)
    futures = [pool.submit(_marked, work, a, b) for a, b in pairwise(bounds[1:])]
    try:
        _marked(work, 0, bounds[1])
    finally:
        wait(futures)
    for future in futures:
        future.result()
