"""`Rng`: the place of one quantize call in a random sequence."""

from __future__ import annotations

from typing import Any, NamedTuple

from nvfp.errors import ArgumentError, message
from nvfp.kernels.dropout import check_step


class Rng(NamedTuple):
    """What the random numbers of a call depend on, beside the element's place.

    Attributes:
        key: seed, 0 to 2**64 - 1.
        ordinal: number of the call within its step, 0 to 2**30 - 1.
        step: int64 array of shape ``()`` on the device of the data, read when the kernel runs.
    """

    key: int
    ordinal: int
    step: Any


def check_rng(rng: Any) -> Rng:
    """Return ``rng`` as an `Rng`, or raise."""
    if not isinstance(rng, tuple) or len(rng) != 3:
        do = "pass Rng(key, ordinal, step)"
        raise ArgumentError(message("quantize", "rng=(key, ordinal, step) for stochastic rounding", repr(rng), do))
    key, ordinal, step = rng
    for name, value, bits in (("key", key, 64), ("ordinal", ordinal, 30)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << bits:
            raise ArgumentError(message("quantize", f"0 <= {name} < 2**{bits}", repr(value), "choose it in that range"))
    check_step("quantize", step)
    return Rng(key, ordinal, step)
