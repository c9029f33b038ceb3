"""Initial values of parameters. Randomness comes from a Generator that is passed in, never a shared seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.creation import full
from nvfp.arrays.functions._common import integer
from nvfp.arrays.random import Generator, default_rng
from nvfp.errors import ArgumentError, DTypeError, message


def count(layer: str, name: str, value: Any) -> int:
    """Return a number of features: an int of at least 1."""
    number = integer(layer, name, value)
    if number < 1:
        raise ArgumentError(message(layer, f"{name} >= 1", number, "pass a positive count"))
    return number


Init = Callable[[tuple[int, ...], Generator | None, Any, Any], Array]


@dataclass(frozen=True, slots=True)
class Normal:
    """An initialiser: normal with mean 0.

    Attributes:
        std: standard deviation.
    """

    std: float

    def __call__(self, shape: tuple[int, ...], rng: Generator | None, dtype: Any, device: Any) -> Array:
        """Return the values."""
        if not isinstance(rng, Generator | None):
            raise DTypeError(message("init", "rng=a Generator", repr(rng), "pass nf.random.default_rng(seed)"))
        return (rng or default_rng()).normal(0.0, self.std, size=shape, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class Constant:
    """An initialiser: one number everywhere.

    Attributes:
        value: the number.
    """

    value: float

    def __call__(self, shape: tuple[int, ...], rng: Generator | None, dtype: Any, device: Any) -> Array:
        """Return the values."""
        return full(shape, self.value, dtype=dtype, device=device)
