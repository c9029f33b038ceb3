"""Input functions on CUDA: what the tile kernels of quantize are compiled with and given to apply one as they read.

`open_front` returns the function in front of one call, or None where no kernel fuses it. What it returns, and
`_quantize_norm.Norm`, are of one form: ``macros`` of the tile kernel, ``more_blocks`` beside its tiles, whether what is
read is ``aligned``, ``record`` for a maximum that is needed first, ``args`` that the kernel takes last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from nvfp.dtypes.formats import QuantDType, fp8_e4m3
from nvfp.kernels.activation import KINDS, Clamp
from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._amax import Kind, record_amax
from nvfp.kernels.cuda._launch import launch
from nvfp.kernels.cuda._layout import Cube, Shape, cube, element_strides
from nvfp.kernels.cuda._loader import Defines, Kernel, kernel
from nvfp.kernels.cuda._quantize_norm import open_norm
from nvfp.kernels.cuda._quantize_plan import quantize_defines
from nvfp.kernels.cuda.activation import act_defines
from nvfp.kernels.input_fn import Activated, ActivationGradient, InputFn, Normalized, result_shape

ACTIVATED, GATED, GRADIENT, GATED_GRADIENT = 1, 2, 3, 4  # as quantize_input.cuh has them
TILE = 128
_PIECE = 16  # elements that a thread reads at once
_THREADS = 256
_CHEAP = ("relu", "reglu", "srelu", "sreglu")  # activations without an exponential


class Front(Protocol):
    """An input function in front of one call."""

    @property
    def macros(self) -> Defines: ...
    @property
    def more_blocks(self) -> int: ...
    @property
    def aligned(self) -> bool: ...
    def record(self, kind: Kind, *words: Any) -> None: ...
    def args(self) -> tuple[Any, ...]: ...


@dataclass(frozen=True, eq=False, slots=True)
class Way:
    """How a kind of call applies a function.

    Attributes:
        macros: of the tile kernel.
        aligned: whether all that it reads can be read 16 bytes at a time.
        second: element stride of the rows of the second array, or None.
        passes: launches of the pass that takes a maximum: kernel, grid, arguments behind the source.
    """

    macros: Defines
    aligned: bool
    second: int | None
    passes: dict[Kind, tuple[Kernel, tuple[int, ...], tuple[Any, ...]]]


@dataclass(slots=True, eq=False)
class Activation:
    """An activation or its gradient in front of one call of quantize."""

    x: Any
    f: Activated | ActivationGradient
    way: Way

    @property
    def macros(self) -> Defines:
        """Macros of the tile kernel."""
        return self.way.macros

    @property
    def more_blocks(self) -> int:
        """Blocks beside one for each tile."""
        return 0

    @property
    def aligned(self) -> bool:
        """Whether all that it reads can be read 16 bytes at a time."""
        return self.way.aligned

    def record(self, kind: Kind, *words: Any) -> None:
        """Raise each word to the largest magnitude of the rounded result."""
        passed, grid, args = self.way.passes[kind]
        launch(passed, grid, (_THREADS,), (self.x, *args, *(*words, None, None, None)[:3], *self.args()))

    def args(self) -> tuple[Any, ...]:
        """Return the kernel arguments that follow the others."""
        return () if self.way.second is None else (self.f.x, self.way.second)  # type: ignore[union-attr]


@dataclass(slots=True, eq=False)
class Nothing:
    """No function: where column sums alone are wanted."""

    x: Any
    macros: Defines = ()
    more_blocks: int = 0

    @property
    def aligned(self) -> bool:
        """Whether the source can be read 16 bytes at a time."""
        return _memory.address(self.x) % 16 == 0

    def record(self, kind: Kind, *words: Any) -> None:
        """Raise each word to the largest magnitude."""
        record_amax(self.x, kind, *words)

    def args(self) -> tuple[Any, ...]:
        """Return no arguments."""
        return ()


def open_front(x: Any, f: InputFn | None) -> Front | None:
    """Return ``f`` in front of ``x``, or None where nothing fuses it.

    Args:
        x: source.
        f: checked input function, or None.
    """
    if f is None:
        return Nothing(x)
    if isinstance(f, Normalized):
        return open_norm(x, f)
    way = find_way(x, f)
    return None if way is None else Activation(x, f, way)


def worth_twice(f: InputFn | None) -> bool:
    """Whether ``f`` is better applied again after a pass for maxima than written between the two.

    On an H200 current scaling of GELU takes .48 ms fused and .41 in two steps, of SwiGLU's gradient .60 and .50.
    """
    return f is None or isinstance(f, Normalized) or f.kind in _CHEAP


def find_way(x: Any, f: Activated | ActivationGradient) -> Way | None:
    """Return how ``f`` of ``x`` is applied, or None where it cannot be as tiles are read."""
    if isinstance(f, Activated):
        return _activated(f.kind, f.params, x.dtype, x.shape, element_strides(x), _memory.address(x) % 16)
    places = _memory.address(x) % 16 | _memory.address(f.x) % 16
    seconds = f.x.shape, element_strides(f.x)
    return _gradient(f.kind, f.params, x.dtype, x.shape, element_strides(x), *seconds, places)


@lru_cache(maxsize=1024)
def _activated(
    kind: str, params: Clamp | None, dtype: np.dtype, shape: Shape, strides: Shape, place: int
) -> Way | None:
    at = _rows(shape, strides)
    if at is None:
        return None
    gated = KINDS[kind].gated
    columns = result_shape(shape, Activated(kind))[-1]
    whole = place == 0 and all(n * dtype.itemsize % 16 == 0 for n in (at.row_stride, *([columns] if gated else [])))
    macros: Defines = (("INPUT", GATED if gated else ACTIVATED), *act_defines(kind, params))
    return _way(macros, dtype, at, columns, whole, None)


@lru_cache(maxsize=1024)
def _gradient(
    kind: str, params: Clamp | None, dtype: np.dtype,
    shape: Shape, strides: Shape, x_shape: Shape, x_strides: Shape, places: int,
) -> Way | None:  # fmt: skip
    dy, x = _rows(shape, strides), _rows(x_shape, x_strides)
    gated = KINDS[kind].gated
    if dy is None or x is None or (gated and shape[-1] % _PIECE):
        return None
    whole = places == 0 and all(n * dtype.itemsize % 16 == 0 for n in (dy.row_stride, x.row_stride))
    macros: Defines = (("INPUT", GATED_GRADIENT if gated else GRADIENT), *act_defines(kind, params))
    return _way(macros, dtype, dy, x_shape[-1], whole, x.row_stride)


def _rows(shape: Shape, strides: Shape) -> Cube | None:
    """A matrix with contiguous rows, not empty; or None."""
    if not shape or 0 in shape:
        return None
    at = cube(shape, strides, 0, len(shape) - 1)
    return at if at is not None and (at.column_stride == 1 or at.columns == 1) else None


def _way(macros: Defines, dtype: np.dtype, at: Cube, columns: int, whole: bool, second: int | None) -> Way | None:
    tiles = -(-at.rows // TILE) * -(-columns // TILE)
    if tiles >= 2**31:
        return None
    args = (at.rows, columns, at.row_stride, np.int32(whole))
    passes: dict[Kind, Any] = {}
    for skip, counted in enumerate(("skip_nan", "finite")):
        passes[counted] = (  # type: ignore[index]
            kernel("quantize_tensor.cu", "quantize_input_amax", amax_defines(dtype, macros, skip)), (tiles,), args
        )  # fmt: skip
    return Way(macros, whole, second, passes)


def amax_defines(dtype: np.dtype, front: Defines, skip: int, fmt: QuantDType = fp8_e4m3) -> Defines:
    """Return the macros of ``quantize_input_amax``; the format does not matter to it."""
    return quantize_defines(dtype, fmt, True, "even", ("ROW", 0), ("COL", 0), ("AMAX", 1), ("SKIP_INF", skip), *front)
