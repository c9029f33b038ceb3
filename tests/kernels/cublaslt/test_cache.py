"""The bounded cache: order of use, counts, one complaint, threads."""

from __future__ import annotations

import threading

import pytest

from nvfp.errors import ArgumentError
from nvfp.kernels.cublaslt.cache import LRU, capacity


def test_least_recently_used_goes_first() -> None:
    cache = LRU[str, int]("numbers", 2)
    for key in "ab":
        cache.get_or_make(key, lambda: 1)
    assert cache.get("a") == 1
    cache.get_or_make("c", lambda: 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.evictions, stats.size, stats.capacity) == (3, 4, 1, 2, 2)
    cache.clear()
    assert cache.get("a") is None and cache.stats().size == 0


def test_it_complains_once_when_it_thrashes() -> None:
    cache = LRU[int, int]("numbers", 2)
    for key in (0, 1, 2, 0):
        cache.get_or_make(key, lambda: 0)
    assert cache.stats().reloads == 1
    with pytest.warns(RuntimeWarning, match="NVFP_GEMM_CACHE"):
        cache.get_or_make(1, lambda: 0)
    for key in (2, 0, 1, 2):
        cache.get_or_make(key, lambda: 0)  # warnings are errors in these tests
    assert cache.stats().reloads == 6


def test_new_entries_are_no_thrashing() -> None:
    cache = LRU[int, int]("numbers", 2)
    for key in range(100):
        cache.get_or_make(key, lambda: 0)
    assert cache.stats().evictions == 98 and cache.stats().reloads == 0


def test_capacity_is_a_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVFP_GEMM_CACHE", "3")
    assert LRU[int, int]("numbers").capacity == 3
    for wrong in ("0", "many", "-1"):
        monkeypatch.setenv("NVFP_GEMM_CACHE", wrong)
        with pytest.raises(ArgumentError, match="positive integer"):
            capacity()


def test_threads_get_one_entry() -> None:
    cache = LRU[int, object]("objects", 4)
    found: list[object] = []
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        found.extend(cache.get_or_make(key, object) for key in (1, 2, 3) * 50)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 600 and len(set(map(id, found))) == 3
