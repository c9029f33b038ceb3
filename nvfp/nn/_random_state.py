"""`RandomState`: seed, step and call count behind the random numbers of one module.

A number depends on (key, number of the call within the step, step, element) and on nothing else. The step is a word
on the device that every outermost backward pass advances, inside a CUDA graph too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvfp.arrays.array import device_of
from nvfp.arrays.random import Generator, default_rng
from nvfp.autograd.recompute import keeping, replayed
from nvfp.autograd.region import collect_after_backward
from nvfp.errors import DTypeError, StateError, message
from nvfp.kernels._dispatch import kind_of, place_like
from nvfp.kernels.cast import cast
from nvfp.kernels.dropout import advance_steps

_NAMES = ("calls", "key", "step")
_ORDINALS = 2**30  # calls that one step tells apart


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """The place of one call in the random sequence of a module.

    Attributes:
        key: the module's seed, 64 bits.
        ordinal: number of the call since the last step.
        step: the int64 word of shape ``()`` on the device.
        state: what advances when the step ends.
    """

    key: int
    ordinal: int
    step: Any
    state: RandomState

    def finish(self) -> None:
        """Have the step advanced at the end of this backward pass, once for all calls; a vjp rule calls it."""
        self.state.ends_step()


class RandomState:
    """The random state of one use in a module. A subclass names it.

    Args:
        rng: gives the 64-bit key; without one fresh entropy.

    Raises:
        DTypeError: an rng that is no Generator.

    Example:
        >>> import numpy as np
        >>> import nvfp as nf
        >>> state = RandomState(nf.random.default_rng(0))
        >>> x = np.ones(3, np.float32)
        >>> [state.draw(x).ordinal for _ in range(2)]
        [0, 1]
        >>> sorted(state.state_dict())
        ['random.calls', 'random.key', 'random.step']
    """

    __slots__ = ("_key", "_start", "_step", "calls")
    prefix = "random"

    def __init__(self, rng: Generator | None = None) -> None:
        if not isinstance(rng, Generator | None):
            raise DTypeError(message(self.prefix, "rng=a Generator", repr(rng), "pass nf.random.default_rng(seed)"))
        self._key = int((rng or default_rng()).integers(2**64, dtype=np.dtype(np.uint64), device="cpu").item())
        self._start = 0  # the step's value until there is a word
        self._step: Any = None
        self.calls = 0

    def hold(self, key: int, step: Any) -> None:
        """Take a key, and keep the step in this word from now on (another library's memory, say).

        Args:
            key: 64 bits.
            step: raw int64 array of shape ``()``.
        """
        self._key, self._step, self.calls = key, step, 0

    def ends_step(self) -> None:
        """Have the step advanced at the end of this backward pass; if it fails, calls made since then do not count."""
        states = collect_after_backward("random state", _EndOfBackward).states
        states.setdefault(id(self), (self, self.calls))

    def draw(self, raw: Any) -> Draw:
        """Return the next call's place; the step word is made on the device of ``raw``, or moves there.

        Args:
            raw: the raw array that it is for.

        Under `nf.checkpoint` the segment's second run gets the places of the first one.
        """
        return replayed(lambda: self._draw(raw))

    def _draw(self, raw: Any) -> Draw:
        word = self._step
        if word is None:
            word = self._step = place_like(np.asarray(self._start, np.int64), raw)
        elif device_of(word) is not device_of(raw):
            host = word if kind_of(word) == "cpu" else word.get()
            word = self._step = place_like(np.array(host, np.int64), raw)
        ordinal = self.calls % _ORDINALS
        self.calls += 1
        # Other backward passes may advance the word before a segment runs again.
        return Draw(self._key, ordinal, cast(word, word.dtype) if keeping() else word, self)

    @contextmanager
    def drawing(self, raw: Any) -> Iterator[Draw]:
        """Give the next call's place to a block; one that raises has drawn nothing.

        Args:
            raw: the raw array that it is for.
        """
        before = self.calls
        draw = self.draw(raw)
        try:
            yield draw
        except BaseException:
            if self.calls == before + 1:
                self.calls = before
            raise

    def state_dict(self) -> dict[str, Any]:
        """Return what resumes the sequence, as raw arrays for `Module.extra_state`; empty before the first call."""
        if self._step is None and not (self._start or self.calls):
            return {}
        step = np.asarray(self._start, np.int64) if self._step is None else self._step
        return {
            f"{self.prefix}.key": np.asarray(self._key, np.uint64),
            f"{self.prefix}.step": step,
            f"{self.prefix}.calls": np.asarray(self.calls, np.int64),
        }

    def load(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """Check what `state_dict` gave and return the call that takes it (as `Module.load_extra_state` does).

        The step goes into the word in place. A CUDA graph captured before keeps the key it was captured with.

        Raises:
            StateError: other names, or values that are no such numbers.
        """
        names = tuple(f"{self.prefix}.{name}" for name in _NAMES)
        if sorted(state) != list(names):
            raise StateError(message("load_state_dict", f"the keys {names}", sorted(state), "drop these keys"))
        try:
            calls, key, step = (operator.index(np.asarray(state[name]).reshape(()).item()) for name in names)
        except (TypeError, ValueError, OverflowError) as error:
            need = f"{self.prefix} state in numbers"
            raise StateError(message("load_state_dict", need, error, "load it again")) from error
        if not (0 <= key < 2**64 and calls >= 0 and -(2**63) <= step < 2**63):
            got = f"key {key}, step {step}, calls {calls}"
            raise StateError(message("load_state_dict", f"{self.prefix} state in range", got, "load it again"))

        def commit() -> None:
            self._key, self._start, self.calls = key, step, calls
            if self._step is not None:
                cast(place_like(np.asarray(step, np.int64), self._step), self._step.dtype, out=self._step)

        return commit


class _EndOfBackward:
    """Collects the states of one backward pass and advances them in one launch per device at its end."""

    def __init__(self) -> None:
        self.states: dict[int, tuple[RandomState, int]] = {}  # each with its calls when the pass reached it

    def discard(self) -> None:
        """Count the calls of a pass that failed as not made."""
        for state, calls in self.states.values():
            state.calls = calls

    def __call__(self) -> None:
        words: dict[Any, list[Any]] = {}
        for state, _ in self.states.values():
            state.calls = 0
            if state._step is not None:
                words.setdefault(device_of(state._step), []).append(state._step)
        for steps in words.values():
            advance_steps(steps)
