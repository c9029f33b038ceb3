"""The float64 GEMM: operands decoded by formulas, products and sums in float64, no rounding to the result dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nvfp.dtypes.codec import decode
from nvfp.dtypes.grid import block_lengths, expand
from nvfp.kernels.operand import Operand
from tests.oracles.activation import activation, activation_vjp
from tests.oracles.dequantize import logical_blocks

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Product:
    """The exact result, and ``|alpha| (|a| @ |b|) + |bias| + |out|``: the scale in which float32 sums err."""

    value: Float64
    scale: Float64


def values(x: Any) -> Float64:
    """What a NumPy array or an Operand of NumPy arrays means, with every factor, in float64."""
    if not isinstance(x, Operand):
        return np.asarray(x).astype(np.float64)
    fmt, blocks = x.format, logical_blocks(x)
    scale = blocks.scale.astype(np.float64) if fmt.scale.bits == 32 else decode(blocks.scale, fmt.scale)
    found = decode(blocks.codes, fmt.element)
    if fmt.block is None:
        found = found * scale
    else:
        found = found * expand(scale, block_lengths(x.shape, fmt, x.axis), x.shape)
    return found if x.tensor_scale is None else found * np.float64(x.tensor_scale)


def gelu(product: Product) -> Product:
    """The tanh form of a product."""
    return Product(activation(product.value, "gelu"), 1.13 * product.scale)


def dgelu(product: Product, aux: Any) -> Product:
    """``gelu'(aux)`` times a product."""
    slope = activation_vjp(values(aux), np.ones_like(product.value), "gelu")
    return Product(slope * product.value, np.abs(slope) * product.scale)


def gemm(a: Any, b: Any, *, bias: Any = None, out: Any = None, alpha: Any = None) -> Product:
    """``alpha (a @ b) + bias + out`` of NumPy arrays and Operands of NumPy arrays."""
    factor = 1.0 if alpha is None else float(alpha)
    left, right = values(a), values(b)
    with np.errstate(all="ignore"):
        value = factor * (left @ right)
        scale = abs(factor) * (np.abs(left) @ np.abs(right))
        for term in (bias, out):
            if term is not None:
                value = value + values(term)
                scale = scale + np.abs(values(term))
    return Product(value, scale)
