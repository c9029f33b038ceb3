"""A bounded cache that forgets what was not used for longest, counts, and complains once when it is too small."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from nvfp import config
from nvfp.errors import ArgumentError, message

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True)
class CacheStats:
    """Counts since the cache was made: ``reloads`` are misses of entries that had been dropped."""

    hits: int
    misses: int
    evictions: int
    reloads: int
    size: int
    capacity: int


def capacity(switch: str = "NVFP_GEMM_CACHE", op: str = "gemm") -> int:
    """Return the bound that a switch sets.

    Args:
        switch: its name.
        op: what the message names.

    Raises:
        ArgumentError: it is not a positive integer.

    Example:
        >>> capacity()
        256
    """
    text = config.get(switch)
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentError(message(op, f"{switch} as a positive integer", repr(text), "set e.g. 256"))
    return int(text)


class LRU(Generic[K, V]):
    """A thread-safe least-recently-used cache.

    Args:
        name: what is kept, for the warning.
        size: the bound; by default what ``switch`` says when the cache is made.
        op: the operation that the warning names.
        switch: the name of the switch that raises the bound.

    Example:
        >>> cache = LRU[str, int]("numbers", 1)
        >>> cache.get_or_make("a", lambda: 1), cache.get("a"), cache.stats().hits
        (1, 1, 1)
    """

    def __init__(
        self, name: str, size: int | None = None, *, op: str = "gemm", switch: str = "NVFP_GEMM_CACHE"
    ) -> None:
        self.name, self.op, self.switch = name, op, switch
        self.capacity = capacity(switch, op) if size is None else size
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._dropped: OrderedDict[K, None] = OrderedDict()  # the last keys to go: asked for again, they tell thrashing
        self._lock = threading.Lock()
        self._hits = self._misses = self._evictions = self._reloads = 0
        self._warned = False

    def get(self, key: K) -> V | None:
        """Return the entry of a key and mark it used, or None."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                self._misses += 1
            else:
                self._hits += 1
                self._entries.move_to_end(key)
            return found

    def put(self, key: K, value: V) -> V:
        """Keep ``value`` unless another thread was faster, and return what is kept."""
        with self._lock:
            kept = self._entries.setdefault(key, value)
            self._entries.move_to_end(key)
            if key in self._dropped:
                del self._dropped[key]
                self._reloads += 1
            while len(self._entries) > self.capacity:
                old, _ = self._entries.popitem(last=False)
                self._dropped[old] = None
                self._evictions += 1
            while len(self._dropped) > self.capacity:
                self._dropped.popitem(last=False)
            warn = self._reloads >= self.capacity and not self._warned
            self._warned = self._warned or warn
        if warn:
            got = f"{self._reloads} made again after they had been dropped"
            text = message(self.op, f"{self.name} to fit the cache", got, f"raise {self.switch}")
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return kept

    def replace(self, key: K, value: V) -> V:
        """Keep ``value`` in place of what is there, and return it."""
        with self._lock:
            self._entries.pop(key, None)
        return self.put(key, value)

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Return the entry of a key, made by ``make`` (outside the lock) if there is none."""
        found = self.get(key)
        return self.put(key, make()) if found is None else found

    def stats(self) -> CacheStats:
        """Return the counts."""
        with self._lock:
            counts = (self._hits, self._misses, self._evictions, self._reloads)
            return CacheStats(*counts, size=len(self._entries), capacity=self.capacity)

    def values(self) -> list[V]:
        """Return what is kept, the one used last at the end."""
        with self._lock:
            return list(self._entries.values())

    def clear(self) -> None:
        """Forget every entry; counts stay."""
        with self._lock:
            self._entries.clear()
            self._dropped.clear()
