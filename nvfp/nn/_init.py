"""Initial values of parameters. Randomness comes from a Generator that is passed in, never a shared seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.random import Generator, default_rng

Init = Callable[[tuple[int, ...], Generator | None, Any, Any], Array]


def normal(std: float) -> Init:
    """Return an initialiser: normal with mean 0 and the given standard deviation."""

    def draw(shape: tuple[int, ...], rng: Generator | None, dtype: Any, device: Any) -> Array:
        return (rng or default_rng()).normal(0.0, std, size=shape, dtype=dtype, device=device)

    return draw
