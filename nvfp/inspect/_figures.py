"""The sums and counts behind `ErrorReport`, over chunks of host arrays, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from nvfp.dtypes.elements import Element

Float64 = npt.NDArray[np.float64]
CHUNK = 1 << 20  # elements: some ten temporaries of this many float64s are alive at one time
LOWEST, HIGHEST = -1074, 1024  # float64's binades


@dataclass
class Figures:
    """What has been summed so far; errors are ``y - x`` over pairs of finite numbers.

    Attributes:
        unit: a power of two near the largest ``|x|``; squares are of numbers divided by it, so that none overflows.
        signal, noise: sums of squares, by binade of ``|x|`` (slot 0: zeros; slot k: ``2**(k + LOWEST - 1)`` and up).
        counts: finite inputs by binade.
        elements, pairs: how many there are, and how many of them are finite with a finite value.
        bias: sum of errors.
        largest, relative: largest ``|y - x|``; of normal numbers that are not saturated, largest ``|y - x| / |x|``.
    """

    unit: float
    signal: Float64 = field(default_factory=lambda: np.zeros(HIGHEST - LOWEST + 1))
    noise: Float64 = field(default_factory=lambda: np.zeros(HIGHEST - LOWEST + 1))
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(HIGHEST - LOWEST + 1, np.int64))
    elements: int = 0
    pairs: int = 0
    bias: float = 0.0
    largest: float = 0.0
    relative: float | None = None
    saturated: int = 0
    flushed: int = 0
    nonfinite: int = 0
    nonfinite_input: int = 0

    def add(self, x: Float64, y: Float64, top: Float64, element: Element) -> None:
        """Count a chunk: inputs, values, and the value of the largest code under each element's scale."""
        finite_x, finite_y = np.isfinite(x), np.isfinite(y)
        self.elements += len(x)
        size = np.abs(x)
        beyond = finite_y & (top > 0) & (size > top * clipped_ratio(element, x < 0))
        self.saturated += int(beyond.sum())
        self.flushed += int((finite_x & (x != 0) & (y == 0)).sum())
        self.nonfinite += int((~finite_y).sum())
        self.nonfinite_input += int((~finite_x).sum())
        pair = finite_x & finite_y
        normal = pair & ~beyond & (top > 0) & (size >= top * (element.smallest_normal / element.max))
        self._add_errors(x[pair], y[pair])
        if normal.any():
            found = float((np.abs(y - x)[normal] / size[normal]).max())
            self.relative = max(found, self.relative or 0.0)

    def _add_errors(self, x: Float64, y: Float64) -> None:
        error = y - x
        slot = np.where(x == 0, 0, np.frexp(x)[1] - LOWEST)
        length = len(self.counts)
        self.counts += np.bincount(slot, minlength=length)
        self.signal += np.bincount(slot, (x / self.unit) ** 2, length)
        self.noise += np.bincount(slot, (error / self.unit) ** 2, length)
        self.pairs += len(x)
        self.bias += float(error.sum())
        self.largest = max(self.largest, float(np.abs(error).max(initial=0.0)))

    @property
    def unknown(self) -> bool:
        """Whether there are elements, but no pair of finite numbers that an error could be taken of."""
        return self.elements > 0 == self.pairs

    @property
    def max_abs_error(self) -> float:
        """The largest error; NaN where it is `unknown`."""
        return math.nan if self.unknown else self.largest

    @property
    def mean_error(self) -> float:
        """The sum of errors by the number of pairs; NaN where it is `unknown`."""
        return math.nan if self.unknown else self.bias / max(self.pairs, 1)

    @property
    def sqnr_db(self) -> float:
        """``10 log10(sum x^2 / sum (y - x)^2)``; inf without an error, NaN where it is `unknown`."""
        if self.unknown:
            return math.nan
        signal, noise = float(self.signal.sum()), float(self.noise.sum())
        with np.errstate(divide="ignore"):
            return float(10 * np.log10(signal / noise)) if noise else float("inf")


def clipped_ratio(element: Element, negative: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """How far beyond the largest code a number is clipped: half a step of the top binade, as a ratio to that code."""
    step = element.smallest_normal if element.integer else 2.0 ** (element.emax - element.mantissa_bits)
    below = step if element.integer else 0.0  # two's complement has one code more
    return (element.max + step / 2 + below * negative) / element.max


def figures(x: np.ndarray, y: np.ndarray, top: np.ndarray, element: Element) -> Figures:
    """Return the figures of values ``y`` that stand for inputs ``x``.

    Args:
        x: inputs, any float dtype.
        y: dequantized values, in its shape.
        top: what the element's largest code would be worth at each place.
        element: the element format.
    """
    unit = 0.0
    for (chunk,) in _chunks(x):
        unit = max(unit, float(np.abs(chunk[np.isfinite(chunk)]).max(initial=0.0)))
    found = Figures(unit=float(np.ldexp(1.0, max(int(np.frexp(unit)[1]) - 1, -1000))) if unit else 1.0)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for part_x, part_y, part_top in _chunks(x, y, top):
            found.add(part_x, part_y, part_top, element)
    return found


def _chunks(*arrays: np.ndarray) -> Iterator[tuple[Float64, ...]]:
    """The same stretch of each array as float64."""
    flat = [a.reshape(-1) for a in arrays]
    for start in range(0, flat[0].size, CHUNK):
        yield tuple(a[start : start + CHUNK].astype(np.float64) for a in flat)
