"""`Storage`: the memory behind arrays, with a version, and the one door that writes it in place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from nvfp.errors import DTypeError, ShapeError, message
from nvfp.kernels.cast import cast
from nvfp.kernels.operand import Operand
from nvfp.kernels.quantize import quantize

_watched: ContextVar[list[Storage] | None] = ContextVar("nvfp_watched_writes", default=None)


class Storage:
    """Memory that arrays share: an array and its views and snapshots have one Storage.

    Attributes:
        raw: the NumPy or CuPy array (or `Operand`) of the array that it was made for.
        version: how often it has been written in place. Backward compares it with the version at
            the time of saving; caches of quantized weights use it in their key.
    """

    __slots__ = ("__weakref__", "raw", "version")

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.version = 0

    def write_(self, value: Any) -> None:
        """Replace the contents at their fixed address, and count it.

        This is the only way in which nvfp changes memory that an array shows: for parameters,
        gradients and state. Code that runs a kernel on ``raw`` itself calls `touch` afterwards.

        Args:
            value: raw array of the same shape and device, not overlapping; converted to the dtype of
                ``raw`` (rounding once). For quantized storage an `Operand` of the same format.

        Raises:
            ShapeError: another shape.
            DTypeError: quantized storage and dense values, or another format.
        """
        if type(self.raw) is Operand:
            self._write_operand(value)
        elif self.raw.shape != value.shape:
            raise ShapeError(message("storage.write_", f"shape {self.raw.shape}", value.shape, "reshape the values"))
        else:
            copy_into(self.raw, value)
        self.touch()

    def touch(self) -> None:
        """Count a write that a kernel has done on ``raw``."""
        self.version += 1
        watched = _watched.get()
        if watched is not None:
            watched.append(self)

    def _write_operand(self, value: Any) -> None:
        have = self.raw
        if type(value) is not Operand or (value.format, value.shape, value.axis) != (
            have.format,
            have.shape,
            have.axis,
        ):
            got = f"{value.format} {value.shape}" if type(value) is Operand else f"{value.dtype} {value.shape}"
            do = "quantize the values with the same format and axis first"
            raise DTypeError(message("storage.write_", f"{have.format} {have.shape} on axis {have.axis}", got, do))
        for target, source in zip(have.arrays(), value.arrays(), strict=True):
            copy_into(target, source)


class QuantizedStorage(Storage):
    """The memory of a quantized parameter; dense values that are written to it are quantized.

    Attributes:
        dtype: of the values that it was made from, and of its gradient.
        amax_epsilon: least amax, for float32 scales.
        initial: the values that it was made from, on the CPU, as long as they are kept.
    """

    __slots__ = ("amax_epsilon", "dtype", "initial")

    def __init__(self, raw: Operand, dtype: Any, amax_epsilon: float = 0.0, initial: Any = None) -> None:
        super().__init__(raw)
        self.dtype, self.amax_epsilon, self.initial = dtype, amax_epsilon, initial

    def write_(self, value: Any) -> None:
        """Replace the contents: by an `Operand` of the format bit for bit, by dense values quantized to it.

        Args:
            value: Operand, or raw array of the shape: float32, bfloat16, float16 or float64.

        Raises:
            ShapeError: another shape.
            DTypeError: an Operand of another format.

        Numerics: the scale of a format with one per tensor comes from the amax of ``value``, rounding is to nearest.
        """
        if type(value) is not Operand:
            if value.shape != self.raw.shape:
                raise ShapeError(
                    message("storage.write_", f"shape {self.raw.shape}", value.shape, "reshape the values")
                )
            value = quantize(value, self.raw.format, axis=self.raw.axis, amax_epsilon=self.amax_epsilon).row
        super().write_(value)


@contextmanager
def watch_writes() -> Iterator[list[Storage]]:
    """Collect every storage that is written inside the block (a captured graph writes them at each replay)."""
    written: list[Storage] = []
    token = _watched.set(written)
    try:
        yield written
    finally:
        _watched.reset(token)


def copy_into(target: Any, source: Any) -> None:
    """Copy raw values into ``target`` (same shape), converting to its dtype."""
    if type(target) is np.ndarray and target.dtype == source.dtype:
        np.copyto(target, source)
    else:
        cast(source, target.dtype, out=target)
