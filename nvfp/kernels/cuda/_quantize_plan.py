"""What a quantize call is made of: its job, and its plan.

A plan says where each output lies in one slab; it is worked out once per shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from nvfp.dtypes import elements as el
from nvfp.dtypes.codec import Rounding
from nvfp.dtypes.conventions import PLAIN, Steps
from nvfp.dtypes.formats import QuantDType
from nvfp.dtypes.rotation import rotated_length
from nvfp.dtypes.scale_layout import k_major128_shape, tiles128x4_size
from nvfp.kernels._stochastic import Rng
from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._constants import format_defines
from nvfp.kernels.cuda._loader import Defines
from nvfp.kernels.cuda._memory import Slab
from nvfp.kernels.cuda._types import ctype
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.operand import ScaleLayout, codes_shape, scale_shape

GEMM_ALIGNMENT = 16  # bytes: leading dimensions and rows that FP8 tensor cores want
BFLOAT16, FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
FLOAT32, UINT8 = np.dtype(np.float32), np.dtype(np.uint8)
WORD = 4
APART = 1 << 20  # bytes from which row codes have memory of their own beside a column side, which backward keeps longer
FLT_MAX = np.float32(np.finfo(np.float32).max)
_ROUNDINGS: dict[Rounding, int] = {"even": 0, "stochastic": 1, "toward_zero": 2}
_LARGEST = {BFLOAT16: np.float32(el.bfloat16.max), FLOAT16: np.float32(el.float16.max)}


@dataclass(frozen=True, eq=False)
class SidePlan:
    """One side in stored order.

    Attributes:
        stored: unpacked lengths.
        axis: block axis of ``stored`` (the last one where it means nothing).
        transposed: whether this is the column side.
        codes: shape of the codes array.
        strides: its byte strides, or None where it is contiguous.
        pitch: bytes from one row of codes to the next; 8-bit codes are padded for the GEMM.
        allocated: rows of codes in memory, padded alike.
        padded_rows: what the Operand says of them.
        codes_at: offset in the slab.
        own: bytes of the memory of their own that the codes have instead, or 0.
        scale: shape of the scale array.
        scale_dtype: its dtype.
        scale_at: offset in the slab.
        scale_bytes: its size.
        scale_gaps: whether the layout pads it.
        tensor_scale_at: offset of the tensor scale, or None.
        tensor_scale: its shape: a word, or one for each line along the axis.
    """

    stored: tuple[int, ...]
    axis: int
    transposed: bool
    codes: tuple[int, ...]
    strides: tuple[int, ...] | None
    pitch: int
    allocated: int
    padded_rows: int
    codes_at: int
    own: int
    scale: tuple[int, ...]
    scale_dtype: np.dtype
    scale_at: int
    scale_bytes: int
    scale_gaps: bool
    tensor_scale_at: int | None
    tensor_scale: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """All outputs of a call.

    Attributes:
        row: the row side, or None.
        col: the column side, or None.
        layout: of the block scales.
        word_at: offset of a word for a maximum that the call itself takes.
        size: bytes of the slab.
        rotated: whether the column side is that of the rotated matrix; its word follows that of the source.
    """

    row: SidePlan | None
    col: SidePlan | None
    layout: ScaleLayout
    word_at: int
    size: int
    rotated: bool = False


@lru_cache(maxsize=1024)
def plan(
    fmt: QuantDType, shape: tuple[int, ...], axis: int, row: bool, col: bool, layout: ScaleLayout, rotated: bool = False
) -> Plan:
    """Return the plan of a call; see `nvfp.kernels.quantize.quantize` for the arguments."""
    slab = Slab()
    word = slab.reserve(2 * WORD if rotated else WORD)
    turned = (rotated_length(shape[0]), *shape[1:])[::-1] if rotated else shape[::-1]
    shared = slab.reserve(WORD) if fmt.block is None else None  # one scale for both sides
    sides = [
        _side(slab, fmt, turned if transposed else shape, axis, transposed, layout, shared, col and not transposed)
        if wanted
        else None
        for wanted, transposed in ((row, False), (col, True))
    ]
    return Plan(sides[0], sides[1], layout, word, slab.size, rotated)


def _side(
    slab: Slab,
    fmt: QuantDType,
    stored: tuple[int, ...],
    axis: int,
    transposed: bool,
    layout: ScaleLayout,
    shared: int | None,
    apart: bool,
) -> SidePlan:
    ndim = len(stored)
    if fmt.block is None and not fmt.element.packed:
        axis = max(ndim - 1, 0)  # it means nothing then
    codes = codes_shape(fmt, stored, axis)
    cut = min(axis + 1, ndim - 1) if ndim else 0  # the axes from here on make a row of codes
    lines, length = math.prod(codes[:cut]), math.prod(codes[cut:])
    pitch, allocated = length, lines
    if cut == ndim - 1 >= 1 and not fmt.element.packed and lines and length:
        pitch, allocated = (-(-n // GEMM_ALIGNMENT) * GEMM_ALIGNMENT for n in (length, lines))
    strides = None if pitch == length else (*(math.prod(codes[i + 1 : -1]) * pitch for i in range(ndim - 1)), 1)
    scale = scale_shape(fmt, stored, axis)
    dtype, scales = FLOAT32 if fmt.scale_family == "float32" else fmt.scale.storage, math.prod(scale)
    if layout == "tiles128x4":
        across = (fmt.block_shape or (1, 1))[0]
        rows = stored[0] if across > 1 else scale[0]  # square blocks: a scale for each of its rows
        scale = (tiles128x4_size((rows, scale[1])),)
    elif layout == "k_major128":
        scale = k_major128_shape(scale, square=(fmt.block_shape or (1, 1))[0] > 1)
    nbytes = math.prod(scale) * dtype.itemsize
    own = pitch * allocated if apart and pitch * allocated >= APART else 0
    lines_shape = (*stored[:axis], *stored[axis + 1 :]) if fmt.per_row_tensor_scale else ()
    return SidePlan(
        stored=stored, axis=axis, transposed=transposed, codes=codes, strides=strides, pitch=pitch,
        allocated=allocated, padded_rows=allocated if (pitch, allocated) != (length, lines) else 0,
        codes_at=0 if own else slab.reserve(pitch * allocated), own=own, scale=scale, scale_dtype=dtype,
        scale_at=slab.reserve(nbytes) if shared is None else shared, scale_bytes=nbytes,
        scale_gaps=math.prod(scale) > scales,
        tensor_scale_at=slab.reserve(WORD * max(math.prod(lines_shape), 1)) if fmt.tensor_scale else None,
        tensor_scale=lines_shape,
    )  # fmt: skip


@dataclass(slots=True, eq=False)
class Side:
    """One side of a call: its plan, its output arrays, and its words (None where there is none).

    Attributes:
        plan: shapes and offsets.
        codes: output.
        scale: output.
        stored: output: the tensor scale.
        amax: A of a two-level format.
        given: the tensor's decode factor, from which S_enc follows if there is no ``amax``.
    """

    plan: SidePlan
    codes: Any
    scale: Any
    stored: Any | None
    amax: Any | None
    given: Any | None


def cut(slab: Any, side: SidePlan | None, amax: Any | None, given: Any | None) -> Side | None:
    """Return a side of a call, its outputs cut out of the slab (or memory of their own); None if it is not wanted."""
    if side is None:
        return None
    memory = cp.empty((side.own,), UINT8) if side.own else slab
    return Side(
        side,
        _memory.view(memory, side.codes_at, side.codes, UINT8, side.strides),
        _memory.view(slab, side.scale_at, side.scale, side.scale_dtype),
        None if side.tensor_scale_at is None else _memory.view(slab, side.tensor_scale_at, side.tensor_scale, FLOAT32),
        amax,
        given,
    )


@dataclass(slots=True, eq=False)
class Job:
    """A call: the source, the format, and what holds for the tensor as a whole.

    Attributes:
        x: source.
        fmt: row.
        saturate: overflow="saturate".
        epsilon: least amax of float32 scales.
        layout: of the block scales.
        multiplier: the given multiplier of a per-tensor format.
        amax: the amax of a per-tensor format.
        raw: the largest bits in ``x``, where non-finite input makes the tensor a NaN block.
        rounding: of the elements.
        rng: the place of the call in the random sequence, for stochastic rounding.
        steps: of a convention.
    """

    x: Any
    fmt: QuantDType
    saturate: bool
    epsilon: float
    layout: ScaleLayout
    multiplier: Any | None = None
    amax: Any | None = None
    raw: Any | None = None
    rounding: Rounding = "even"
    rng: Rng | None = None
    steps: Steps = PLAIN

    def random(self, *lanes: int) -> tuple[Any, ...]:
        """Return the kernel arguments of rounding by random numbers: key, stream of each lane, step; else nothing."""
        if self.rounding == "even":
            return ()
        key, ordinal, step = self.rng or (0, 0, None)
        return (np.uint64(key), *(np.uint32(4 * ordinal + lane) for lane in lanes), step)

    @property
    def floats(self) -> tuple[np.float32, np.float32]:
        """Least amax, and the multiplier where max / amax overflows."""
        overflow = FLT_MAX if self.fmt.block is None else _LARGEST.get(self.x.dtype, FLT_MAX)
        return np.float32(self.epsilon), overflow


def quantize_defines(
    dtype: np.dtype, fmt: QuantDType, saturate: bool, rounding: Rounding, *more: tuple[str, str | int]
) -> Defines:
    """Return the macros of a quantize kernel for input of ``dtype``."""
    call = (("SATURATE", int(saturate)), ("ROUNDING", _ROUNDINGS[rounding]))
    return (("T_IN", ctype(dtype)), *format_defines(fmt), *call, *more)
