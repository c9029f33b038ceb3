"""Packed weights bit by bit, as `kernels._weight_only` tells it in words, and the float64 product."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.dtypes import elements as el
from nvfp.dtypes.codec import decode
from nvfp.kernels.operand import Operand
from tests.oracles.dequantize import logical_blocks
from tests.oracles.gemm import Product, gemm

# Where the bits of the first code of each pair lie in a word, lowest first; those of the second lie 16 places on.
_BITS = {
    el.float4_e2m1fn: [[0, 1, 2, 9], [4, 5, 6, 13], [26, 27, 28, 3], [30, 7, 8, 15]],
    el.float8_e4m3fn: [[0, 1, 2, 3, 4, 5, 6, 11], [28, 29, 30, 7, 8, 9, 10, 15]],
    el.float8_e5m2: [[8, 9, 10, 11, 12, 13, 14, 15], [0, 1, 2, 3, 4, 5, 6, 7]],
}


def packed_codes(operand: Operand) -> np.ndarray:
    """The packed codes [tiles, units, 512] of an Operand of NumPy arrays."""
    codes, (n, k) = logical_blocks(operand).codes, operand.shape
    bits = operand.format.element.bits
    unit, per = (64, 8) if bits == 4 else (32, 4)
    tiles, units = -(-n // 16), -(-k // unit)
    words = np.zeros((tiles, units, 32, 4), np.uint32)
    for row in range(n):
        for column in range(k):
            lane = row % 8 * 4 + column % 32 // 8
            half = row % 16 // 8
            word = column % unit // 32 * 2 + half if bits == 4 else half * 2 + column % 8 // 4
            code = column % per
            for bit, place in enumerate(_BITS[operand.format.element][code // 2]):
                at = np.uint32((place + 16 * (code % 2)) % 32)
                words[row // 16, column // unit, lane, word] |= np.uint32(codes[row, column] >> bit & 1) << at
    return words.view(np.uint8).reshape(tiles, units, 512)


def nan_rows(operand: Operand) -> np.ndarray:
    """Which rows of a weight have a NaN among their codes or block scales."""
    blocks, fmt = logical_blocks(operand), operand.format
    found = np.isnan(decode(blocks.codes, fmt.element)).any(axis=1)
    if fmt.block_shape is not None:
        scale = blocks.scale.astype(np.float64) if fmt.scale.bits == 32 else decode(blocks.scale, fmt.scale)
        found |= np.repeat(np.isnan(scale).any(axis=1), fmt.block_shape[0])[: found.size]
    return found


def weight_only_gemm(x: np.ndarray, w: Operand, bias: Any = None) -> Product:
    """``x @ w.T + bias`` in float64."""
    return gemm(x, w.T, bias=bias)
