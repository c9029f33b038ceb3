"""What cuDNN's dropout reads on the device: a seed (the step of the forward) and an offset (key and ordinal)."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from nvfp.kernels.cuda._xp import cp

_INT64 = np.dtype(np.int64)
_CHUNK = 256  # words of one allocation
_PITCH = 2  # int64 from one word to the next: cuDNN takes its tensors to be aligned to 16 bytes
_MASK = 2**64 - 1


def offset_of(key: int, ordinal: int) -> int:
    """Return the offset of a draw: 62 bits, mixed so that draws of one step do not overlap.

    Args:
        key: 64 bits.
        ordinal: of the draw inside a step.

    Source: the finalizer of SplitMix64 (Steele, Lea, Flood 2014), applied to the key, then to key and ordinal.

    Example:
        >>> offset_of(1, 0) != offset_of(1, 1) != offset_of(0, 1)
        True
    """
    return _mix(_mix(key & _MASK) + ordinal * 0x9E3779B97F4A7C15) >> 2


def _mix(z: int) -> int:
    z &= _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class Words:
    """Constants on one device, made once each and never freed: captured graphs may hold their addresses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[int, int], Any] = {}
        self._chunk: Any = None
        self._used = _CHUNK
        # A stream of its own, so that a copy runs now even while another stream is being captured.
        self._stream = cp.cuda.Stream(non_blocking=True)

    def offset(self, key: int, ordinal: int) -> Any:
        """Return the word [1] that holds `offset_of`."""
        found = self._found.get((key, ordinal))
        if found is None:
            with self._lock:
                found = self._found.get((key, ordinal))
                if found is None:
                    found = self._found[key, ordinal] = self._make(offset_of(key, ordinal))
        return found

    def _make(self, value: int) -> Any:
        with self._stream:
            if self._used == _CHUNK:
                self._chunk, self._used = cp.empty(_CHUNK * _PITCH, _INT64), 0
            word = self._chunk[self._used * _PITCH :][:1]
            word.set(np.array([value], _INT64), stream=self._stream)
        self._stream.synchronize()  # eight bytes on an idle stream, once per draw of a step
        self._used += 1
        return word


_words: dict[int, Words] = {}
_lock = threading.Lock()


def offset_word(device: int, key: int, ordinal: int) -> Any:
    """Return the offset word of a draw on the current device (its ordinal is ``device``)."""
    found = _words.get(device)
    if found is None:
        with _lock:
            found = _words.get(device)
            if found is None:
                found = _words[device] = Words()
    return found.offset(key, ordinal)


def snapshot(step: Any) -> Any:
    """Return a copy of the step word, so that the backward draws what the forward drew (8 bytes, no kernel)."""
    seed = cp.empty((), _INT64)
    seed.data.copy_from_device_async(step.data, _INT64.itemsize)
    return seed
