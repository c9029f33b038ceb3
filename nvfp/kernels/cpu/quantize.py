"""CPU twin of `kernels.quantize`.

Each side is the source with its block axis last, cut into panels of whole blocks that fit the cache. A panel
is loaded as float32 (in place where it can be), its block maxima become scales and multipliers, and its
elements codes. Per-tensor formats are the case of one block.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from nvfp.dtypes import scales as exact
from nvfp.dtypes.codec import Overflow, Rounding
from nvfp.dtypes.conventions import PLAIN, Steps
from nvfp.dtypes.elements import Element
from nvfp.dtypes.formats import QuantDType
from nvfp.dtypes.scale_layout import to_k_major128
from nvfp.dtypes.stochastic import COL_LANE, ROW_LANE
from nvfp.kernels._check import Words
from nvfp.kernels._rotated import rotated_apart
from nvfp.kernels._stochastic import Rng
from nvfp.kernels.bias_grad import bias_grad
from nvfp.kernels.cpu._amax import amax_bits
from nvfp.kernels.cpu._blocks import (
    INF,
    SKIP_NAN,
    SKIP_NONFINITE,
    SKIP_NOTHING,
    block_amax,
    encode_blocks,
    pack,
    scales,
)
from nvfp.kernels.cpu._conventions import convert_blocks, converter
from nvfp.kernels.cpu._levels import SCRATCH, Levels, level_scales, levels, row_levels
from nvfp.kernels.cpu._stochastic import cut_blocks, cutter, random_numbers
from nvfp.kernels.cpu._strided import PANEL, Panel, Rows, for_panels, large_panels, panels, rows_of
from nvfp.kernels.cpu._tables import FLOAT_SCALE, LARGEST_FINITE, ScaleRule, element_encoder, scale_rule
from nvfp.kernels.cpu.scale_layout import scale_layout as tile_scales
from nvfp.kernels.cpu.transpose import transpose
from nvfp.kernels.input_fn import InputFn, apply
from nvfp.kernels.operand import Operand, OperandPair, ScaleLayout, codes_shape, scale_shape
from nvfp.kernels.quantize import other_side

_BUFFERS = tuple(map(np.dtype, (np.float32, np.uint8, np.uint32, np.uint32, np.float32)))


def quantize(
    x: Any,
    fmt: QuantDType,
    *,
    axis: int,
    row: bool,
    col: bool,
    scale: Any | None,
    amax: Words,
    tensor_scale: Words,
    amax_out: Words,
    amax_epsilon: float,
    rounding: Rounding,
    rng: Rng | None,
    overflow: Overflow,
    scale_layout: ScaleLayout,
    steps: Steps,
    rotation: str | None = None,
) -> tuple[Operand | None, Operand | None]:
    """See `nvfp.kernels.quantize.quantize`."""
    if rotation is not None:
        words = {"amax": amax, "tensor_scale": tensor_scale, "amax_out": amax_out}
        options = {
            "scale": scale, "amax_epsilon": amax_epsilon, "rounding": rounding, "rng": rng, "overflow": overflow,
            "scale_layout": scale_layout, "steps": steps,
        }  # fmt: skip
        return rotated_apart(quantize, x, fmt, row, words, options)
    sides = zip((row, col), amax, tensor_scale, strict=True)
    free = scale is None and any(wanted and a is None and t is None for wanted, a, t in sides)
    taken = _taken(x, fmt, free, amax_out)
    row_side: Operand | None = None
    col_side: Operand | None = None
    how = partial(_Cast.of, fmt.element, overflow, steps, rounding, rng)
    if row:
        tensor = _tensor_level(x, axis, fmt, steps, scale, amax[0], taken, tensor_scale[0], amax_epsilon)
        row_side = Operand(
            *_side(x, axis, fmt, tensor, how(x.shape, ROW_LANE)), tensor.tensor_scale, fmt, x.shape, axis
        )
    if col and row_side is not None and fmt.square:
        col_side = other_side(OperandPair(row_side, None), "col")
    elif col:
        tensor = _tensor_level(x, 0, fmt, steps, scale, amax[1], taken, tensor_scale[1], amax_epsilon)
        cast = how(x.shape, ROW_LANE if fmt.square else COL_LANE)
        made = _side(x.T, 1, fmt, tensor, cast.transposed())
        col_side = Operand(*made, tensor.tensor_scale, fmt, x.shape, 0, transposed=True)
    for word in amax_out:
        if word is not None:
            np.fmax(word, taken, out=word)
    if scale_layout != "plain":
        laid = _tiled if scale_layout == "tiles128x4" else _k_major
        return laid(row_side), laid(col_side)
    return row_side, col_side


def quantize_input(
    x: Any,
    fmt: QuantDType,
    f: InputFn | None,
    *,
    bias: np.dtype | None,
    axis: int,
    scale_layout: ScaleLayout,
    **rest: Any,
) -> tuple[Operand | None, Operand | None, Any | None]:
    """Return the sides of ``f(x)`` (f None: of x), and its column sums in the dtype ``bias``, if that is given.

    Args:
        x: source.
        fmt: row.
        f: checked input function, or None.
        bias: dtype of the column sums, or None.
        axis: block axis of the result.
        scale_layout: of the block scales.
        rest: the other arguments of `quantize`.
    """
    y = x if f is None else apply(x, f)
    sides = quantize(y, fmt, axis=axis, scale_layout=scale_layout, **rest)
    return (*sides, None if bias is None else bias_grad(y, dtype=bias))


def _taken(x: np.ndarray, fmt: QuantDType, free: bool, amax_out: Words) -> Any:
    """The amax of ``x`` as its format counts it; None if neither ``amax_out`` nor a ``free`` side needs it."""
    needed = free and (fmt.block is None or (fmt.tensor_scale and not fmt.per_row_tensor_scale))
    if not needed and all(word is None for word in amax_out):
        return None
    return amax_bits(x, SKIP_NONFINITE if fmt.nonfinite == "nan_block" else SKIP_NAN).view(np.float32)


@dataclass(frozen=True, eq=False)
class _Tensor:
    """What the whole tensor decides: the float arguments of `_blocks.scales`, the scales that are one per tensor."""

    floats: np.ndarray
    multiplier: np.ndarray | None = None
    scale: np.ndarray | None = None
    tensor_scale: np.ndarray | None = None
    fill: int = 0
    levels: Levels | None = None


def _tensor_level(
    x: np.ndarray, axis: int, fmt: QuantDType, steps: Steps, scale: Any, given: Any, taken: Any, tensor_scale: Any,
    epsilon: float,
) -> _Tensor:  # fmt: skip
    rule = scale_rule(fmt, steps)
    # What an overflowing float32 multiplier becomes (docs/formats.md, fp8_e4m3, step 1).
    overflow = LARGEST_FINITE[x.dtype] if fmt.block is not None else exact.FLT_MAX
    floats = np.array([rule.largest, overflow, epsilon, 1, rule.least], np.float32)
    if fmt.block is None:
        return _one_scale(x, rule, floats, scale, given, taken)
    if not fmt.tensor_scale:
        return _Tensor(floats, fill=rule.fill)
    largest = given if given is not None else taken
    if fmt.leveled:
        return _leveled(x, axis, fmt, rule, floats, given, largest, tensor_scale)
    if steps.order != "nvfp":
        derived = None if given is not None and steps.order != "modelopt" else tensor_scale
        floats[3], made = exact.divided_tensor_level(largest, derived, fmt.element, fmt.scale, steps)
        tensor_scale = made if tensor_scale is None else tensor_scale
        return _Tensor(floats, tensor_scale=np.array(tensor_scale, np.float32), fill=rule.fill)
    if given is None and tensor_scale is not None:
        floats[3] = exact.s_enc_from_tensor_scale(tensor_scale)
    else:
        floats[3] = exact.s_enc(largest, fmt.element, fmt.scale)
    if tensor_scale is None:
        tensor_scale = exact.tensor_scale_from_amax(largest, fmt.element, fmt.scale)
    return _Tensor(floats, tensor_scale=np.array(tensor_scale, np.float32), fill=rule.fill)


def _leveled(
    x: np.ndarray, axis: int, fmt: QuantDType, rule: ScaleRule, floats: np.ndarray, given: Any, largest: Any,
    tensor_scale: Any,
) -> _Tensor:  # fmt: skip
    """The levels of a format with one A per row, or with 4-over-6."""
    bound = fmt.scale_bound
    if fmt.per_row_tensor_scale:
        lines = (*x.shape[:axis], *x.shape[axis + 1 :])
        found, stored = row_levels(rows_of(x, axis) if x.size else None, math.prod(lines), fmt, rule)
        return _Tensor(floats, tensor_scale=stored.reshape(lines), fill=rule.fill, levels=found)
    if given is None and tensor_scale is not None:
        s_enc = exact.s_enc_from_tensor_scale(tensor_scale)
        with np.errstate(over="ignore"):  # an infinite A: both candidates err by inf or NaN, map-to-6 stays
            largest = np.float32(tensor_scale) * np.float32(fmt.element.max * bound)
    else:
        s_enc = exact.s_enc(largest, fmt.element, fmt.scale, bound)
    if tensor_scale is None:
        tensor_scale = exact.tensor_scale_from_amax(largest, fmt.element, fmt.scale, bound)
    found = levels(fmt, rule, np.asarray(largest), s_enc)
    return _Tensor(floats, tensor_scale=np.array(tensor_scale, np.float32), fill=rule.fill, levels=found)


def _one_scale(x: np.ndarray, rule: ScaleRule, floats: np.ndarray, scale: Any, given: Any, taken: Any) -> _Tensor:
    """The multiplier and scale of a per-tensor format, by the rule of a single block."""
    if scale is not None:
        multiplier = np.array(scale, np.float32).reshape(1)
        return _Tensor(floats, multiplier, exact.inverse(multiplier).reshape(()), fill=rule.nan_code)
    bits = np.array(taken if given is None else given, np.float32).reshape(1).view(np.uint32)
    ints = rule.given_ints
    if rule.nan_block and (worst := amax_bits(x, SKIP_NOTHING)) >= INF:
        bits[0], ints = worst, rule.ints
    stored, multiplier = np.empty(1, np.uint32), np.empty(1, np.float32)
    scales(rule, ints, floats, bits, 1, stored, multiplier)
    return _Tensor(floats, multiplier, _as_scale(stored, rule).reshape(()), fill=rule.fill)


def _as_scale(stored: np.ndarray, rule: ScaleRule) -> np.ndarray:
    return stored.view(np.float32) if rule.family == FLOAT_SCALE else stored.astype(rule.stored)


@dataclass(frozen=True, eq=False)
class _Cast:
    """How elements become codes: constants of the kernel, and what cuts them (random numbers, or none: toward zero)."""

    numbers: np.ndarray
    steps: Steps = PLAIN
    random: np.ndarray | None = None
    cut: bool = False

    @classmethod
    def of(
        cls, element: Element, overflow: Overflow, steps: Steps, rounding: Rounding, rng: Rng | None,
        shape: tuple[int, ...], lane: int,
    ) -> _Cast:  # fmt: skip
        if steps != PLAIN:
            return cls(converter(element, overflow, steps), steps)
        if rounding == "even":
            return cls(element_encoder(element, overflow))
        random = None if rng is None else random_numbers(shape, element, rng, lane)
        return cls(cutter(element, overflow, rounding), random=random, cut=True)

    def transposed(self) -> _Cast:
        return self if self.random is None else dataclasses.replace(self, random=self.random.T)

    def flat(self) -> _Cast:
        return self if self.random is None else dataclasses.replace(self, random=self.random.reshape(-1))


def _side(x: np.ndarray, axis: int, fmt: QuantDType, tensor: _Tensor, cast: _Cast) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of ``x`` blocked along ``axis``, in the order of its axes."""
    if x.size == 0:
        empty = np.zeros(scale_shape(fmt, x.shape, axis), scale_rule(fmt).stored)
        return np.empty(codes_shape(fmt, x.shape, axis), np.uint8), empty if tensor.scale is None else tensor.scale
    if fmt.block is None and not fmt.element.packed:
        even = x.flags.c_contiguous
        codes, _ = _rows(rows_of(x.reshape(-1) if even else x, -1), -1, fmt, tensor, cast.flat() if even else cast)
        assert tensor.scale is not None
        return codes.reshape(x.shape), tensor.scale
    across = (fmt.block_shape or (1, 1))[0]
    codes, scale = _rows(rows_of(x, axis, matrices=across > 1), axis, fmt, tensor, cast)
    outer = math.prod(x.shape[:axis])
    last = axis == x.ndim - 1
    codes = (codes if last else _swap(codes, outer)).reshape(codes_shape(fmt, x.shape, axis))
    if tensor.scale is not None:
        return codes, tensor.scale
    return codes, (scale if last else _swap(scale, outer)).reshape(scale_shape(fmt, x.shape, axis))


def _swap(array: np.ndarray, outer: int) -> np.ndarray:
    """[outer * inner, n] -> [outer, n, inner]."""
    view = array.reshape(outer, -1, array.shape[-1])
    return transpose(view, packed=False, columns=view.shape[-1], out=None)  # type: ignore[no-any-return]


def _rows(source: Rows, axis: int, fmt: QuantDType, tensor: _Tensor, cast: _Cast) -> tuple[np.ndarray, np.ndarray]:
    """Codes [rows, bytes] and scales [matrices, block rows, blocks] of an array seen as rows along ``axis``."""
    rule, packed, n = scale_rule(fmt, cast.steps), fmt.element.packed, source.n
    across, along = fmt.block_shape or (1, 1)
    limit = SKIP_NOTHING if rule.nan_block else SKIP_NAN
    random = None if cast.random is None else rows_of(cast.random, axis, matrices=across > 1)
    matrices, rows = (source.d1, source.d2) if across > 1 else (1, source.d1 * source.d2)
    width = -(-n // 2) if packed else n
    codes = np.empty((source.d1 * source.d2, width), np.uint8)
    grid = (matrices, -(-rows // across), -(-n // along)) if tensor.multiplier is None else (0, 0, 0)
    scale = np.empty(grid, rule.stored)
    flat = codes.reshape(-1)

    def work(
        panel: Panel, values: np.ndarray, raw: np.ndarray, bits: np.ndarray, stored: np.ndarray, factor: np.ndarray,
        *more: np.ndarray,
    ) -> None:  # fmt: skip
        row, height, column, length = panel
        place, shape, block = source.load(panel, values), (height, length), (across, along)
        if tensor.multiplier is None:
            high, wide = -(-height // across), -(-length // along)
            block_amax(*place, *shape, *block, limit, bits)
            if tensor.levels is None:
                scales(rule, rule.ints, tensor.floats, bits, high * wide, stored, factor)
            else:
                level_scales(place, shape, block, bits, row, tensor.levels, stored, factor, more[:4])
            m, r, c = row // rows, row % rows // across, column // along
            scale[m, r : r + high, c : c + wide] = _as_scale(stored[: high * wide], rule).reshape(high, wide)
        else:
            factor, block = tensor.multiplier, shape
        target = (raw, 0, length) if packed else (flat, row * width + column, width)
        if cast.steps != PLAIN:
            convert_blocks(place, shape, block, factor, cast.numbers, tensor.fill, target)
        elif not cast.cut:
            encode_blocks(place, shape, block, factor, cast.numbers, tensor.fill, target)
        else:
            numbers = (np.zeros(length, np.uint8), 0, 0) if random is None else random.load(panel, more[-1])
            cut_blocks(place, shape, block, factor, cast.numbers, tensor.fill, numbers, target)
        if packed:
            pack(raw, length, height, length, flat, row * width + column // 2, width)

    unit = math.lcm(along, 2) if packed else along
    searched = () if tensor.levels is None else SCRATCH
    buffers = (*_BUFFERS, *searched, *(() if random is None else (random.dtype,)))
    straight = source.pitch is not None
    size = large_panels(codes.shape[0] * n) if straight else PANEL
    todo = panels(matrices, rows, n, across=across, along=unit, stripes=not straight, size=size)
    for_panels(work, todo, *buffers)
    return codes, scale


def _tiled(side: Operand | None) -> Operand | None:
    """The side with its scales in 128 x 4 tiles; a scale of square blocks is repeated for each of its rows."""
    if side is None:
        return None
    across = (side.format.block_shape or (1, 1))[0]
    rows = np.repeat(side.scale, across, axis=0)[: side.stored_shape[0]]
    tiles = tile_scales(rows, "tiles128x4", inverse_shape=None, out=None)
    return dataclasses.replace(side, scale=tiles, scale_layout="tiles128x4")


def _k_major(side: Operand | None) -> Operand | None:
    """The side with its float32 scales along K."""
    if side is None:
        return None
    square = (side.format.block_shape or (1, 1))[0] > 1
    return dataclasses.replace(
        side, scale=to_k_major128(side.scale.T if square else side.scale), scale_layout="k_major128"
    )
