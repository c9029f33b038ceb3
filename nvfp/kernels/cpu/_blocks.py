"""Kernels over panels of blocks: block maxima, scales, codes, packed nibbles, values.

A panel is rows x columns at (flat array, offset, pitch); its blocks are across x along. Arrays with one item
per block are flat, block rows first. Bits of magnitudes order like the magnitudes, so maxima are integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.kernels.cpu._encode import encode_code, encode_element, encode_integer, encode_power
from nvfp.kernels.cpu._njit import N, U, bits_float, float_bits, njit
from nvfp.kernels.cpu._tables import DIVIDED_SCALE, FLOAT_SCALE, NARROW_SCALE, POWER_SCALE, ScaleRule

Place = tuple[np.ndarray, int, int]  # flat array, offset of the first item, distance of two rows
SKIP_NOTHING, SKIP_NAN, SKIP_NONFINITE = U(0xFFFFFFFF), U(0x7F800000), U(0x7F7FFFFF)
INF, _NAN, _ONE = 0x7F800000, 0x7FC00000, np.float32(1)
_FLT_MAX = np.float32(np.finfo(np.float32).max)
_LIFT = np.float32(2.0**24)
_LEAST = np.float32(2.0**-149)


@njit
def block_amax(
    x: Any, at: int, pitch: int, rows: int, columns: int, across: int, along: int, limit: Any, amax: Any
) -> None:
    """Write the bits of each block's largest magnitude; items whose magnitude bits exceed ``limit`` count as 0."""
    blocks = (columns + along - 1) // along
    for i in range((rows + across - 1) // across * blocks):
        amax[i] = U(0)
    for r in range(rows):
        s, found = x[at + r * pitch : at + r * pitch + columns], amax[r // across * blocks : (r // across + 1) * blocks]
        for b in range(blocks):
            most = U(0)
            left, length = b * along, min(along, columns - b * along)
            for i in range(length):
                k = N(left + i)
                a = U(float_bits(s[k]) & U(0x7FFFFFFF))
                most = max(most, a if a <= limit else U(0))
            found[b] = max(found[b], most)


# The families of `scales`: from the amax bits of blocks to what is stored (codes or float32 bits) and what
# elements are multiplied by. ``floats`` = [largest element, overflow value, least amax, S_enc (or the tensor's factor
# of a convention), least narrow scale]; for the rest see `_tables.ScaleRule`. Each product and quotient is one float32
# operation, in the order of docs/formats.md. They are kernels of one signature because each takes long to compile and
# a program needs few of them.


@njit
def _float_scales(
    amax: Any, count: int, ints: Any, floats: Any, encoder: Any, table: Any, stored: Any, multiplier: Any
) -> None:
    power_of_two, nan_block, nan_scale = ints[3], ints[4], ints[5]
    largest, overflow, least = floats[0], floats[1], floats[2]
    for i in range(count):
        if nan_block and amax[i] >= INF:
            stored[i], multiplier[i] = nan_scale, bits_float(_NAN)
            continue
        a = bits_float(amax[i])
        a = least if a < least else a
        m = largest / a
        m = overflow if m > _FLT_MAX else m
        magnitude = float_bits(a) & 0x7FFFFFFF
        m = m if 0 < magnitude < INF else _ONE
        m = bits_float(float_bits(m) & 0xFF800000) if power_of_two else m
        stored[i], multiplier[i] = float_bits(_ONE / m), m


@njit
def _power_scales(
    amax: Any, count: int, ints: Any, floats: Any, encoder: Any, table: Any, stored: Any, multiplier: Any
) -> None:
    carry, emax, nan_block, nan_scale, zero, bad = ints[1], ints[2], ints[4], ints[5], ints[6], ints[7]
    for i in range(count):
        bits = amax[i]
        if nan_block and bits >= bad:
            stored[i], multiplier[i] = nan_scale, bits_float(_NAN)
            continue
        subnormal = bits < 0x800000
        lifted = float_bits(bits_float(bits) * _LIFT) if subnormal else bits
        e = np.int64(lifted >> 23) - (24 if subnormal else 0) - emax + (1 if (lifted & 0x7FFFFF) >= carry else 0)
        e = zero if bits == 0 else min(max(e, 0), 254)
        e = e if bits < INF else (254 if bits == INF else 255)
        stored[i] = e
        multiplier[i] = bits_float((254 - e) << 23 if e < 254 else 0x400000 >> (e - 254))


@njit
def _narrow_scales(
    amax: Any, count: int, ints: Any, floats: Any, encoder: Any, table: Any, stored: Any, multiplier: Any
) -> None:
    nan_block, nan_scale, s_enc = ints[4], ints[5], floats[3]
    shift, half, offset, normal, magic = encoder[1], encoder[2], encoder[3], encoder[4], encoder[5]
    most, top, nan, sign = encoder[6], encoder[7], encoder[8], encoder[9]
    per_element, s_dec = s_enc * (_ONE / floats[0]), _ONE / s_enc
    for i in range(count):
        if nan_block and amax[i] >= INF:
            stored[i], multiplier[i] = nan_scale, bits_float(_NAN)
            continue
        wanted = bits_float(amax[i]) * per_element
        wanted = _FLT_MAX if wanted > _FLT_MAX else wanted
        code = encode_code(wanted, shift, half, offset, normal, magic, most, top, nan, sign)
        m = _ONE / (table[code] * s_dec)
        stored[i], multiplier[i] = code, _FLT_MAX if m > _FLT_MAX else m


@njit
def _divided_scales(
    amax: Any, count: int, ints: Any, floats: Any, encoder: Any, table: Any, stored: Any, multiplier: Any
) -> None:
    """`dtypes.scales.divided_block_scale`; the multipliers are divisors."""
    nan_block, nan_scale, zero, modelopt = ints[4], ints[5], ints[6], ints[8]
    shift, half, offset, normal, magic = encoder[1], encoder[2], encoder[3], encoder[4], encoder[5]
    most, top, nan, sign = encoder[6], encoder[7], encoder[8], encoder[9]
    largest, tensor, least = floats[0], floats[3], floats[4]
    unit = max(largest * tensor, _LEAST)
    for i in range(count):
        if nan_block and amax[i] >= INF:
            stored[i], multiplier[i] = nan_scale, bits_float(_NAN)
            continue
        b = bits_float(amax[i])
        wanted = b / unit if modelopt else tensor * (b / largest)
        wanted = least if wanted > 0 and wanted < least else wanted
        code = encode_code(wanted, shift, half, offset, normal, magic, most, top, nan, sign)
        code = U(zero) if code == 0 else code
        d = table[code] * tensor if modelopt else table[code] / tensor
        stored[i], multiplier[i] = code, max(d, _LEAST)


_SCALES = {
    FLOAT_SCALE: _float_scales, POWER_SCALE: _power_scales, NARROW_SCALE: _narrow_scales, DIVIDED_SCALE: _divided_scales
}  # fmt: skip


def scales(
    rule: ScaleRule, ints: np.ndarray, floats: np.ndarray, amax: np.ndarray, count: int, stored: np.ndarray,
    multiplier: np.ndarray,
) -> None:  # fmt: skip
    """Write what is stored and what elements are multiplied by, for ``count`` blocks with these amax bits."""
    _SCALES[rule.family](amax, count, ints, floats, rule.scale_encoder, rule.scale_table, stored, multiplier)


@njit
def _encode_floats(
    x: Any, at: int, pitch: int, rows: int, columns: int, across: int, along: int,
    multiplier: Any, numbers: Any, nan: Any, codes: Any, to: int, to_pitch: int,
) -> None:  # fmt: skip
    blocks = (columns + along - 1) // along
    shift, normal, ceiling, lift = numbers[1], numbers[2], numbers[3], numbers[4]
    base, drop, sign = numbers[5], numbers[6], numbers[7]
    for r in range(rows):
        s, t = x[at + r * pitch : at + r * pitch + columns], codes[to + r * to_pitch : to + r * to_pitch + columns]
        factors = multiplier[r // across * blocks : (r // across + 1) * blocks]
        for b in range(blocks):
            f = factors[b]
            left, length = b * along, min(along, columns - b * along)
            for i in range(length):
                k = N(left + i)
                t[k] = encode_element(s[k] * f, nan, shift, normal, ceiling, lift, base, drop, sign)


@njit
def _encode_integers(
    x: Any, at: int, pitch: int, rows: int, columns: int, across: int, along: int,
    multiplier: Any, numbers: Any, nan: Any, codes: Any, to: int, to_pitch: int,
) -> None:  # fmt: skip
    blocks = (columns + along - 1) // along
    one, least, most, mask = bits_float(numbers[1]), bits_float(numbers[2]), bits_float(numbers[3]), numbers[5]
    for r in range(rows):
        s, t = x[at + r * pitch : at + r * pitch + columns], codes[to + r * to_pitch : to + r * to_pitch + columns]
        factors = multiplier[r // across * blocks : (r // across + 1) * blocks]
        for b in range(blocks):
            f = factors[b]
            left, length = b * along, min(along, columns - b * along)
            for i in range(length):
                k = N(left + i)
                t[k] = encode_integer(s[k] * f, one, least, most, nan, mask)


def encode_blocks(
    source: Place, shape: tuple[int, int], block: tuple[int, int], multiplier: np.ndarray, numbers: np.ndarray,
    nan: int, target: Place,
) -> None:  # fmt: skip
    """Write ``cast(x * multiplier of its block)``, one code per byte; ``nan`` where the product is NaN.

    A block with a NaN multiplier gets ``nan`` throughout: no other element of such a format is NaN here, or its NaN
    code is the fill of a NaN block.
    """
    kernel = _encode_integers if numbers[0] else _encode_floats
    codes, to, pitch = target
    kernel(*source, *shape, *block, multiplier, numbers, np.uint32(nan), codes, to, pitch)


@njit
def encode_powers(
    x: Any, at: int, pitch: int, rows: int, columns: int, top: Any, half: Any, tie: Any, codes: Any, to: int,
    to_pitch: int,
) -> None:  # fmt: skip
    """Write the E8M0 codes of a panel."""
    for r in range(rows):
        s, t = x[at + r * pitch : at + r * pitch + columns], codes[to + r * to_pitch : to + r * to_pitch + columns]
        for i in range(columns):
            t[i] = encode_power(s[i], top, half, tie)


@njit
def pack(codes: Any, pitch: int, rows: int, columns: int, packed: Any, to: int, to_pitch: int) -> None:
    """Pack 4-bit codes of a panel two per byte along its rows, low nibble first."""
    for r in range(rows):
        s = codes[r * pitch : r * pitch + columns]
        t = packed[to + r * to_pitch : to + r * to_pitch + (columns + 1) // 2]
        for i in range(columns // 2):
            t[i] = s[2 * i] | (s[2 * i + 1] << 4)
        if columns % 2:
            t[columns // 2] = s[columns - 1]


@njit
def unpack(packed: Any, at: int, pitch: int, rows: int, columns: int, codes: Any) -> None:
    """Write the 4-bit codes of a panel one per byte, rows without gaps."""
    for r in range(rows):
        s, t = packed[at + r * pitch : at + r * pitch + (columns + 1) // 2], codes[r * columns : (r + 1) * columns]
        for i in range(columns // 2):
            t[2 * i], t[2 * i + 1] = s[i] & 15, s[i] >> 4
        if columns % 2:
            t[columns - 1] = s[columns // 2] & 15


@njit
def decode_blocks(
    codes: Any, at: int, pitch: int, rows: int, columns: int, across: int, along: int,
    table: Any, factor: Any, tensor: Any, values: Any, to: int, to_pitch: int,
) -> None:  # fmt: skip
    """Write ``fl(fl(table[code] * factor of its block) * tensor)``."""
    blocks = (columns + along - 1) // along
    for r in range(rows):
        s = codes[at + r * pitch : at + r * pitch + columns]
        t = values[to + r * to_pitch : to + r * to_pitch + columns]
        factors = factor[r // across * blocks : (r // across + 1) * blocks]
        for b in range(blocks):
            f = factors[b]
            left, length = b * along, min(along, columns - b * along)
            for i in range(length):
                k = N(left + i)
                t[k] = table[s[k]] * f * tensor
