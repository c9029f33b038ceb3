"""Two-level scales beyond one A and one candidate: a tensor scale for each row, and NVFP4's 4-over-6.

4-over-6 makes two candidates for each block, under a bound E (256 or 448) of the block scales in place of 448:

    base = fl(fl(b / 6) * S_enc)
    map-to-6: s = cast(base), so that b becomes 6;      map-to-4: s = cast(fl(1.5 * base)), so that b becomes 4

and keeps the one with the smaller sum of errors ``d = fl(fl(fl(fl(q * s) * A) / (6 E)) - x)``, map-to-6 on a tie. |d|
(``mae``) or fl(d * d) (``mse``) are added in float32, in the order of the elements along the block axis; the sums of
the rows of a square block are added pairwise, row i to row i + n/2, then halves of halves. No product is fused.

Source: Transformer Engine (row-scaled activations; 4-over-6), without its fast-math switch.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from nvfp.dtypes import scales
from nvfp.dtypes.codec import Codes, decode, encode
from nvfp.dtypes.formats import QuantDType
from nvfp.dtypes.grid import expand, split

Float32 = npt.NDArray[np.float32]


def candidates(b: Float32, s_enc: npt.ArrayLike, fmt: QuantDType) -> tuple[Codes, Codes]:
    """Return the codes of the block scales that map the block maximum b to 6 and to 4.

    Example:
        >>> from nvfp.dtypes.formats import nvfp4
        >>> six, four = candidates(np.float32([1.0]), np.float32(1536), nvfp4.replace(four_over_six="mae_256"))
        >>> hex(six[0]), hex(four[0])
        ('0x78', '0x7c')
    """
    with np.errstate(over="ignore", under="ignore"):
        base = np.asarray(b, np.float32) / np.float32(fmt.element.max) * np.asarray(s_enc, np.float32)
        wide = np.float32(1.5) * base
    return tuple(encode(np.minimum(x, scales.FLT_MAX), fmt.scale) for x in (base, wide))  # type: ignore[return-value]


def four_over_six(
    values: Float32, b: Float32, s_enc: Float32, a: Float32, fmt: QuantDType, lengths: tuple[int, ...], axis: int
) -> tuple[Codes, Float32]:
    """Return the chosen scale codes and multipliers, one per block.

    Args:
        values: the input.
        b: block maxima.
        s_enc: encode factors, of a shape that broadcasts to that of ``b``.
        a: the amaxes A behind them, likewise.
        fmt: the row.
        lengths: block length of every axis.
        axis: the block axis, along which errors are added first.
    """
    found = []
    product = np.float32(fmt.element.max * fmt.scale_bound)
    for stored in candidates(b, s_enc, fmt):
        multiplier = scales.nvfp4_multiplier(stored, s_enc, fmt.scale)
        with np.errstate(all="ignore"):
            q = decode(encode(values * expand(multiplier, lengths, values.shape), fmt.element), fmt.element)
            s = expand(decode(stored, fmt.scale).astype(np.float32), lengths, values.shape)
            wide = expand(np.broadcast_to(a, b.shape), lengths, values.shape)
            d = q.astype(np.float32) * s * wide / product - values
            d = np.abs(d) if fmt.four_over_six[:3] == "mae" else d * d  # type: ignore[index]
            found.append((stored, multiplier, _block_sums(d.astype(np.float32), lengths, axis)))
    (six, by_six, error_six), (four, by_four, error_four) = found
    better = error_four < error_six
    return np.where(better, four, six).astype(six.dtype), np.where(better, by_four, by_six)


def _block_sums(d: Float32, lengths: tuple[int, ...], axis: int) -> Float32:
    """Sums of blocks in float32: along the axis one by one, then over the other axis by halves."""
    axis %= d.ndim
    blocks = split(d, lengths)  # [n0, L0, n1, L1, ...]
    total = np.zeros(np.delete(blocks.shape, 2 * axis + 1), np.float32)
    for part in np.moveaxis(blocks, 2 * axis + 1, 0):
        total = total + part
    inner = [2 * i + (i < axis) for i in range(d.ndim) if i != axis]  # the lengths of the other axes
    rows = np.moveaxis(total, inner, range(len(inner)))
    rows = rows.reshape(math.prod(rows.shape[: len(inner)]), *rows.shape[len(inner) :])
    while len(rows) > 1:
        half = len(rows) // 2
        rows = rows[:half] + rows[half:]
    return np.asarray(rows[0], np.float32)
