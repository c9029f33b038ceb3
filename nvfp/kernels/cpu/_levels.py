"""Block scales with one A per row, or by 4-over-6: `dtypes.levels` in Numba."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvfp.dtypes import scales as exact
from nvfp.dtypes.formats import QuantDType
from nvfp.kernels.cpu._blocks import INF, SKIP_NAN, SKIP_NONFINITE, Place, block_amax
from nvfp.kernels.cpu._encode import encode_code, round_element
from nvfp.kernels.cpu._njit import N, bits_float, njit
from nvfp.kernels.cpu._strided import Panel, Rows, for_panels, panels
from nvfp.kernels.cpu._tables import ScaleRule, decode_table, element_encoder, encoder

_ONE, _MORE, _ZERO = np.float32(1), np.float32(1.5), np.float32(0)
_FLT_MAX, _NAN = np.float32(np.finfo(np.float32).max), 0x7FC00000
_FLOAT32, _UINT32 = np.dtype(np.float32), np.dtype(np.uint32)
_SEARCH = {"mae": 1, "mse": 2}
SCRATCH = (_UINT32, _FLOAT32, _FLOAT32, _FLOAT32)


@dataclass(frozen=True, eq=False)
class Levels:
    """What decides the scales of a two-level format beyond NVFP4's steps.

    Attributes:
        s_enc: encode factors, one, or one for each row.
        a: the amaxes A behind them.
        numbers: int64 [1 to search by sums of |d|, 2 of d * d, else 0; code of a NaN scale, 1 for NaN blocks].
        floats: [largest element, largest element times the bound of the scales].
        element: constants of the element's encoder.
        scale: constants of the scale's encoder; table: its values.
    """

    s_enc: np.ndarray
    a: np.ndarray
    numbers: np.ndarray
    floats: np.ndarray
    element: np.ndarray
    scale: np.ndarray
    table: np.ndarray


def levels(fmt: QuantDType, rule: ScaleRule, a: np.ndarray, s_enc: np.ndarray) -> Levels:
    """Return the levels of a call from its amaxes."""
    mode = 0 if fmt.four_over_six is None else _SEARCH[fmt.four_over_six[:3]]
    largest = fmt.element.max
    return Levels(
        s_enc=np.asarray(s_enc, np.float32).reshape(-1),
        a=np.asarray(a, np.float32).reshape(-1),
        numbers=np.array([mode, fmt.scale.nan_code, rule.nan_block], np.int64),
        floats=np.array([largest, largest * fmt.scale_bound], np.float32),
        element=element_encoder(fmt.element, "saturate"),
        scale=encoder(fmt.scale, "saturate"),
        table=decode_table(fmt.scale),
    )


def row_levels(source: Rows | None, lines: int, fmt: QuantDType, rule: ScaleRule) -> tuple[Levels, np.ndarray]:
    """Return the levels of an array of ``lines`` rows (None: empty ones), and their tensor scales."""
    a = np.zeros(lines, np.float32)
    if source is not None:
        limit = SKIP_NONFINITE if rule.nan_block else SKIP_NAN

        def work(panel: Panel, values: np.ndarray, bits: np.ndarray) -> None:
            row, height, _, n = panel
            block_amax(*source.load(panel, values), height, n, 1, n, limit, bits)
            a[row : row + height] = bits[:height].view(np.float32)

        todo = panels(1, lines, source.n, along=source.n, stripes=source.pitch is None)
        for_panels(work, todo, _FLOAT32, _UINT32)
    bound = fmt.scale_bound
    s_enc = exact.s_enc(a, fmt.element, fmt.scale, bound)
    return levels(fmt, rule, a, s_enc), exact.tensor_scale_from_amax(a, fmt.element, fmt.scale, bound)


@njit
def _candidate(
    amax: Any, rows: int, blocks: int, first: int, more: bool, s_enc: Any, numbers: Any, floats: Any, scale: Any,
    table: Any, stored: Any, multiplier: Any,
) -> None:  # fmt: skip
    """Write the scales that map the block maxima to the largest element (``more``: to two thirds of it)."""
    searched, nan_block, largest = numbers[0] != 0, numbers[2], floats[0]
    shift, half, offset, normal, magic = scale[1], scale[2], scale[3], scale[4], scale[5]
    top, over, nan, sign = scale[6], scale[7], scale[8], scale[9]
    for r in range(rows):
        encode = s_enc[first + r if s_enc.size > 1 else 0]
        s_dec, per_element = _ONE / encode, encode * (_ONE / largest)
        for i in range(r * blocks, (r + 1) * blocks):
            if nan_block and amax[i] >= INF:
                stored[i], multiplier[i] = numbers[1], bits_float(_NAN)
                continue
            most = bits_float(amax[i])
            wanted = most / largest * encode if searched else most * per_element
            wanted = _MORE * wanted if more else wanted
            wanted = _FLT_MAX if wanted > _FLT_MAX else wanted
            code = encode_code(wanted, shift, half, offset, normal, magic, top, over, nan, sign)
            m = _ONE / (table[code] * s_dec)
            stored[i], multiplier[i] = code, _FLT_MAX if m > _FLT_MAX else m


@njit
def _errors(
    x: Any, at: int, pitch: int, rows: int, columns: int, across: int, along: int, first: int, a: Any, numbers: Any,
    floats: Any, element: Any, table: Any, stored: Any, multiplier: Any, errors: Any,
) -> None:  # fmt: skip
    """Write the error of each item of a panel under the scale of its block, rows without gaps."""
    blocks, squares, product = (columns + along - 1) // along, numbers[0] == 2, floats[1]
    normal, ceiling, lift = element[2], element[3], element[4]
    for r in range(rows):
        top = r // across
        whole = a[first + top if a.size > 1 else 0]
        s, d = x[at + r * pitch : at + r * pitch + columns], errors[r * columns : (r + 1) * columns]
        for b in range(blocks):
            unit, f = table[stored[top * blocks + b]], multiplier[top * blocks + b]
            left, length = b * along, min(along, columns - b * along)
            for i in range(length):
                k = N(left + i)
                v = s[k]
                e = round_element(v * f, normal, ceiling, lift) * unit * whole / product - v
                d[k] = e * e if squares else abs(e)


@njit
def _choose(
    errors: Any, others: Any, rows: int, columns: int, across: int, along: int, four: Any, by_four: Any, stored: Any,
    multiplier: Any,
) -> None:  # fmt: skip
    """Put the second candidates (``four``, with errors ``others``) where their sums of errors are smaller."""
    blocks = (columns + along - 1) // along
    first, second = np.empty(across, np.float32), np.empty(across, np.float32)
    for top in range((rows + across - 1) // across):
        for b in range(blocks):
            left, length = b * along, min(along, columns - b * along)
            for r in range(across):
                one, two = _ZERO, _ZERO
                if top * across + r < rows:
                    start = (top * across + r) * columns + left
                    for i in range(length):
                        k = N(start + i)
                        one, two = one + errors[k], two + others[k]
                first[r], second[r] = one, two
            half = across // 2
            while half:
                for r in range(half):
                    first[r], second[r] = first[r] + first[r + half], second[r] + second[r + half]
                half //= 2
            i = top * blocks + b
            if second[0] < first[0]:
                stored[i], multiplier[i] = four[i], by_four[i]


def level_scales(
    at: Place, shape: tuple[int, int], block: tuple[int, int], amax: np.ndarray, first: int, level: Levels,
    stored: np.ndarray, multiplier: np.ndarray, scratch: Sequence[np.ndarray],
) -> None:  # fmt: skip
    """Write what is stored and what elements are multiplied by, for the blocks of a panel from row ``first`` on.

    ``scratch`` are arrays of the panel's size, of `SCRATCH`.
    """
    high, wide = -(-shape[0] // block[0]), -(-shape[1] // block[1])
    how = level.s_enc, level.numbers, level.floats, level.scale, level.table
    _candidate(amax, high, wide, first, False, *how, stored, multiplier)
    if not level.numbers[0]:
        return
    four, by_four, errors, others = scratch
    _candidate(amax, high, wide, first, True, *how, four, by_four)
    how = level.a, level.numbers, level.floats, level.element, level.table
    _errors(*at, *shape, *block, first, *how, stored, multiplier, errors)
    _errors(*at, *shape, *block, first, *how, four, by_four, others)
    _choose(errors, others, *shape, *block, four, by_four, stored, multiplier)
