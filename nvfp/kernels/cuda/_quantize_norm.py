"""Norms as input functions of quantize's tiles of 128 x 128: what `include/input_norm.cuh` is compiled with and given.

Where no maximum of the result is needed beforehand, one kernel makes the statistics and the codes (PANELS); else a pass
over x makes statistics and maximum first. Either way the normalized matrix is never written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from nvfp.kernels.cuda import _memory, _norm
from nvfp.kernels.cuda._amax import Kind
from nvfp.kernels.cuda._dense import FLOAT32
from nvfp.kernels.cuda._launch import launch, multiprocessors
from nvfp.kernels.cuda._loader import Defines, Kernel, kernel
from nvfp.kernels.cuda._memory import aligned
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.input_fn import Normalized

INPUT = 5  # as quantize_input.cuh has it
TILE = 128
# Tiles by which the statistics run ahead of the codes: enough for nobody to wait, few enough for x to lie in L2 still.
LEAD = 128
_RECORD: dict[Kind, int] = {"skip_nan": 1, "finite": 2}
_MOST_TILES = 2**30


@dataclass(frozen=True, eq=False)
class Way:
    """How rows of one kind are normalized.

    Attributes:
        centered: layer_norm.
        panels: macros of the kernel that makes statistics itself, or None where it cannot.
        ready: macros of the one that is given them.
        statistics: kernel of the pass that makes them: alone, and with a maximum that skips NaN or infinity too.
        rows: rows of a block of that pass.
        blocks: most blocks of it for each multiprocessor, or None.
        threads: its block.
    """

    centered: bool
    panels: Defines | None
    ready: Defines
    statistics: tuple[Kernel, Kernel, Kernel]
    rows: int
    blocks: int | None
    threads: tuple[int, int]


@lru_cache(maxsize=1024)
def _way(stem: Literal["layer_norm", "rms_norm"], columns: int, dtype: np.dtype, parameter: np.dtype) -> Way:
    centered = stem == "layer_norm"
    p = _norm.plan(False, columns, dtype.itemsize, 16 // dtype.itemsize, centered)
    known = (("INPUT", INPUT), ("T_PARAM", ctype(parameter)), ("NORM_CENTERED", int(centered)))
    dealt = (("NORM_LANES", p.lanes), ("NORM_CHUNKS", p.chunks), ("EVICT_FIRST", 1))
    held = p.chunks > 0 and p.lanes % 32 == 0
    macros = _norm.defines(_norm.STATISTICS, dtype, parameter, p)
    passes = [kernel(f"{stem}.cu", f"{stem}_statistics", (*macros, ("RECORD", kind))) for kind in range(3)]
    return Way(
        centered, (*known, ("PANELS", 1), *dealt) if held else None, (*known, ("PANELS", 0)),
        (passes[0], passes[1], passes[2]), p.rows, 2 * p.blocks if p.chunks == 1 else None, p.threads,
    )  # fmt: skip


@dataclass(slots=True, eq=False)
class Norm:
    """A norm in front of one call of quantize: `record` first where a maximum is needed, then the rest.

    Attributes:
        x: [rows, columns], contiguous.
        f: the input function.
        way: how.
        tiles: of the matrix.
        slab: counters, then what the caller does not want of the statistics.
        ready: whether statistics are made.
    """

    x: Any
    f: Normalized
    way: Way
    tiles: int
    slab: Any = field(init=False)
    ready: bool = False
    _at: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        rows = self.x.shape[0]
        counters = 4 * -(-rows // TILE)
        middle = -(-counters // 256) * 256
        rstd = middle + (-(-8 * rows // 256) * 256 if self.way.centered else 0)
        self._at = (middle, rstd)
        self.slab = cp.empty((rstd + (4 * rows if self.f.rstd is None else 0),), np.uint8)

    @property
    def macros(self) -> Defines:
        """Macros of the tile kernel."""
        return self.way.panels if self.way.panels is not None and not self.ready else self.way.ready

    @property
    def aligned(self) -> bool:
        """All that it reads can be read 16 bytes at a time."""
        return True

    @property
    def more_blocks(self) -> int:
        """Blocks beside one for each tile."""
        if self.way.panels is None or self.ready:
            return 0
        across: int = -(-self.x.shape[1] // TILE)
        return max(across, min(LEAD, self.tiles))

    def record(self, kind: Kind, *words: Any) -> None:
        """Make the statistics, and raise each word to the largest magnitude of the rounded result."""
        self._statistics(_RECORD[kind], (*words, None, None, None)[:3])

    def args(self) -> tuple[Any, ...]:
        """Return the kernel arguments that follow the others, once all that they point to is under way."""
        lead, rows = self.more_blocks, self.x.shape[0]
        if lead:
            _memory.zero(self.slab, 0, 4 * -(-rows // TILE))
        elif not self.ready:
            self._statistics(0, (None, None, None))
        f = self.f
        return f.weight, f.bias, *self._made(), self.slab, np.int32(lead), self._sizes()

    def _sizes(self) -> Any:
        rows, columns = self.x.shape
        return _norm.sizes(rows, columns, self.f.eps, self.f.zero_centered_gamma)

    def _made(self) -> tuple[Any, Any, Any]:
        """Where mean, rstd and the means' two parts go."""
        rows, (middle, rstd) = self.x.shape[0], self._at
        f = self.f
        scale = _memory.view(self.slab, rstd, (rows,), FLOAT32) if f.rstd is None else f.rstd
        both = _memory.view(self.slab, middle, (rows, 2), FLOAT32) if self.way.centered else None
        return f.mean if self.way.centered else None, scale, both

    def _statistics(self, kind: int, words: tuple[Any, Any, Any]) -> None:
        way, f = self.way, self.f
        mean, rstd, middle = self._made()
        ends = (*words, self._sizes())
        args = (
            (self.x, f.weight, f.bias, mean, rstd, middle, *ends) if way.centered else (self.x, f.weight, rstd, *ends)
        )
        blocks = -(-self.x.shape[0] // way.rows)
        if way.blocks is not None:
            blocks = min(blocks, multiprocessors() * way.blocks)
        launch(way.statistics[kind], (blocks,), way.threads, args)
        self.ready = True


def open_norm(x: Any, f: Normalized, kind: Kind | None = None) -> Norm | None:
    """Return the norm in front of tiles of x, or None where it must be applied before.

    Args:
        x: [rows, columns].
        f: checked against ``x``.
        kind: of the maximum that will be recorded, if any.
    """
    arrays = [a for a in (x, f.weight, f.bias, f.mean, f.rstd) if a is not None]
    if x.ndim != 2 or x.size == 0 or kind == "raw" or not all(a.flags.c_contiguous and aligned(a) for a in arrays):
        return None
    rows, columns = x.shape
    tiles = -(-rows // TILE) * -(-columns // TILE)
    if columns * x.dtype.itemsize % 16 or tiles > _MOST_TILES or rows > _norm.MOST_BLOCKS or columns >= 2**31:
        return None
    return Norm(x, f, _way(f.kind, columns, x.dtype, f.weight.dtype), tiles)
