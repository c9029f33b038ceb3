"""Block scales with one A per row, or by 4-over-6: `dtypes.levels` in Numba."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nvfp.dtypes import scales as exact
from nvfp.dtypes.formats import QuantDType
from nvfp.kernels.cpu._blocks import INF, SKIP_NAN, SKIP_NONFINITE, Place, block_amax
from nvfp.kernels.cpu._encode import encode_code
from nvfp.kernels.cpu._njit import bits_float, njit
from nvfp.kernels.cpu._strided import Panel, Rows, for_panels, panels
from nvfp.kernels.cpu._tables import ScaleRule, decode_table, encoder

_ONE, _MORE, _ZERO = np.float32(1), np.float32(1.5), np.float32(0)
_FLT_MAX, _NAN = np.float32(np.finfo(np.float32).max), 0x7FC00000
_FLOAT32, _UINT32 = np.dtype(np.float32), np.dtype(np.uint32)
_SEARCH = {"mae": 1, "mse": 2}


@dataclass(frozen=True, eq=False)
class Levels:
    """What decides the scales of a two-level format beyond NVFP4's steps.

    Attributes:
        s_enc: encode factors, one, or one for each row.
        a: the amaxes A behind them.
        numbers: int64 [1 to search by sums of |d|, 2 of d * d, else 0; code of a NaN scale, 1 for NaN blocks].
        floats: [largest element, largest element times the bound of the scales].
        element: constants of the element's encoder; codes: its values.
        scale: constants of the scale's encoder; table: its values.
    """

    s_enc: np.ndarray
    a: np.ndarray
    numbers: np.ndarray
    floats: np.ndarray
    element: np.ndarray
    codes: np.ndarray
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
        element=encoder(fmt.element, "saturate"),
        codes=decode_table(fmt.element),
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
def _level_scales(
    x: Any, at: int, pitch: int, rows: int, columns: int, across: int, along: int, amax: Any, first: int, s_enc: Any,
    a: Any, numbers: Any, floats: Any, element: Any, codes: Any, scale: Any, table: Any, stored: Any, multiplier: Any,
) -> None:  # fmt: skip
    blocks = (columns + along - 1) // along
    sums, found, factor = np.empty(across, np.float32), np.empty(2, np.uint32), np.empty(2, np.float32)
    error = np.empty(2, np.float32)
    mode, largest, product = numbers[0], floats[0], floats[1]
    for top in range((rows + across - 1) // across):
        line = first + top if s_enc.size > 1 else 0
        s_dec, per_element, whole = _ONE / s_enc[line], s_enc[line] * (_ONE / largest), a[line]
        for b in range(blocks):
            i = top * blocks + b
            if numbers[2] and amax[i] >= INF:
                stored[i], multiplier[i] = numbers[1], bits_float(_NAN)
                continue
            most = bits_float(amax[i])
            base = most * per_element if mode == 0 else most / largest * s_enc[line]
            for k in range(2 if mode else 1):
                wanted = base if k == 0 else _MORE * base
                wanted = _FLT_MAX if wanted > _FLT_MAX else wanted
                found[k] = encode_code(
                    wanted, scale[1], scale[2], scale[3], scale[4], scale[5], scale[6], scale[7], scale[8], scale[9]
                )
                m = _ONE / (table[found[k]] * s_dec)
                factor[k] = _FLT_MAX if m > _FLT_MAX else m
            best = 0
            if mode:
                length = min(along, columns - b * along)
                for k in range(2):
                    s, f = table[found[k]], factor[k]
                    for r in range(across):
                        sums[r] = _ZERO
                        if top * across + r < rows:
                            start = at + (top * across + r) * pitch + b * along
                            total = _ZERO
                            for c in range(length):
                                y = x[start + c]
                                code = encode_code(
                                    y * f, element[1], element[2], element[3], element[4], element[5], element[6],
                                    element[7], element[8], element[9],
                                )  # fmt: skip
                                d = codes[code] * s * whole / product - y
                                total = total + (abs(d) if mode == 1 else d * d)
                            sums[r] = total
                    half = across // 2
                    while half:
                        for r in range(half):
                            sums[r] = sums[r] + sums[r + half]
                        half //= 2
                    error[k] = sums[0]
                best = 1 if error[1] < error[0] else 0
            stored[i], multiplier[i] = found[best], factor[best]


def level_scales(
    at: Place, shape: tuple[int, int], block: tuple[int, int], amax: np.ndarray, first: int, level: Levels,
    stored: np.ndarray, multiplier: np.ndarray,
) -> None:  # fmt: skip
    """Write what is stored and what elements are multiplied by, for the blocks of a panel from row ``first`` on."""
    _level_scales(
        *at, *shape, *block, amax, first, level.s_enc, level.a, level.numbers, level.floats, level.element, level.codes,
        level.scale, level.table, stored, multiplier,
    )  # fmt: skip
